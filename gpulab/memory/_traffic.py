"""``traffic(fn, *args)``: what each operator of a function reads and writes.

The count is the compulsory traffic of each operator by itself: each distinct element of an argument
read once, each element of a result written once. Caches between operators, and what an operator
reads again, are not seen; so a fused function and its parts differ here exactly by the arrays that
fusion saves. FLOPs follow the convention of ``gpulab.workloads``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Evidence
from gpulab.results import Result
from gpulab.units import format_bytes, plural

# A table of more operators than this is too long to read: equal ones then share a row.
_MOST_ROWS = 12


@dataclass(frozen=True)
class OperatorTraffic(Result):
    """One operator that ran.

    Attributes
    ----------
    name : str
        PyTorch's name of it, such as "aten.add.Tensor".
    read_bytes, written_bytes : int
        Each distinct element of its arguments once; each element of its results once.
    flops : float or None
        By the catalogue's convention; None where there is no count for this operator.
    """

    name: str
    read_bytes: int
    written_bytes: int
    flops: float | None

    @property
    def nbytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class Traffic(Result):
    """The memory traffic of a function, operator by operator.

    Attributes
    ----------
    label : str
    operators : tuple of OperatorTraffic
        In the order in which they ran; views, which move nothing, are left out.
    input_bytes, output_bytes : int
        Of the tensors that the function was given (with a module's parameters), and of the new ones
        that it returned together with the given ones that it changed in place.
    evidence : Evidence
        MODELLED: counted from shapes, not measured on the memory bus.
    """

    label: str
    operators: tuple[OperatorTraffic, ...]
    input_bytes: int
    output_bytes: int
    evidence: Evidence

    @property
    def read_bytes(self) -> int:
        """The bytes that all operators read."""
        return sum(each.read_bytes for each in self.operators)

    @property
    def written_bytes(self) -> int:
        """The bytes that all operators write."""
        return sum(each.written_bytes for each in self.operators)

    @property
    def nbytes(self) -> int:
        """Read and written together."""
        return self.read_bytes + self.written_bytes

    @property
    def compulsory_bytes(self) -> int:
        """The bytes that one fused pass would move: the inputs read once, the results written once,
        an array in place both.
        """
        return self.input_bytes + self.output_bytes

    @property
    def flops(self) -> float:
        """The FLOPs of the operators that are counted."""
        return sum(each.flops or 0.0 for each in self.operators)

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The operators whose FLOPs are not counted, each once."""
        return tuple(dict.fromkeys(each.name for each in self.operators if each.flops is None))

    @property
    def intensity_flops_per_byte(self) -> float:
        """Arithmetic intensity of the whole; infinite for work that moves nothing."""
        return self.flops / self.nbytes if self.nbytes else math.inf

    def memory_bound(self, roof: Any, arithmetic: str = "float32") -> tuple[OperatorTraffic, ...]:
        """Return the operators that are limited by main memory, not by arithmetic, under a
        roofline; uncounted ones are left out.

        Parameters
        ----------
        roof : Roofline
            From ``gpulab.models.roofline``.
        arithmetic : str
            The number format whose roof counts.
        """
        ridge = roof.ridge_flops_per_byte(arithmetic)
        return tuple(
            each
            for each in self.operators
            if each.flops is not None and each.flops < ridge * each.nbytes
        )

    def __repr__(self) -> str:
        moved = f"reads {format_bytes(self.read_bytes)}, writes {format_bytes(self.written_bytes)}"
        return (
            f"<{self.label}: {plural(len(self.operators), 'operator')}, {moved}, {self.flops:.3g} "
            f"FLOP ({self.evidence.badge})>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row per operator (one per kind, where there are many), and the sum."""
        rows: list[tuple[str, ...]] = []
        if len(self.operators) <= _MOST_ROWS:
            rows += [_row(each.name, (each,)) for each in self.operators]
        else:
            kinds = {
                each.name: [other for other in self.operators if other.name == each.name]
                for each in self.operators
            }
            ordered = sorted(kinds.items(), key=lambda kind: -sum(each.nbytes for each in kind[1]))
            rows += [_row(f"{len(each)} x {name}", each) for name, each in ordered]
        return ("operator", "reads", "writes", "FLOP", "FLOP per byte"), [
            *rows,
            _row("together", self.operators),
        ]

    def caption(self) -> str:
        """Return the badge, and what is not counted."""
        left_out = f" · FLOPs not counted: {', '.join(self.uncounted)}" if self.uncounted else ""
        return f"{self.evidence.sentence}{left_out}"


def _row(name: str, operators: Sequence[OperatorTraffic]) -> tuple[str, ...]:
    read = sum(each.read_bytes for each in operators)
    written = sum(each.written_bytes for each in operators)
    flops = sum(each.flops or 0.0 for each in operators)
    counted = any(each.flops is not None for each in operators) or not operators
    intensity = f"{flops / (read + written):.3g}" if counted and read + written else ""
    return (
        name,
        format_bytes(read),
        format_bytes(written),
        f"{flops:.4g}" if counted else "not counted",
        intensity,
    )


def traffic(fn: Callable[..., Any], *args: Any, label: str | None = None) -> Traffic:
    """Run a function once and return the memory traffic of its operators.

    Parameters
    ----------
    fn : callable
        Works on torch tensors, on any device; a training step with its backward pass counts too. A
        function made by ``torch.compile`` is counted as the operators that it was written with.
    *args
        What ``fn`` takes.
    label : str, optional
        The function's name by default.

    Returns
    -------
    Traffic
        With evidence MODELLED.

    Raises
    ------
    InputError
        If ``fn`` cannot be called, or raises.

    Examples
    --------
    >>> import torch
    >>> from gpulab import memory
    >>> t = memory.traffic(lambda x: x * 2 + 1, torch.ones(1000))
    >>> t.nbytes, t.compulsory_bytes, t.flops
    (16000, 8000, 2000.0)
    """
    if not callable(fn):
        raise InputError(
            f"traffic: {shown(fn)} cannot be called; expected a function of tensors. Pass "
            "traffic(f, x), not traffic(f(x))."
        )
    import torch

    from gpulab.memory import _counter
    from gpulab.memory.tracker import tensors_in

    original = getattr(fn, "_torchdynamo_orig_callable", fn)
    counter = _counter.TrafficCounter()
    try:
        with counter:
            result = original(*args)
    except Exception as error:
        raise InputError(
            f"traffic: the function raised {message_of(error)}; expected it to run on these "
            "arguments. Try fn(*args) first."
        ) from error
    parameters = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
    inputs = _counter.distinct([*tensors_in(args), *parameters])
    made = _counter.distinct(tensors_in(result))
    written = [nbytes for key, nbytes in made.items() if key not in inputs]
    written += [inputs[key] for key in counter.changed & inputs.keys()]
    assumed = (
        "each operator reads each distinct element of its arguments once and writes its results "
        "once; no cache between operators"
    )
    return Traffic(
        label=label if label is not None else getattr(fn, "__name__", type(fn).__name__),
        operators=tuple(counter.operators),
        input_bytes=sum(inputs.values()),
        output_bytes=sum(written),
        evidence=Evidence.modelled(
            assumed,
            "PyTorch's own operators, counted by a dispatch mode; matrix products by PyTorch's "
            "FLOP formulas",
        ),
    )
