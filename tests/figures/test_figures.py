"""The approved text of every figure, and what all figures share: badges, units, colors."""

import functools
import json
import pathlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gpulab as gl
import numpy as np
import pytest
import results_by_hand as made
from gpulab import figures, models, parallel, precision, training, transfer
from gpulab.evidence import Badge
from gpulab.figures import LabFigure, palette

from texts import PLOTLY_MIME, figure_text

CLASS = pathlib.Path(__file__).parent / "class"
PARTS = {"LabFigure", "mimebundle", "palette"}


def _recorded(name: str = "nvidia-h200") -> gl.recordings.Recording:
    return gl.recordings.load(name)


def _numbers(value: float, *names: str) -> list[precision.Number]:
    return [precision.number(value, name) for name in names]


def _swept(**options: Any) -> LabFigure:
    s = made.sweep()
    return figures.sweep(s, s.fit("to_device"), **options)


def _kneed(quantity: Any) -> LabFigure:
    s, fit = made.kneed()
    return figures.sweep(s, fit, quantity, at_bytes=2.0**27)


CASES: dict[str, Callable[[], LabFigure]] = {
    "access, a row of floats": lambda: figures.access(models.access_pattern(1, 0, 4)),
    "access, a column of a tile": lambda: figures.access(models.access_pattern(32, 3, 4)),
    "access, doubles, half of the lanes": lambda: figures.access(
        models.access_pattern(2, 0, 8, active_lanes=16)
    ),
    "access, bytes of one element": lambda: figures.access(models.access_pattern(0, 5, 1)),
    "bandwidth": lambda: figures.bandwidth(made.bandwidth()),
    "bandwidth, a recorded GPU beside": lambda: figures.bandwidth(
        made.bandwidth(), [made.bandwidth("recorded", "cuda")]
    ),
    "break_even, found": lambda: figures.break_even(made.break_even()),
    "break_even, never": lambda: figures.break_even(made.break_even("never in this range")),
    "break_even, no accelerator": lambda: figures.break_even(made.break_even("no accelerator")),
    "class_predictions": lambda: figures.class_predictions(gl.lessons.classroom(CLASS)),
    "class_predictions, no students": lambda: figures.class_predictions(
        replace(gl.lessons.classroom(CLASS), students=())
    ),
    "class_roofline, no students": lambda: figures.class_roofline(
        replace(gl.lessons.classroom(CLASS), students=())
    ),
    "class_roofline": lambda: figures.class_roofline(gl.lessons.classroom(CLASS)),
    "comparison": lambda: figures.comparison(made.comparison(), [made.recorded_row()]),
    "comparison, without copies and interval": lambda: figures.comparison(
        replace(
            made.comparison(),
            rows=tuple(
                row._replace(
                    measurement=replace(
                        row.measurement, with_transfer_seconds=None, interval_seconds=None
                    )
                )
                for row in made.comparison().rows[:2]
            ),
        )
    ),
    "diet": lambda: figures.diet(made.weighing()),
    "gradient_window, four fates": lambda: figures.gradient_window(
        precision.gradient_window(
            [2.0**-40, *2 * [2.0**-20], *3 * [1.0], *4 * [3.0e4]], "float16", 8
        )
    ),
    "gradient_window, your own": lambda: figures.gradient_window(
        precision.gradient_window(made.gradients(), "float8_e5m2", 2.0**10, which="parameters")
    ),
    "ladder_gains": lambda: figures.ladder_gains(made.ladder()),
    "latency": lambda: figures.latency(made.latency()),
    "latency, a recorded GPU beside": lambda: figures.latency(
        made.latency(), [made.latency("recorded", "cuda")]
    ),
    "machine": lambda: figures.machine(made.machine()),
    "measurement": lambda: figures.measurement(made.measurement(1e-6)),
    "measurement, recorded, one late sample": lambda: figures.measurement(
        replace(
            made.measurement(1e-6, "recorded", "cuda"),
            samples_seconds=np.array([1e-6, 5e-6, 1.1e-6]),
            interval_seconds=None,
        )
    ),
    "memory_prediction": lambda: figures.memory_prediction(
        [made.prediction(), made.prediction(64)], ("one", "64"), free_bytes=2.0**29
    ),
    "memory_prediction, far from full": lambda: figures.memory_prediction(
        made.prediction(), free_bytes=1e12, device_kind="cuda"
    ),
    "inference": lambda: figures.inference(
        [models.inference("Llama 3 8B", "H200 SXM", batch=2**k) for k in range(9)],
        16,
        [
            (32, 1000.0, (800.0, 1300.0), made.evidence()),
            (64, 3000.0, (2000.0, 4500.0), made.evidence("recorded", "cuda")),
        ],
    ),
    "memory_snapshot": lambda: figures.memory_snapshot(made.snapshot()),
    "memory_timeline, measured": lambda: figures.memory_timeline(made.memory_trace()),
    "memory_timeline, two steps": lambda: figures.memory_timeline(
        replace(made.memory_trace(), timeline=replace(made.memory_trace().timeline, steps=(0, 5)))
    ),
    "memory_timeline, modelled": lambda: figures.memory_timeline(made.memory_trace("modelled")),
    "number_line, two formats": lambda: figures.number_line(_numbers(0.1, "float16", "bfloat16")),
    "number_line, beyond the end": lambda: figures.number_line(_numbers(70000.0, "float16")),
    "number_line, four bits": lambda: figures.number_line(_numbers(-5.1, "float4_e2m1fn", "tf32")),
    "occupancy, registers": lambda: figures.occupancy(models.occupancy(256, 64, 0, "9.0")),
    "occupancy, shared memory": lambda: figures.occupancy(
        models.occupancy(128, 32, 48 * made.KIB, "8.6")
    ),
    "overlap": lambda: figures.overlap(made.overlap()),
    "overlap, modelled": lambda: figures.overlap(
        transfer.overlap(2**20, chunks=2, link=transfer.link("pcie4-x16"), compute_seconds=60e-6)
    ),
    "parallel_chains": lambda: figures.parallel_chains(made.chains()),
    "pipeline, modelled": lambda: figures.pipeline(
        training.model_pipeline(0.06, 0.03, copy_seconds=0.01, steps=3)
    ),
    "pipeline, more workers than rows": lambda: figures.pipeline(
        training.model_pipeline(0.06, 0.03, workers=12, steps=14, cores=16), steps=2
    ),
    "pipeline, measured loading": lambda: figures.pipeline(made.pipeline_run(), steps=4),
    "pipeline_schedule, 1f1b": lambda: figures.pipeline_schedule(
        models.pipeline_schedule(3, 4, "1f1b", transfer=0.5)
    ),
    "pipeline_schedule, interleaved": lambda: figures.pipeline_schedule(
        models.pipeline_schedule(2, 2, "interleaved", chunks=2)
    ),
    "pipeline_schedule, a run": lambda: figures.pipeline_schedule(made.schedule_run()),
    "profile": lambda: figures.profile(made.profile()),
    "rank_memory": lambda: figures.rank_memory(
        [
            replace(parallel.rank_states("course", strategy=s, ranks=2), gradients_bytes=2**20)
            for s in ("ddp", "zero3", "zero3")
        ],
        2.0**30,
        "a GPU",
    ),
    "rank_timeline, two steps": lambda: figures.rank_timeline(made.rank_timeline()),
    "rank_timeline, without messages": lambda: figures.rank_timeline(made.schedule_run().timeline),
    "rank_timeline, one step": lambda: figures.rank_timeline(made.rank_timeline(), steps=1),
    "roofline": lambda: figures.roofline(made.roofline()),
    "roofline, caches alone": lambda: figures.roofline(
        replace(made.roofline(), memory=made.roofline().memory[:1], points=())
    ),
    "roofline, with others beside": lambda: figures.roofline(
        made.roofline(), [made.roofline("recorded", "cuda"), models.roofline("H200 SXM")], "float16"
    ),
    "scaling, speedup": lambda: figures.scaling(
        [made.scaling_result(), made.scaling_result("recorded", "cuda", predicted=False)],
        [models.amdahl(0.1, [1, 8, 64]), models.scaling(0.1, 400e6, 10e-6, 100e9, [1, 8, 64])],
    ),
    "scaling, efficiency": lambda: figures.scaling(made.scaling_result(), quantity="efficiency"),
    "scaling, seconds": lambda: figures.scaling(
        (), [models.gustafson(0.1, [1, 8]), models.scaling(0.1, 4e8, 1e-5, 1e11, [1, 8])], "seconds"
    ),
    "sweep, seconds": lambda: _swept(at_bytes=1e6),
    "sweep, rate": lambda: _swept(quantity="rate"),
    "sweep, a link and a recording beside": lambda: figures.sweep(
        None,
        links=[transfer.link("pcie4-x16")],
        beside=[s] if (s := transfer.recorded_sweep(_recorded())) else [],
    ),
    "sweep, a knee in seconds": lambda: _kneed("seconds"),
    "sweep, a knee in rates": lambda: _kneed("rate"),
    "waterfall": lambda: figures.waterfall(made.ladder()),
}


