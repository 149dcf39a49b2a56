"""A lockstep SIMT machine in masked NumPy: runs Python kernels, counts, and finds hazards.

The parts, in the order in which a simulation passes through them:

- ``source`` finds the kernel's text, what its names mean and the types that it is declared with;
  ``_types`` holds numba's typing rules, also for variables where control flow joins.
- ``_translate`` (statements and loops), ``_expressions``, ``_functions`` and ``_arithmetic`` (what
  can be called) turn the syntax tree into closures once, and refuse what cannot run.
- ``_geometry`` has the lanes and masks, ``_memory`` arrays in any layout, records, indices,
  accesses and atomics, ``_machine`` the state of the running blocks and calls, and the counts by
  line.
- ``_hazards`` keeps who touched which word, by happens-before.
- ``_turns`` lets blocks, or each thread of a block, run by themselves where they wait for each
  other.
- ``_scalar_lanes`` runs a loop lane by lane, as Python, when few lanes are active and the result is
  the same.
- ``_simulate`` is ``simulate``: it takes the blocks in batches; ``report`` holds what comes out.

A number has shape (blocks or 1, threads or 1): what is equal in all blocks or all threads is
computed, and counted, once. All else is one value for all lanes: arrays (``View``), tuples,
functions, types, ``None``; ``Choice`` is an array that differs between lanes. ``merge`` is the one
place where lanes that part bring values together.

What a launch must know beforehand (the type of a variable, the size of an array, a function that is
given) and finds out on its way lets it begin again (``RelaunchError``) and is kept.

Lockstep is a model. Since Volta the lanes of a warp may run apart; only ``syncwarp`` orders them.
Hazards are found by that rule. Where a loop waits for another block, or for another thread of its
own block, the launch begins again with blocks, or threads, that take turns.
"""
