"""Find rungs by name and by family."""

from __future__ import annotations

from gpulab.errors import InputError, shown
from gpulab.kernels.ladder import (
    _elementwise,
    _histograms,
    _matmuls,
    _reductions,
    _softmax,
    _transposes,
)
from gpulab.kernels.ladder._rung import Rung

RUNGS: tuple[Rung, ...] = (
    *_elementwise.RUNGS,
    *_reductions.RUNGS,
    *_transposes.RUNGS,
    *_histograms.RUNGS,
    *_softmax.RUNGS,
    *_matmuls.RUNGS,
)


def families() -> tuple[str, ...]:
    """Return the names of the ladders.

    Examples
    --------
    >>> families()
    ('elementwise', 'reduction', 'transpose', 'histogram', 'softmax', 'matmul')
    """
    return tuple(dict.fromkeys(each.family for each in RUNGS))


def family(name: str) -> tuple[Rung, ...]:
    """Return the rungs of a ladder, the slowest first.

    Raises
    ------
    InputError
        If there is no such ladder.
    """
    found = tuple(each for each in RUNGS if each.family == name)
    if not found:
        raise InputError(
            f"ladder: {shown(name)} is not a ladder; expected one of {', '.join(families())}. Pass "
            "one of these."
        )
    return found


def rung(name: str) -> Rung:
    """Return the rung of that name, such as "matmul-tiled".

    Raises
    ------
    InputError
        If there is none.
    """
    for each in RUNGS:
        if each.name == name:
            return each
    raise InputError(
        f"ladder: {shown(name)} is not a rung; expected one of {', '.join(r.name for r in RUNGS)}. "
        "Pass one of these."
    )
