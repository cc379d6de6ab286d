"""Tasks that no scheme was made for, as a plug-in: five written by hand, twenty drawn at random.

``lengthlens tasks --plugin examples/learned_relations/tasks.py``

The classes are imported as part of lengthlens, not as a module beside this file: then they are known by name, as the
tasks of the package are, and their runs keep their ids when the source changes.
"""

import lengthlens as ll
from lengthlens.examples.learned_relations.unforeseen import BY_HAND, DrawnTask

for task in (*BY_HAND, *map(DrawnTask, range(20))):
    ll.register(task)