_figure = functools.cache(lambda name: CASES[name]())


def _plain(text: Any) -> str:
    return " ".join(re.sub("<[^>]*>", " ", str(text or "")).split())


def _body(figure: LabFigure) -> dict[str, Any]:
    """The figure as JupyterLab gets it."""
    body: dict[str, Any] = figures.mimebundle(figure)[PLOTLY_MIME]
    return body


def _style(trace: dict[str, Any]) -> str:
    """Color, and how evidence shows: hollow or filled marks and bars, dashes, hatching."""
    marker = trace.get("marker", {})
    fill = str(marker.get("color", ""))
    words = [
        next(
            (
                name.lower()
                for look in (marker, marker.get("line", {}), trace.get("line", {}))
                for name, color in vars(palette).items()
                if color == look.get("color")
            ),
            "",
        ),
        str(marker.get("symbol", "")) if "markers" in trace.get("mode", "") else "",
        str(trace.get("line", {}).get("dash", "solid")) if "lines" in trace.get("mode", "") else "",
        f"hatched {marker['pattern']['shape']}" if marker.get("pattern", {}).get("shape") else "",
        f"hatched {trace['fillpattern']['shape']}"
        if trace.get("fillpattern", {}).get("shape")
        else "",
        "hollow" if re.fullmatch(r"rgba\(.*,\s*0(\.1\d*)?\)", fill) else "",
    ]
    return ", ".join(word for word in words if word)


