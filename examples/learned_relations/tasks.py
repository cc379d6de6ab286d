"""Tasks that no scheme was made for, as a plug-in: five written by hand, twenty drawn at random.

``lengthlens tasks --plugin examples/learned_relations/tasks.py``
"""

import lengthlens as ll
from lengthlens.tasks.unforeseen import BY_HAND, DrawnTask

for task in (*BY_HAND, *map(DrawnTask, range(20))):
    ll.register(task)
