"""Figures of training: the lanes of an input pipeline, a step as the profiler recorded it, the
speed-up ladder with the gain of each technique, and compressed models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.evidence import Badge
from gpulab.figures import palette
from gpulab.figures._style import (
    INSIDE,
    MID_GREY,
    LabFigure,
    Part,
    bar_marker,
    describe,
    guide,
    ink,
    interval_bars,
    linear_seconds_axis,
    log_axis,
    on_bar,
    picture,
    row_axis,
    ticks,
    trace,
    upright,
)
from gpulab.units import format_bytes, format_ratio, format_seconds, plural

if TYPE_CHECKING:
    from gpulab.compression import WeighedModel, Weighing
    from gpulab.training import Gain, LadderResult, PipelineResult, Profile, ProfileSpan, StepSpan

_LANE = 34  # pixels of a lane
_LETTER = 0.0085  # of the picture's width: a letter of a bar's name
_NUMBERED = 0.0225  # of the picture's width that a bar needs for a number
_MARGIN = 190  # pixels of title, axis and a legend of four rows
_LANES = {"data": "load and decode", "copy": "copy", "compute": "compute"}
_MOST_ROWS = 10  # most workers with a row, unless more load the steps drawn
_HIGH = 0.62  # of a lane's height that a bar fills
_LETTERS = {"size": 11}  # of the text on a bar


def pipeline(p: PipelineResult, steps: int = 12) -> LabFigure:
    """Return the lanes of an input pipeline: the loading, copy and step of each batch, and where
    the accelerator waited.

    Parameters
    ----------
    p : PipelineResult
    steps : int
        How many of the first steps are drawn; the table covers all of them.
    """
    drawn = min(steps, p.steps)
    spans = [span for span in p.spans if span.step < drawn]
    end = max(span.end_seconds for span in spans if span.lane == "compute")
    # every worker that loads one of the steps has its own row, so that no bar hides another
    busy = 1 + max(span.worker for span in spans if span.lane == "data")
    rows = [f"worker {k}" for k in range(max(busy, min(p.workers, _MOST_ROWS)))]
    rows = [*(rows if p.workers else ["training loads"]), "copy", "compute"]
    begins = p.lane("compute")
    gaps = [
        gap
        for gap in [(0.0, begins[0].start_seconds), *p.gaps]
        if gap[0] < begins[drawn - 1].end_seconds
    ]
    waits = trace(
        "bars",
        [b - a for a, b in gaps],
        ["compute"] * len(gaps),
        "the accelerator waits",
        (f"waits {format_seconds(b - a)}" for a, b in gaps),
        base=[a for a, _ in gaps],
        width=_HIGH,
        marker={
            "color": "rgba(127,127,127,0.30)",
            "pattern": {"shape": "x", "size": 5, "fgcolor": palette.GREY},
        },
    )
    lanes = [
        _lane(
            lane,
            [span for span in spans if span.lane == lane and span.start_seconds < end],
            (p.evidence if lane == "data" else p.accelerator_evidence).badge,
            end,
        )
        for lane in _LANES
    ]
    return picture(
        f"Input pipeline: the first {plural(drawn, 'step')}, {plural(p.workers, 'worker')}",
        [p.evidence, p.accelerator_evidence],
        describe(p),
        [waits, *lanes],
        height=_MARGIN + _LANE * len(rows),
        xaxis=linear_seconds_axis(end, "time since the start"),
        yaxis=row_axis(rows),
        barmode="overlay",
        showlegend=True,
        legend={"traceorder": "normal"},
        margin={"b": 88},
    )


def _lane(lane: str, spans: Sequence[StepSpan], badge: Badge, end: float) -> Part:
    """Return the bars of one lane; the lane that loads has a row for each worker."""
    color = palette.LANES[lane]
    loads = [f"worker {span.worker}" if span.worker >= 0 else "training loads" for span in spans]
    return trace(
        "bars",
        [min(span.end_seconds, end) - span.start_seconds for span in spans],
        loads if lane == "data" else [lane] * len(spans),
        f"{_LANES[lane]} ({badge.lower()})",
        (f"batch {span.step + 1}: {_LANES[lane]} {format_seconds(span.seconds)}" for span in spans),
        base=[span.start_seconds for span in spans],
        width=_HIGH,
        marker=bar_marker(badge, color, [span.seconds for span in spans], end),
        text=[
            on_bar(str(span.step + 1), badge, color) if span.seconds > _NUMBERED * end else ""
            for span in spans
        ],
        textfont=_LETTERS,
        **INSIDE,
    )


def profile(p: Profile) -> LabFigure:
    """Return the first step as recorded by the profiler: your marks, the operators on the host and
    what they call, the kernels on the device.
    """
    begin, end = p.steps[0]
    inside = [span for span in p.spans if begin <= span.start_seconds <= end]
    # name -> lane and depth; a row without spans is not drawn
    lanes = {
        "your marks": ("mark", 0),
        "marks inside": ("mark", 1),
        "operators": ("host", 0),
        "nested calls": ("host", 1),
        "device": ("device", 0),
    }
    every = {
        name: [span for span in inside if (span.lane, span.depth) == where]
        for name, where in lanes.items()
    }
    found = {name: spans for name, spans in every.items() if spans}
    return picture(
        f"Inside {p.label}: one step",
        p.evidence,
        describe(p),
        [_profile_lane(name, spans, begin, end - begin) for name, spans in found.items()],
        height=_MARGIN + _LANE * len(found),
        xaxis=linear_seconds_axis(end - begin, "time since the step began"),
        yaxis=row_axis(list(found)),
        barmode="overlay",
        showlegend=False,
    )


def _profile_lane(name: str, spans: Sequence[ProfileSpan], begin: float, whole: float) -> Part:
    """Return a row. A name is on its bar if it fits there, else to the right of the bar if there is
    room before the next one, else only in the hover text.
    """
    color = {"mark": palette.GREY, "host": palette.BLUE, "device": palette.VERMILLION}[
        spans[0].lane
    ]
    spans = sorted(spans, key=lambda span: span.start_seconds)
    names = [
        span.name.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ")
        for span in spans
    ]
    # after the last bar there is the margin right of the axis
    follows = [*(span.start_seconds for span in spans[1:]), begin + 1.1 * whole]
    rooms = [_LETTER * (len(short) + 1) * whole for short in names]
    on_it = [span.seconds > room for span, room in zip(spans, rooms, strict=True)]
    beside = (
        after - span.end_seconds > room
        for span, after, room in zip(spans, follows, rooms, strict=True)
    )
    texts = [
        on_bar(short, Badge.MEASURED, color) if on else ink(short) if by else ""
        for short, on, by in zip(names, on_it, beside, strict=True)
    ]
    lengths = [span.seconds for span in spans]
    return trace(
        "bars",
        lengths,
        [name] * len(spans),
        mouse=(
            f"{short}: {format_seconds(length)}"
            for short, length in zip(names, lengths, strict=True)
        ),
        base=[span.start_seconds - begin for span in spans],
        width=0.7,
        marker=bar_marker(Badge.MEASURED, color, lengths, whole),
        text=texts,
        textfont=_LETTERS,
        **{**INSIDE, "textposition": ["inside" if on else "outside" for on in on_it]},
        cliponaxis=False,
    )


# The speed-up ladder.

_RUNG, _AROUND = 34, 170  # pixels: of a row; of title, axis and legend
_ROOM = 2.2  # times the furthest bar: room for the text to its right
_ROOM_POWER = 0.45  # and at least this power of the ratio that the intervals span
# The colors of the verdicts that an interval allows; the words beside each bar give them too.
_VERDICTS = {
    "faster": palette.BLUISH_GREEN,
    "slower": palette.REDDISH_PURPLE,
    "no difference shown": palette.GREY,
    "no interval": palette.GREY,
}
# A technique's three gains, each with a shape of its own.
_PLACES = (
    ("alone", "alone, relative to the script", "circle", palette.BLUE),
    ("gain", "at its place, relative to the rung before", "square", palette.ORANGE),
    ("removed", "last: all techniques relative to all but this one", "diamond", palette.VERMILLION),
)


def waterfall(result: LadderResult) -> LabFigure:
    """Return the ladder as a waterfall: each rung from the speed before it to the speed after it,
    then the combination and the product.

    The axis is logarithmic, so equal factors have equal lengths, and the lengths of the single bars
    add up to the product of the gains.

    Parameters
    ----------
    result : LadderResult
        As ``training.ladder`` returns it.
    """
    together, product, device = result.together, result.product, palette.device_color(result.device)
    overs = [rung.form.over_start for rung in result.rungs]
    before, traces = 1.0, []
    for row, (rung, over) in enumerate(zip(result.rungs, overs, strict=True)):
        color, gain = _VERDICTS[rung.gain.verdict], rung.gain
        right = max(before, *_ends(over))
        traces += [
            _step(
                row, before, over.ratio, color, f"{rung.title}: {gain} relative to the rung before"
            ),
            _beside(row, right, f"{format_ratio(gain.ratio)}, {gain.verdict}"),
            _whisker(row, over, palette.marker(Badge.MEASURED, color, size=8)),
        ]
        before = over.ratio
    row, line = len(overs), palette.line(Badge.MODELLED, device, 3)
    traces += [
        _step(row, 1.0, together.ratio, device, f"all together: {together}"),
        _beside(row, max(1.0, *_ends(together)), f"{together}<br>MEASURED"),
        _whisker(row, together, palette.marker(Badge.MEASURED, device, size=8)),
        trace("lines", [1.0, product.ratio], [row + 1] * 2, line=line),
        _beside(row + 1, max(1.0, *_ends(product)), f"{product}<br>MODELLED"),
        _whisker(row + 1, product, palette.marker(Badge.MODELLED, device, size=9)),
    ]
    ends = [end for gain in (together, product, *overs) for end in _ends(gain)]
    return _ladder(
        result,
        f"From the script to all techniques ({result.task})",
        traces,
        ("all together", "single gains multiplied"),
        ends,
        max(_ROOM, (max(1.0, *ends) / min(1.0, *ends)) ** _ROOM_POWER),
        ("speed-up over the script", "the script"),
    )


def ladder_gains(result: LadderResult) -> LabFigure:
    """Return the gain of each technique alone, at its place in the ladder, and as the last one,
    with intervals.

    Parameters
    ----------
    result : LadderResult
        As ``training.ladder`` returns it.
    """
    traces, ends = [], []
    for number, (field, title, symbol, color) in enumerate(_PLACES):
        gains = [getattr(rung, field) for rung in result.rungs]
        ends += [end for gain in gains for end in _ends(gain)]
        rows = [row + 0.22 * (number - 1) for row in range(len(gains))]
        words = (
            f"{rung.title}, {title}: {gain}" for rung, gain in zip(result.rungs, gains, strict=True)
        )
        marker = palette.marker(Badge.MEASURED, color, symbol, 9)
        traces.append({**_marks(gains, rows, marker, words, title), "showlegend": True})
    title = "The gain of a technique depends on the techniques before it"
    return _ladder(result, title, traces, (), ends, 1.0, ("speed-up", "no gain"))


def _ladder(
    result: LadderResult,
    title: str,
    traces: Sequence[Part],
    more: Sequence[str],
    ends: Sequence[float],
    room: float,
    names: tuple[str, str],
) -> LabFigure:
    """Return a picture with a row for each rung and each of ``more``. Its axis includes ``ends``,
    and ``room`` times the largest of them; ``names`` are those of the axis and of the line at 1.
    """
    rows = [*(rung.title for rung in result.rungs), *more]
    evidence = [result.evidence, result.product_evidence] if more else result.evidence
    gains = " ".join(
        f"{rung.title}: alone {rung.alone}, at its place {rung.gain}, at the end {rung.removed}."
        for rung in result.rungs
    )
    return picture(
        title,
        evidence,
        f"{describe(result)} {gains}",
        traces,
        height=_AROUND + _RUNG * len(rows),
        xaxis=log_axis("ratio", [1.0, *ends, room * max(1.0, *ends)], names[0]),
        yaxis={**ticks(range(len(rows)), rows), "range": [len(rows), -0.6], "showgrid": False},
        legend={"traceorder": "normal"},
        guides=[guide(1.0, names[1], bottom=True)],
    )


def _step(row: int, begin: float, end: float, color: str, hover: str) -> Part:
    """Return a bar on the logarithmic axis."""
    return trace(
        "lines",
        [begin, end],
        [row, row],
        mouse="%{hovertext}",
        hovertext=[hover] * 2,
        line={"color": color, "width": 14},
        opacity=0.55,
    )


def _beside(row: int, place: float, words: str) -> Part:
    return trace(
        "text",
        [1.06 * place],
        [row],
        text=[ink(words)],
        textposition="middle right",
        textfont={"size": 12, "color": MID_GREY},
        cliponaxis=False,
    )


def _marks(
    gains: Sequence[Gain], rows: list[float], marker: Any, mouse: Any, name: str = ""
) -> Part:
    """Return gains with their intervals."""
    values = [gain.ratio for gain in gains]
    error = interval_bars(values, [gain.interval for gain in gains], marker["color"], width=5)
    return trace("markers", values, rows, name, mouse, marker=marker, error_x=error)


def _whisker(row: int, gain: Gain, marker: Any) -> Part:
    return _marks([gain], [row], marker, f"relative to the script: {gain}")


def _ends(gain: Gain) -> list[float]:
    return [gain.ratio, *(gain.interval or ())]


# Compressed models.

# The numbers of two points would overlap if the points are nearer than this, a digit's width.
_NEAR_X, _NEAR_Y = 1.06, 0.008


def diet(w: Weighing) -> LabFigure:
    """Return the models as numbered points, in the order of the table: accuracy over bytes on the
    left, over time on the right.

    Parameters
    ----------
    w : Weighing
        With accuracies; a model without one is left out. Times are relative to the first model;
        each model was measured in turn with it.

    Notes
    -----
    Bars are 95 % intervals: of the accuracy over test items (and seeds), of the time over calls.
    """
    points = [(number, m) for number, m in enumerate(w.models, start=1) if m.accuracy is not None]
    color = palette.device_color(w.environment.device_kind)
    traces = []
    for axis, place, front in (
        ("x", _size, w.front_of(time=False)),
        ("x2", _time, w.front_of(size=False)),
    ):
        line = sorted((m for _, m in points if m.label in front), key=place)
        here = {"xaxis": axis, "yaxis": axis.replace("x", "y"), "showlegend": axis == "x"}
        joined = trace(
            "lines",
            [place(m) for m in line],
            [100 * (m.accuracy or 0.0) for m in line],
            "Pareto front",
            line={"color": palette.GREY, "width": 1.5, "dash": "dot"},
        )
        traces += [{**joined, **here}, {**_models(points, color, place), **here}]
    times = [end for _, m in points for end in _time_ends(m)]
    low = min([end for _, m in points for end in m.accuracy_interval or (0.0, 1.0)] + [0.9])
    margin = 0.05 * (1.0 - low)
    upward: Part = {"range": [100 * (low - margin), 100 * (1.0 + margin)]}
    right = {"matches": "y", "anchor": "x2", "showticklabels": True, "title": {"text": ""}}
    return picture(
        f"{w.task}: accuracy, size and time of compressed models",
        w.evidence,
        " ".join([describe(w), *w.sentences]),
        traces,
        height=420,
        xaxis={
            **log_axis("bytes", [_size(m) for _, m in points], "file size (log scale)"),
            "domain": (0.0, 0.46),
        },
        xaxis2={
            **log_axis("count", times, "time / time of the<br>first model (log scale)"),
            "domain": (0.56, 1.0),
            "anchor": "y2",
        },
        yaxis={**upward, "title": "accuracy on the test set (%)"},
        yaxis2={**upward, **right},
        shapes=[{**upright(1), "xref": "x2", "yref": "y2 domain"}],
    )


def _size(m: WeighedModel) -> float:
    return m.file_bytes


def _time(m: WeighedModel) -> float:
    return 1.0 if m.speedup is None else 1.0 / m.speedup


def _time_ends(m: WeighedModel) -> tuple[float, float]:
    """Return the ends of the interval of the time; the time twice where there is none."""
    if m.speedup_interval is None:
        return _time(m), _time(m)
    return 1.0 / m.speedup_interval[1], 1.0 / m.speedup_interval[0]


def _models(
    points: Sequence[tuple[int, WeighedModel]], color: str, place: Callable[[WeighedModel], float]
) -> Part:
    """Return the models as numbered points; where some overlap, the first has all their numbers."""
    across = [place(m) for _, m in points]
    upward = [100 * (m.accuracy or 0.0) for _, m in points]
    spans = [m.accuracy_interval or (0.0, 1.0) for _, m in points]
    numbers: list[list[int]] = [[] for _ in points]
    for index, (number, _) in enumerate(points):
        near = (
            k
            for k in range(index)
            if numbers[k]
            and 1 / _NEAR_X < across[index] / across[k] < _NEAR_X
            and abs(upward[index] - upward[k]) < 100 * _NEAR_Y
        )
        numbers[next(near, index)].append(number)
    ends = [_time_ends(m) for _, m in points]
    return trace(
        "markers+text",
        across,
        upward,
        "a model, numbered as in the table",
        (_model_words(m) for _, m in points),
        error_y=interval_bars(upward, [(100 * low, 100 * high) for low, high in spans], color, 1),
        **({"error_x": interval_bars(across, ends, color, 1)} if place is _time else {}),
        marker=palette.marker(Badge.MEASURED, color, size=9),
        text=[ink(", ".join(map(str, each))) for each in numbers],
        textposition="top right",
        textfont={"size": 12},
        cliponaxis=False,
    )


def _model_words(m: WeighedModel) -> str:
    low, high = m.accuracy_interval or (0.0, 1.0)
    fast = "reference" if m.speedup is None else f"a speed-up of {format_ratio(m.speedup)}"
    right = (
        f"{100 * (m.accuracy or 0.0):.1f} % accuracy (95 %: {100 * low:.1f} to {100 * high:.1f})"
    )
    return f"{m.label}: {format_bytes(m.file_bytes)}, {fast}, {right}"