def _short(values: Any, digits: int = 4) -> list[Any]:
    return [float(f"{v:.{digits}g}") if isinstance(v, float) else v for v in values]


def seen(figure: LabFigure) -> str:
    """The approved text of a figure: data, titles, ticks, lines, hover texts, styles."""
    body = _body(figure)
    layout = body["layout"]
    lines = [f"subtitle: {_plain(layout['title'].get('subtitle', {}).get('text'))}"]
    for name in sorted(name for name in layout if re.fullmatch(r"[xy]axis\d*", name)):
        axis = layout[name]
        ticks = zip(
            _short(axis.get("tickvals", [])), map(_plain, axis.get("ticktext", [])), strict=False
        )
        texts = ", ".join(f"{value}={text}" for value, text in ticks)
        lines.append(f"{name} {_short(axis.get('range') or ['auto'])}: {texts}")
    for note in layout.get("annotations", ()):
        lines.append(f"at {_short([note.get('x'), note.get('y')])}: {_plain(note['text'])}")
    for shape in layout.get("shapes", ()):
        lines.append(f"line: {_short([shape.get(k) for k in ('x0', 'x1', 'y0', 'y1')])}")
    for trace in body["data"]:
        lines.append(f"style: {_plain(trace.get('name'))}: {_style(trace)}")
        hover = (
            trace.get("hovertext") or trace.get("customdata") or [trace.get("hovertemplate", "")]
        )
        lines += [f"  mouse: {_plain(text)}" for text in hover[:40] if text]
    return figure_text(figure) + "\n".join(lines) + f"\n{figure.description}\n"


