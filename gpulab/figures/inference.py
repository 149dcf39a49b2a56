"""The figure of a plan for text generation: tokens per second over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab.figures import palette
from gpulab.figures._style import LabFigure, composed, count_axis, frame, guide, ink
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
    first = plans[0]
    most = first.largest_batch
    top = plans[-1].tokens_per_second
    chosen = [plan for plan in plans if plan.batch == batch]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": mode,
            "x": [plan.batch for plan in those],
            "y": [plan.tokens_per_second for plan in those],
            "name": ink(name),
            "customdata": [_words(plan) for plan in those],
            "hovertemplate": "%{customdata}<extra></extra>",
            **look,
        }
        for those, mode, name, look in (
            (
                plans,
                "lines",
                "at most (modelled)",
                {"line": palette.line(first.evidence.badge, palette.BLUE)},
            ),
            (
                chosen,
                "markers",
                f"a batch of {batch}",
                {"marker": palette.marker(first.evidence.badge, palette.BLUE, "circle", 12)},
            ),
        )
        if those
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [size],
            "y": [rate],
            "name": ink(f"products of all layers ({evidence.badge.value.lower()})"),
            "marker": palette.marker(evidence.badge, palette.VERMILLION, "diamond", 12),
            "hovertemplate": f"batch {size:,}: {format_number(rate)} tokens/s<extra></extra>",
        }
        for size, rate, evidence in measured
    ]
    description = (
        f"{first.model.name} on {first.device}, {first.weights} weights, {first.context:,} "
        f"positions: {format_number(first.tokens_per_second)} tokens per second at batch "
        f"{first.batch:,}, {format_number(top)} at batch {plans[-1].batch:,}, at most."
    )
    base = frame(
        "Tokens per second over the batch",
        [first.evidence, *(evidence for _, _, evidence in measured)],
        description,
    )
    plain = base.layout.to_plotly_json()
    rates = [plan.tokens_per_second for plan in plans] + [rate for _, rate, _ in measured]
    sizes = [float(plan.batch) for plan in plans]
    figure = composed(
        base,
        traces,
        xaxis={**plain["xaxis"], **count_axis(sizes, "sequences in the batch (log scale)")},
        yaxis={**plain["yaxis"], **count_axis(rates, "tokens per second (log scale)")},
    )
    if most and plans[0].batch <= most <= plans[-1].batch:
        guide(figure, most, f"{plural(most, 'sequence')} fit", before=most > plans[-1].batch / 4)
    return figure


def _words(plan: InferencePlan) -> str:
    return (
        f"batch {plan.batch:,}: {format_number(plan.tokens_per_second)} tokens/s, a step takes "
        f"{format_seconds(plan.step_seconds)}, limited by {plan.limit}"
    )
