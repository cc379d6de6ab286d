"""lengthlens: why a Transformer that is perfect on short inputs fails, or does not fail, on long ones.

Rooms, in the order in which one may import another:

``lengthlens.tasks``     what is to be computed: generators and their executable circuits
``lengthlens.models``    networks with any position embedding, and everything that trains them
``lengthlens.probes``    a task, scheme or trained run in, numbers out
``lengthlens.analyses``  a table of numbers in, a finding and a figure out
"""