@pytest.mark.parametrize("name", CASES)
def test_a_figure_shows_what_was_approved(name: str, approved: Any) -> None:
    """Numbers, units, badges and words of the picture, and its description in words."""
    assert seen(_figure(name)) == approved


def test_every_figure_has_a_case() -> None:
    """Every public figure function has at least one case."""
    assert {name.partition(",")[0] for name in CASES} == set(figures.__all__) - PARTS, (
        "add a case of each figure to CASES"
    )


@pytest.mark.parametrize("name", CASES)
def test_what_every_figure_keeps(name: str) -> None:
    """Finite JSON, a badge, a description, axis titles, a visible legend, a style per badge."""
    figure = _figure(name)
    body = _body(figure)
    json.dumps(body, allow_nan=False)
    layout = body["layout"]
    assert figure.description
    assert figure.description in figures.mimebundle(figure)["text/plain"]
    words = _plain(layout["title"].get("subtitle", {}).get("text"))
    if "no " not in name:  # an empty figure has no evidence
        assert re.search("MEASURED|RECORDED|MODELLED", words)
    assert layout["dragmode"] is False
    place = (layout["legend"]["yref"], layout["legend"]["y"], layout["legend"]["yanchor"])
    assert place == ("container", 0, "bottom")  # elsewhere it would cover the title or be cut off
    _check_axes(body)
    legend = [t["name"] for t in body["data"] if t.get("name") and t.get("showlegend") is not False]
    assert len(set(legend)) == len(legend)
    for trace in body["data"]:
        _check_trace(trace, layout)


def _check_axes(body: dict[str, Any]) -> None:
    """Numbers on an axis have a title, there or on a parallel axis; ticks with units need none."""
    for letter in "xy":
        used = {f"{letter}axis{t.get(f'{letter}axis', letter)[1:]}" for t in body["data"]}
        axes = [body["layout"][name] for name in used]
        labelled = [a for a in axes if a.get("visible", True) and a.get("showticklabels", True)]
        named = [
            re.search("[a-z]", _plain(t).lower()) for a in labelled for t in a.get("ticktext", ())
        ]
        titles = [_plain(a.get("title", {}).get("text")) for a in labelled]
        assert any(named) or any(titles) or not labelled, letter


def _check_trace(trace: dict[str, Any], layout: dict[str, Any]) -> None:
    """Lists have one length, no grid lines cross rows of bars, each badge has its own style."""
    lists = [
        trace[key]
        for key in ("x", "y", "base", "text", "customdata")
        if isinstance(trace.get(key), list)
    ]
    assert len({len(one) for one in lists} - {0, 1}) <= 1
    if trace.get("orientation") == "h":
        assert layout[trace.get("yaxis", "y").replace("y", "yaxis")].get("showgrid") is False
    style, name = _style(trace), _plain(trace.get("name"))
    if "(measured)" in name:
        assert not re.search("open|dash|dot|hollow", style), name
    if "(recorded)" in name:
        assert re.search("open|dot", style), name
    if "(modelled)" in name:
        assert re.search("open|dash|hollow|hatched", style), name


