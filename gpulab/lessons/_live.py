"""The recorder's cases on the learner's own device: where there is a GPU, no recording has to speak for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpulab import devices
from gpulab.devices import Device
from gpulab.errors import message_of
from gpulab.lessons._content import Unmeasured
from gpulab.timing import Measurement

Params = Mapping[str, Any]
# How sampling began and ended; the interval beside the figure says what of that matters.
_QUIET = ("deadline", "no-interval", "slow-first-call", "too-short")
AGAIN = "Run the cell that {}, and this one, again."
DISTURBED = f"other programs disturbed the times too much for an interval. {AGAIN}"


def chosen(device: Any) -> Device | None:
    """Return the device to measure on; None where recordings speak: nothing was asked for, and there is only a CPU.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    """
    where = devices.find(device) if device is not None else devices.default()
    return None if device is None and where.is_cpu else where


def measured(experiment: str, wanted: Callable[[Params], bool], device: Device, deadline: float) -> list[tuple[Params, Measurement | str]]:
    """Time those of an experiment's cases that are wanted; a case that this device or its libraries refuse gives its reason instead.

    Parameters
    ----------
    experiment : str
        One of ``gpulab record``'s.
    wanted : callable
        Takes a case's parameters.
    device : Device
    deadline : float
        Seconds of sampling for each case.
    """
    from gpulab import recorder  # all experiments at once: only those who measure load them

    found: list[tuple[Params, Measurement | str]] = []
    for case in recorder.experiments([experiment])[0].cases(device):
        if wanted(case.params):
            try:
                found.append((case.params, case.time(deadline)))
            except Exception as error:  # a library's refusal is what the learner has to know of this case
                found.append((case.params, f"not here: {message_of(error)}"))
    return found


def doubts(m: Measurement) -> tuple[str, ...]:
    """Return the codes of a measurement's notes that say its figure may be wrong."""
    return tuple(dict.fromkeys(note.code for note in m.notes if note.code not in _QUIET))


def sure(row: Any, cell: str) -> float:
    """Return the speed-up of a row, if it has an interval: a ratio of two moments is no answer.

    Parameters
    ----------
    row : result with ``speedup`` and ``speedup_interval``
    cell : str
        What the cell does that measures it, as in "races".

    Raises
    ------
    Unmeasured
        If it has none.
    """
    if row.speedup_interval is None:
        raise Unmeasured(DISTURBED.format(cell))
    return float(row.speedup)
