"""TensorFlow 1's feed_dict against data that stay: the same runs of one graph, fed each time or loaded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab import _given, devices, transfer
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence, known_errors
from gpulab.lessons import _library, _live
from gpulab.results import Result
from gpulab.units import format_bytes, format_ratio, format_seconds

_LINK = "pcie4-x16"
_GPU = "nvidia-h200"
_BOUNDARY_BYTES = 64  # where TensorFlow (as JAX) wants an array to begin that it uses in place
_OFF_BYTES = 16  # how far behind it a large array of NumPy's begins on Linux: the allocator's header


@dataclass(frozen=True)
class Feeding(Result):
    """One run of a graph that adds up an array, the array fed in that run, or kept on the device.

    Attributes
    ----------
    nbytes : int
        Of the array.
    device : str
        Where the graph ran.
    fed_seconds, kept_seconds : float
        A run with the array in its feed_dict, off a 64-byte boundary; one that uses a Variable.
    boundary_seconds : float or None
        A run that is fed an array that begins on such a boundary; None behind a link, where that makes no difference.
    notes : tuple of str
        What to know of the figures.
    evidence : Evidence
        MODELLED where TensorFlow is not installed.
    ratio_interval : (float, float) or None
        95 %, of ``ratio``; None where it is modelled, or none is honest.
    """

    nbytes: int
    device: str
    fed_seconds: float
    kept_seconds: float
    boundary_seconds: float | None
    notes: tuple[str, ...]
    evidence: Evidence
    ratio_interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Fed / kept."""
        return self.fed_seconds / self.kept_seconds

    def __repr__(self) -> str:
        return f"<feeding {format_bytes(self.nbytes)}: a run takes {format_ratio(self.ratio)} as long as one on kept data>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a way."""
        on = self.boundary_seconds
        rows = [
            (f"fed in every run (feed_dict){'' if on is None else ', off a boundary'}", format_bytes(self.nbytes),
             format_seconds(self.fed_seconds)),
            *([] if on is None else [(f"fed, from a {_BOUNDARY_BYTES}-byte boundary", "none, if used in place", format_seconds(on))]),
            ("kept in a Variable", "none", format_seconds(self.kept_seconds)),
            ("fed over kept", "", _live.with_interval(self.ratio, self.ratio_interval)),
        ]  # fmt: skip
        return (f"session.run on {self.device}", "copied in each run", "time of a run"), rows

    def caption(self) -> str:
        """Return the badge line and the notes."""
        return " · ".join((self.evidence.sentence, *self.notes))


def feeding(nbytes: int = 64 * 2**20, deadline: float = 0.7) -> Feeding:
    """Time ``Session.run`` on an array that is fed in each run, and on one that was loaded into a Variable before.

    Parameters
    ----------
    nbytes : int
        Of the array, from 4 KiB on.
    deadline : float
        Seconds of sampling for each way; up to four times as long where the ratio would have no interval else.

    Returns
    -------
    Feeding
        Of TensorFlow where it is installed, on its GPU or on the CPU; else MODELLED for a GPU behind PCI Express.

    Raises
    ------
    InputError
        If nbytes is no whole number from 4096 on.
    """
    if not _given.is_whole(nbytes) or nbytes < 4096:
        raise InputError(f"feeding: nbytes={shown(nbytes)}; expected a whole number from 4096 on. Pass for example 64 * 2**20.")
    nbytes = int(nbytes)
    why = _library.unusable("tensorflow")
    return _modelled(nbytes, why) if why else _measured(nbytes, deadline)


def _modelled(nbytes: int, why: str) -> Feeding:
    link, gpu = transfer.link(_LINK), transfer.processor(_GPU)
    adds = nbytes / 4
    kept = gpu.seconds(adds, nbytes)
    evidence = Evidence.modelled(
        f"each run copies the array over {link.name} ({link.evidence.assumptions}), then adds it up ({gpu.evidence.assumptions})",
        f"{link.evidence.source}; {gpu.evidence.source}",
        known_errors(link=link.evidence, compute=gpu.evidence),
    )
    return Feeding(nbytes, f"{_GPU} behind {link.name}", link.seconds(nbytes) + kept, kept, None, (why,), evidence)


def _measured(nbytes: int, deadline: float) -> Feeding:
    tf = _library.load("tensorflow")
    on, x = _arrays(nbytes)
    where = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, tf.device(f"/{where}:0"):
        fed = tf.compat.v1.placeholder(tf.float32, x.shape)
        kept = tf.compat.v1.get_variable("kept", initializer=fed, use_resource=True)
        from_fed, from_kept = tf.reduce_sum(fed), tf.reduce_sum(kept)
        session.run(kept.initializer, feed_dict={fed: x})
        runs: dict[str, Callable[[], Any]] = {
            "kept": lambda: session.run(from_kept),
            "fed": lambda: session.run(from_fed, feed_dict={fed: x}),
        }
        if where == "CPU":
            runs["fed from a boundary"] = lambda: session.run(from_fed, feed_dict={fed: on})
        c = _live.compared("feeding", runs, deadline)
    seconds = {row.name: row.measurement for row in c.rows}
    doubts = tuple(f"{name}: {code}" for name, m in seconds.items() for code in _live.doubts(m))
    device = devices.default() if where == "GPU" else devices.find("cpu")
    over_kept = next(row.speedup_interval for row in c.rows if row.name == "fed")  # of kept over fed: "kept" is the first
    medians = {name: m.median_seconds for name, m in seconds.items()}
    return Feeding(
        nbytes, device.name, medians["fed"], medians["kept"], medians.get("fed from a boundary"), doubts, Evidence.measured(device.name),
        None if over_kept is None else (1 / over_kept[1], 1 / over_kept[0]),
    )  # fmt: skip


def _arrays(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same numbers twice: from a 64-byte boundary on, and from a place off one."""
    numbers = np.random.default_rng(0).standard_normal(nbytes // 4, dtype=np.float32)
    found = []
    for off in (0, _OFF_BYTES):
        room = np.empty(nbytes + 2 * _BOUNDARY_BYTES, np.uint8)
        begin = -room.ctypes.data % _BOUNDARY_BYTES + off
        found.append(room[begin : begin + 4 * numbers.size].view(np.float32))
        found[-1][:] = numbers
    return found[0], found[1]