@pytest.mark.parametrize("median", [1e-9, 1e-3, 60.0])
def test_the_samples_fill_their_picture(median: float) -> None:
    """The axis is barely wider than the samples (0.9 to 1.1 of the median), in any unit."""
    low, high = figures.measurement(made.measurement(median)).layout.yaxis.range
    assert 0.8 * median < low < 0.9 * median < 1.1 * median < high < 1.2 * median


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make, kind)
        for make in (
            lambda k: figures.comparison(
                gl.timing.Comparison(
                    "w",
                    (
                        gl.timing.ComparisonRow(
                            "w", made.measurement(1.0, kind=k), None, None, None
                        ),
                    ),
                    None,
                    None,
                    None,
                    None,
                    (),
                    made.evidence(kind=k),
                )
            ),
            lambda k: figures.measurement(made.measurement(1.0, kind=k)),
            lambda k: figures.latency(made.latency(kind=k)),
            lambda k: figures.bandwidth(made.bandwidth(kind=k)),
            lambda k: figures.roofline(made.roofline(kind=k)),
        )
        for kind in ("cpu", "cuda")
    ],
)
def test_a_device_has_one_color(make: Callable[[str], LabFigure], kind: str) -> None:
    """Processor and accelerator have the same color in each figure, never the other's."""
    other = {"cpu": "cuda", "cuda": "cpu"}[kind]
    text = json.dumps(_body(make(kind))["data"]).lower()
    assert palette.device_color(kind).lower() in text
    assert palette.device_color(other).lower() not in text


def test_evidence_is_told_by_more_than_color() -> None:
    """Measured marks are filled, others hollow; the three kinds of line differ in their dashes."""
    assert [
        str(palette.marker(badge, "#000000")["symbol"]).endswith("-open") for badge in Badge
    ] == [badge is not Badge.MEASURED for badge in Badge]
    assert len({palette.line(badge, "#000000")["dash"] for badge in Badge}) == 3
    assert palette.line(Badge.MEASURED, "#000000")["dash"] == "solid"
    assert palette.device_color("cuda:0") == palette.device_color("mps")
    assert palette.device_color("cpu") != palette.device_color("cuda")


def test_narrow_bars_are_not_covered_by_their_edges() -> None:
    """Short operators have no edge, or many would merge into a white block; a long one has one."""
    profile = made.profile()
    begin, end = profile.steps[0]
    spans = [
        profile.spans[-1]._replace(start_seconds=begin + at, end_seconds=begin + at + length)
        for at, length in [(0.0, 0.5 * (end - begin)), *((0.6 + k / 1e3, 1e-3) for k in range(99))]
    ]
    figure = figures.profile(replace(profile, spans=tuple(spans)))
    assert list(figure.data[0].marker.line.width) == [1] + 99 * [0]


def test_names_from_files_stay_text() -> None:
    """A student whose name holds markup does not make the picture bold."""
    text = json.dumps(_body(_figure("class_roofline"))["data"])
    assert ("&lt;b" in text, "<b>" in text) == (True, False)


def test_long_data_is_thinned_and_keeps_its_peak() -> None:
    """Of 100,000 operators fewer than 2,000 points are drawn, the highest one among them."""
    trace = made.memory_trace()
    totals = np.random.default_rng(0).integers(0, 1000, 100_000)
    totals[77_777] = 50_000
    line = replace(
        trace.timeline,
        operators=("aten.add.Tensor",) * 100_000,
        phases=("forward",) * 100_000,
        bytes_by_category={"activations": totals},
    )
    figure = figures.memory_timeline(
        replace(trace, timeline=line, peak_bytes=50_000, peak_by_category={"activations": 50_000})
    )
    (drawn,) = figure.data
    assert len(drawn.y) < 2000
    assert (drawn.x[int(np.argmax(drawn.y))], max(drawn.y)) == (77_777, 50_000)


def test_colab_gets_plotlys_own_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colab does not draw plotly's data, so an instrument's figure is an HTML page there."""
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    instrument = gl.widgets.AccessPatterns()
    (picture,) = (part for part in instrument.children if hasattr(part, "outputs"))
    instrument.close()
    assert "plotly" in picture.outputs[0]["data"]["text/html"]
