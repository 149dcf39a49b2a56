"""The figure of a plan for text generation: tokens per second over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.figures import palette
from gpulab.figures._style import LabFigure, guide, ink, log_axis, on_mouse, picture
from gpulab.units import format_number, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.evidence import Evidence
    from gpulab.models import InferencePlan


def inference(
    plans: Sequence[InferencePlan],
    batch: int | None = None,
    measured: Sequence[tuple[int, float, Evidence]] = (),
) -> LabFigure:
    """Return tokens per second over the batch, with the largest batch that fits.

    Parameters
    ----------
    plans : sequence of InferencePlan
        Of one model on one device, which differ in the batch; one of them is enough for a point.
    batch : int, optional
        The plan of this batch is marked.
    measured : sequence of (int, float, Evidence)
        Batches, the tokens per second that were reached, and where that comes from.
    """
    plans = sorted(plans, key=lambda plan: plan.batch)
    first, last = plans[0], plans[-1]
    badge, most = first.evidence.badge, first.largest_batch
    line = {"mode": "lines", "line": palette.line(badge, palette.BLUE)}
    ring = {"mode": "markers", "marker": palette.marker(badge, palette.BLUE, "circle", 12)}
    traces: list[dict[str, Any]] = [
        {
            "x": [plan.batch for plan in those],
            "y": [plan.tokens_per_second for plan in those],
            "name": ink(name),
            **on_mouse(map(_words, those)),
            **look,
        }
        for those, name, look in (
            (plans, "at most (modelled)", line),
            ([plan for plan in plans if plan.batch == batch], f"a batch of {batch}", ring),
        )
        if those
    ]
    traces += [
        {
            "mode": "markers",
            "x": [size],
            "y": [rate],
            "name": ink(f"products of all layers ({evidence.badge.value.lower()})"),
            "marker": palette.marker(evidence.badge, palette.VERMILLION, "diamond", 12),
            "hovertemplate": f"batch {size:,}: {format_number(rate)} tokens/s<extra></extra>",
        }
        for size, rate, evidence in measured
    ]
    words = (
        f"{first.model.name} on {first.device}, {first.weights} weights, {first.context:,} "
        f"positions: {format_number(first.tokens_per_second)} tokens per second at batch "
        f"{first.batch:,}, {format_number(last.tokens_per_second)} at batch {last.batch:,}, at "
        "most."
    )
    rates = [plan.tokens_per_second for plan in plans] + [rate for _, rate, _ in measured]
    evidence = [first.evidence, *(one for *_, one in measured)]
    fits = most and first.batch <= most <= last.batch
    return picture(
        "Tokens per second over the batch",
        evidence,
        words,
        traces,
        {"type": "scatter"},
        xaxis=log_axis(
            "count", [plan.batch for plan in plans], "sequences in the batch (log scale)"
        ),
        yaxis=log_axis("count", rates, "tokens per second (log scale)"),
        guides=[guide(most, f"{plural(most, 'sequence')} fit", before=most > last.batch / 4)]
        if most and fits
        else (),
    )


def _words(plan: InferencePlan) -> str:
    return (
        f"batch {plan.batch:,}: {format_number(plan.tokens_per_second)} tokens/s, a step takes "
        f"{format_seconds(plan.step_seconds)}, limited by {plan.limit}"
    )
