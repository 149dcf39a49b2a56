"""A lockstep SIMT machine in masked NumPy: reads a Python kernel, runs many blocks at once, counts,
and finds hazards.

The parts, in the order in which a simulation passes through them:

- ``_source`` finds the kernel's text and the names it uses; ``_types`` holds numba's typing rules.
- ``_translate`` (statements), ``_expressions``, ``_operators``, ``_indices``, ``_calls`` and
  ``_arithmetic`` (``_fused``: its fma) turn the syntax tree into closures once, and refuse what
  cannot run; ``_frame`` is a call of such a function at work, ``_registry`` the table of what can
  be called.
- ``_geometry`` has the lanes and masks, ``_memory`` arrays and their spaces, ``_machine`` every
  access that lanes make, ``_atomics`` and ``_warp`` what lanes do together.
- ``_alone`` runs a loop lane by lane when few lanes are active and the result is the same;
  ``_alone_text`` and ``_alone_values`` write it as Python for one lane, ``_alone_counts`` derives
  the counts of lockstep.
- ``_counters`` counts requests, sectors and wavefronts; ``_hazards`` keeps who touched which word,
  by happens-before.
- ``_run`` takes the blocks in batches; ``report`` holds what comes out.

A value has shape (blocks or 1, threads or 1): what is equal in all blocks or all threads is
computed, and counted, once.

Lockstep is a model. Since Volta the lanes of a warp may run apart; only ``syncwarp`` orders them.
Hazards are found by that rule, but a lane that waits in a loop for another lane of its own warp, or
for a block that runs beside it (a lock), hangs here though hardware since Volta lets it pass.
"""
