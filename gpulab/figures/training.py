"""Figures of training: one run with its loss and the time of its parts, and the race of two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.figures import palette
from gpulab.figures._style import LabFigure, composed, frame, ink, linear_axis, linear_bytes_axis, loss_axis
from gpulab.training.comparisons import RaceResult
from gpulab.training.results import format_rate
from gpulab.units import format_bytes, format_ratio, plural

if TYPE_CHECKING:
    from gpulab.training import Moment

# The sides of a race and the parts of a step; these pictures compare no devices, so the hues may be used again.
SIDES = (palette.ORANGE, palette.BLUE)
_MOST_POINTS = 600  # of a curve: more than pixels only cost time
_DECADES = 10.0  # times the first loss: an axis from 0 to beyond that would press what learns into one line
_WIDTHS = (5.0, 2.0)  # of the two sides' bold lines: where they coincide, the first shows on both sides of the second
_SMOOTHED = 20  # a curve's bold line is the mean of so many steps, a twentieth of it at most


def race(r: RaceResult | Moment) -> LabFigure:
    """Return both losses step by step, the samples a second with their intervals, and the peak memory of each.

    Parameters
    ----------
    r : RaceResult or Moment
        A finished race, or an intermediate state of a running one.
    """
    done = isinstance(r, RaceResult)
    losses: Sequence[Any] = (r.first.losses, r.second.losses) if isinstance(r, RaceResult) else r.losses
    rates = (r.first.samples_per_second, r.second.samples_per_second) if isinstance(r, RaceResult) else r.samples_per_second
    spans = (r.first.samples_per_second_interval, r.second.samples_per_second_interval) if isinstance(r, RaceResult) else (None, None)
    peaks = (r.first.peak_bytes, r.second.peak_bytes) if isinstance(r, RaceResult) else r.peak_bytes
    title = f"{r.names[1]} against {r.names[0]}" + ("" if done else f": step {max(map(len, losses))} of {r.steps}")  # type: ignore[union-attr]
    base = frame(title, r.evidence, _race_in_words(r.names, losses, rates, spans, peaks), height=420)
    traces: list[dict[str, Any]] = []
    for name, values, color, width in zip(r.names, losses, SIDES, _WIDTHS, strict=True):
        traces += _curve(np.asarray(values, dtype=float), name, color, max(map(len, losses)), width)
    traces += [_bars(rates, spans, "x2", lambda v: f"{v:,.0f}"), _bars(peaks, (None, None), "x3", format_bytes)]
    axis = base.layout.xaxis.to_plotly_json()
    sides = {
        **axis,
        "tickmode": "array",
        "tickvals": [0, 1],
        "range": [-0.6, 1.6],
        "tickprefix": "",
        "ticksuffix": "",
        "showgrid": False,
        "tickangle": 0,
    }
    top = [v for v in (*rates, *(span[1] for span in spans if span)) if v]
    layout = {
        "xaxis": {**axis, "title": {"text": ink("step")}, "domain": [0, 0.44]},
        "yaxis": {**axis, **_loss_axis(losses)},
        "xaxis2": {**sides, "ticktext": _under(rates, lambda v: f"{v:,.0f}"), "domain": [0.55, 0.7], "anchor": "y2"},
        "yaxis2": {**axis, **linear_axis(1.08 * max(top, default=1.0), "samples a second", lambda v: f"{v:,.0f}"), "anchor": "x2"},
        "xaxis3": {**sides, "ticktext": _under(peaks, format_bytes), "domain": [0.85, 1.0], "anchor": "y3"},
        "yaxis3": {**axis, **linear_bytes_axis(1.08 * max((p for p in peaks if p), default=1.0), "peak memory of tensors"), "anchor": "x3"},
        "bargap": 0.35,
        "showlegend": True,  # also where one side has no finite loss
    }
    return composed(base, traces, **layout)


def _curve(values: np.ndarray, name: str, color: str, steps_shown: int, width: float = 2.5) -> list[dict[str, Any]]:
    """Return the loss of each step, thin, and its running mean, bold; a loss that is no number ends both with a cross.

    ``steps_shown`` is how many steps the axis has: what stands at its right end has its word on the left.
    """
    finite = np.isfinite(values)
    kept = values[: int(np.argmin(finite))] if len(values) and not finite.all() else values
    if not len(kept):
        return []
    steps = np.arange(len(kept))
    window = max(1, min(_SMOOTHED, len(kept) // 20))
    sums = np.cumsum(np.insert(kept, 0, 0.0))
    mean = (sums[window:] - sums[:-window]) / window
    every = max(1, math.ceil(len(kept) / _MOST_POINTS))
    hover = "step %{x:d}: %{y:.4g}<extra></extra>"  # without a format the axis' ink would come with it
    thin = {
        "type": "scatter", "mode": "lines", "x": steps[::every], "y": kept[::every], "line": {"color": color, "width": 1}, "opacity": 0.45,
        "showlegend": False, "hovertemplate": hover,
    }  # fmt: skip
    bold = {
        "type": "scatter", "mode": "lines", "x": steps[window - 1 :][::every], "y": mean[::every], "line": {"color": color, "width": width},
        "name": ink(name), "hoverinfo": "skip",
    }  # fmt: skip
    traces = [thin, bold] if len(kept) > 1 else [{**bold, "mode": "markers", "marker": {"color": color, "size": 7}}]
    if len(kept) < len(values):
        cross = {"symbol": "x", "size": 11, "color": color}
        place = "bottom left" if 2 * len(kept) > steps_shown else "middle right"
        traces.append(
            {
                "type": "scatter", "mode": "markers+text", "x": [len(kept) - 1], "y": [kept[-1]], "marker": cross, "showlegend": False,
                "text": [ink("diverged")], "textposition": place, "cliponaxis": False,
                "hovertemplate": "the next loss is not a number<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _loss_axis(losses: Sequence[Any]) -> dict[str, Any]:
    """Return a linear axis from 0 that holds every loss but rare spikes; a log axis where a loss shot up by decades and stayed a while."""
    values = np.concatenate([np.asarray(one, dtype=float) for one in losses]) if losses else np.zeros(0)
    values = values[np.isfinite(values)]
    high = min(float(values.max()), 2 * float(np.quantile(values, 0.97))) if len(values) else 1.0
    begun = max((float(one[0]) for one in losses if len(one) and np.isfinite(one[0])), default=high)
    if high > _DECADES * begun > 0 and values.min() > 0:
        return loss_axis(values)
    return linear_axis(max(high, 1e-9), "loss", lambda v: f"{v:g}")


def _under(values: Sequence[float | None], text: Any) -> list[str]:
    """Return what stands under each bar: whose it is, and its value."""
    told = [(text(value) if value else "not known").replace(" ", "<br>") for value in values]  # a word a line, or the two would touch
    return [ink(f"{side}<br>{words}") for side, words in zip(("first", "second"), told, strict=True)]


def _bars(values: Sequence[float | None], spans: Sequence[Any], axis: str, text: Any) -> dict[str, Any]:
    heights = [value or 0.0 for value in values]  # a bar that is not there yet is flat: without one, its axes would have no place
    error = {}
    if any(spans):
        up = [span[1] - height if span else None for span, height in zip(spans, heights, strict=True)]
        down = [height - span[0] if span else None for span, height in zip(spans, heights, strict=True)]
        error = {"error_y": {"type": "data", "array": up, "arrayminus": down, "symmetric": False, "color": palette.GREY, "width": 6}}
    return {
        "type": "bar", "x": [0, 1], "y": heights, "xaxis": axis, "yaxis": axis.replace("x", "y"), "marker": {"color": list(SIDES)},
        "showlegend": False, "hovertext": [text(height) for height in heights], "hovertemplate": "%{hovertext}<extra></extra>", **error,
    }  # fmt: skip


def _race_in_words(names: Sequence[str], losses: Sequence[Any], rates: Sequence[Any], spans: Sequence[Any], peaks: Sequence[Any]) -> str:
    parts = []
    for name, values, rate, span, peak in zip(names, losses, rates, spans, peaks, strict=True):
        last = f"loss {values[-1]:.3g} after {plural(len(values), 'step')}" if len(values) else "no step yet"
        speed = "" if rate is None else f", {format_rate(rate, span)} samples a second"
        memory = "" if peak is None else f", peak {format_bytes(peak)}"
        parts.append(f"{name}: {last}{speed}{memory}")
    ratio = f" The second trains at {format_ratio(rates[1] / rates[0])} the speed of the first." if all(rates) else ""
    return f"{'; '.join(parts)}.{ratio}"
