"""Figures of collectives: time, bus bandwidth or bytes sent over the payload, with measured points and the models of the algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpulab.evidence import Badge, Evidence
from gpulab.figures import palette
from gpulab.figures._style import LabFigure, bytes_axis, composed, count_axis, frame, guide, ink, rate_axis, seconds_axis
from gpulab.units import format_bytes, format_bytes_per_second, format_seconds

if TYPE_CHECKING:
    from gpulab.models import CollectiveCost
    from gpulab.parallel import CollectivePoint, CollectiveSweep

Quantity = Literal["seconds", "bus", "sent"]
_HEIGHT = 460
_CURVE_POINTS = 48
_TITLES = {
    "seconds": "Time of a collective",
    "bus": "Bus bandwidth of a collective",
    "sent": "Bytes sent by the busiest rank / payload",
}
_AXES = {"seconds": "time of a call (log scale)", "bus": "bus bandwidth (log scale)", "sent": "sent / payload (log scale)"}
_SERIES = (
    (palette.BLUE, "circle"), (palette.VERMILLION, "square"), (palette.BLUISH_GREEN, "diamond"), (palette.REDDISH_PURPLE, "triangle-up"),
    (palette.ORANGE, "triangle-down"), (palette.SKY_BLUE, "star"),
)  # fmt: skip
_ALGORITHMS = (palette.ORANGE, palette.REDDISH_PURPLE, palette.BLUISH_GREEN, palette.SKY_BLUE, palette.GREY)
_FEWEST_TO_FIT = 3


def collectives(
    measured: CollectiveSweep | Sequence[CollectiveSweep], quantity: Quantity = "seconds", *, algorithms: Sequence[str] | None = None
) -> LabFigure:
    """Return a collective's measured points over its payload, with the models of its algorithms.

    Parameters
    ----------
    measured : CollectiveSweep or several
        With several, no models are drawn unless ``algorithms`` names them.
    quantity : str
        "seconds" of a call; "bus", the rate at which the links of a ring would run; or "sent", the bytes that the busiest rank
        sends for each byte of the payload, including the headers of its messages.
    algorithms : sequence of str, optional
        The models to draw, dashed; by default, for one sweep, all that are known for the operation. Their latency and bandwidth come
        from a fit of the measured points, if there are at least three sizes.
    """
    sweeps = list(measured) if isinstance(measured, Sequence) else [measured]
    chosen = algorithms if algorithms is not None or len(sweeps) == 1 else ()
    traces: list[dict[str, Any]] = []
    evidence: list[Evidence] = [s.evidence for s in sweeps]
    for one in sweeps:
        drawn: dict[tuple[float, ...], dict[str, Any]] = {}
        whose = f" for {one.label}" if len(sweeps) > 1 else ""
        for number, (name, costs) in enumerate(_curves(one, quantity, chosen)):
            evidence += [costs[0].evidence] if number == 0 else []
            curve = _curve(one, name, costs, quantity, _ALGORITHMS[number % len(_ALGORITHMS)], whose)
            same = drawn.setdefault(tuple(float(f"{v:.9g}") for v in curve["y"]), curve)
            if same is curve:
                traces.append(curve)
            else:  # one line for all whose values are the same
                same["name"] = ink(f"{name}; ") + same["name"]
    traces += [_points(one, quantity, number) for number, one in enumerate(sweeps)]
    base = frame(_TITLES[quantity], evidence[:3], _describe(sweeps, quantity), _HEIGHT)
    values = [value for trace in traces for value in trace["y"] if value is not None and math.isfinite(value) and value > 0]
    plain = base.layout.to_plotly_json()
    axis = {"seconds": seconds_axis, "sent": count_axis}.get(quantity, rate_axis)(values, _AXES[quantity])
    sizes = [float(p.nbytes) for one in sweeps for p in one.points]
    figure = composed(
        base, traces, xaxis={**plain["xaxis"], **bytes_axis(sizes, "payload: the whole tensor (log scale)")},
        yaxis={**plain["yaxis"], **axis}, showlegend=True,
    )  # fmt: skip
    if quantity == "bus":
        for rate in sorted({s.link_bytes_per_second for s in sweeps if s.link_bytes_per_second is not None}):
            guide(figure, rate, f"link {format_bytes_per_second(rate)}", axis="y")
            figure.layout.annotations[-1].update(x=0.01, xanchor="left", yanchor="bottom")
    return figure


def _value(sweep: CollectiveSweep, point: CollectivePoint, quantity: Quantity) -> float | None:
    if quantity == "seconds":
        return point.median_seconds
    if quantity == "bus":
        return sweep.bus_bytes_per_second(point)
    return None if point.sent_bytes is None else max(point.sent_bytes) / point.nbytes


def _ends(sweep: CollectiveSweep, point: CollectivePoint, quantity: Quantity) -> tuple[float, float]:
    """Return the ends of the 95 % bar; of bytes, which are counted, there is none."""
    value = _value(sweep, point, quantity) or 0.0
    if quantity == "sent" or point.interval_seconds is None:
        return value, value
    low, high = point.interval_seconds
    return (low, high) if quantity == "seconds" else (value * point.median_seconds / high, value * point.median_seconds / low)


def _points(sweep: CollectiveSweep, quantity: Quantity, number: int) -> dict[str, Any]:
    color, symbol = _SERIES[number % len(_SERIES)]
    points = [p for p in sweep.points if _value(sweep, p, quantity) is not None]
    values = [_value(sweep, p, quantity) or 0.0 for p in points]
    ends = [_ends(sweep, p, quantity) for p in points]
    badge = sweep.evidence.badge
    return {
        "type": "scatter", "mode": "lines+markers", "x": [p.nbytes for p in points], "y": values, "cliponaxis": False,
        "error_y": {
            "type": "data", "symmetric": False, "array": [high - v for v, (_, high) in zip(values, ends, strict=True)],
            "arrayminus": [v - low for v, (low, _) in zip(values, ends, strict=True)], "color": color, "thickness": 1.5, "width": 4,
        },
        "marker": palette.marker(badge, color, symbol, 9), "line": palette.line(badge, color, 1.5),
        "name": ink(f"{sweep.label} ({badge.value.lower()})"), "customdata": [_point_words(sweep, p) for p in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _point_words(sweep: CollectiveSweep, p: CollectivePoint) -> str:
    bus = sweep.bus_bytes_per_second(p)
    rate = "" if math.isnan(bus) else f", bus bandwidth {format_bytes_per_second(bus)}"
    sent = "" if p.sent_bytes is None else f", sent by the busiest rank {format_bytes(max(p.sent_bytes))}"
    return f"{format_bytes(p.nbytes)}: {format_seconds(p.median_seconds)}{rate}{sent}"


def _curves(sweep: CollectiveSweep, quantity: Quantity, chosen: Sequence[str] | None) -> list[tuple[str, list[CollectiveCost]]]:
    """Return each chosen algorithm's costs over the sizes, its own algorithm first."""
    from gpulab import models
    from gpulab.errors import InputError

    known = models.collective_algorithms(sweep.operation)
    names = [n for n in (sweep.algorithm, *known) if chosen is None or n in chosen]
    if quantity == "sent":
        link = {}
    elif len({p.nbytes for p in sweep.points}) < _FEWEST_TO_FIT:
        return []
    else:
        latency, bandwidth = sweep.message()
        link = {"latency_seconds": latency, "bandwidth_bytes_per_second": bandwidth}
    low, high = (math.log(f(p.nbytes for p in sweep.points)) for f in (min, max))
    sizes = [math.exp(low + (high - low) * k / (_CURVE_POINTS - 1)) for k in range(_CURVE_POINTS)]
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append((name, [models.collective_cost(sweep.operation, n, sweep.ranks, name, **link) for n in sizes]))
        except InputError:  # an algorithm for other numbers of ranks
            continue
    return found


