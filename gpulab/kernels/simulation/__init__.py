"""A lockstep SIMT machine in masked NumPy: runs Python kernels, counts, and finds hazards.

The modules, in the order in which a simulation uses them:

- ``source`` finds the kernel's text, the objects that its names stand for, and its declared types;
  ``_types`` holds numba's typing rules, also for variables where control flow joins.
- ``_translate`` (statements and loops), ``_expressions``, ``_functions`` (calls of cuda) and
  ``_arithmetic`` (arithmetic functions) translate the syntax tree to closures once, and refuse code
  that cannot run.
- ``_geometry`` has the lanes and masks; ``_memory`` arrays in any layout, records, indices,
  accesses and atomics; ``_machine`` the state of the running blocks and calls, and the counts by
  line.
- ``_hazards`` keeps which threads last accessed each word, and finds races by happens-before.
- ``_turns`` lets blocks, or the threads of a block, take turns where they wait for each other.
- ``_scalar_lanes`` runs a loop lane by lane, as Python, when few lanes are active and the result is
  the same.
- ``_simulate`` has ``simulate``, which runs the blocks in batches; ``report`` has the results.

A number has shape (blocks or 1, threads or 1): a value that is equal in all blocks, or in all
threads, is computed, and counted, once. Any other value is one object for all lanes: an array
(``View``), a tuple, a function, a type or ``None``. ``Choice`` is an array that differs between
lanes. Where the paths of lanes meet again, only ``merge`` combines their values.

Some facts must be known before a launch begins: the type of a variable, the size of an array, or
a function that is an argument. If the launch finds such a fact only while it runs, it keeps the
fact and starts again (``RelaunchError``).

Lockstep is a model. Since Volta the lanes of a warp may run apart; only ``syncwarp`` orders them.
Hazards are found by that rule. If a loop waits for another block, or for another thread of its own
block, the launch starts again, and its blocks, or its threads, take turns.
"""