def _curve(
    sweep: CollectiveSweep, name: str, costs: Sequence[CollectiveCost], quantity: Quantity, color: str, whose: str
) -> dict[str, Any]:
    if quantity == "seconds":
        y = [c.seconds for c in costs]
    elif quantity == "bus":
        y = [c.bus_bytes_per_second for c in costs]
    else:
        y = [max(c.sent_bytes(rank) for rank in range(sweep.ranks)) / c.nbytes for c in costs]
    own = f", as in {sweep.backend}" if name == sweep.algorithm and sweep.backend == "gloo" else ""
    return {
        "type": "scatter", "mode": "lines", "x": [c.nbytes for c in costs], "y": y, "line": palette.line(Badge.MODELLED, color),
        "name": ink(f"{name}{own}{whose} (modelled)"), "hoverinfo": "skip",
    }  # fmt: skip


def _describe(sweeps: Sequence[CollectiveSweep], quantity: Quantity) -> str:
    parts = []
    for one in sweeps:
        ends = "; ".join(_point_words(one, p) for p in (one.points[0], one.points[-1]))
        parts.append(f"{one.label} ({one.algorithm}): {ends}")
    what = _TITLES[quantity].removesuffix(", over the payload")
    return f"{what} over the payload. " + ". ".join(parts) + "."
