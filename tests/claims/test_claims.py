"""The claim ledger: every claim finds what the recorder times, and verdicts follow from intervals alone."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import math
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gpulab import claims, cli, recorder, recordings
from gpulab.claims import Claim, Comparison, Source, Verdict
from gpulab.claims._judge import _inside, _verdict, speaks_of
from gpulab.claims._page import page
from gpulab.compression import _integer, _sparse
from gpulab.devices import Device
from gpulab.errors import InputError
from gpulab.evidence import Environment
from gpulab.recorder import _parallel
from gpulab.recordings import Entry, Recording, Timing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def a_timing(seconds: float = 1e-3, width: float = 0.01, **changes: object) -> Timing:
    """A timing with an interval of a given relative half width; the work per call is arbitrary and the same everywhere."""
    fields: dict[str, object] = {
        "samples_seconds": np.array([seconds]), "sample_count": 100, "median_seconds": seconds,
        "interval_seconds": (seconds * (1 - width), seconds * (1 + width)), "first_call_seconds": 10 * seconds,
        "launch_seconds": seconds / 4, "with_transfer_seconds": 3 * seconds, "calls_per_sample": 1, "flops": 1e6,
        "nbytes": 1e6, "notes": (),
    }  # fmt: skip
    return Timing(**{**fields, **changes})  # type: ignore[arg-type]


def a_recording(kind: str, entries: tuple[Entry, ...], name: str = "invented") -> Recording:
    """A recording of an invented machine, used only inside these tests."""
    environment = Environment(
        date="2026-11-20T10:00:00+00:00", system="Linux", processor="P", cores=2, memory_bytes=2**34, device=f"a {kind}", device_kind=kind,
        driver=None, python="3.12.3", libraries={"torch": "2.11.0"}, command="gpulab record --minutes 8",
    )  # fmt: skip
    return Recording(name, environment, {}, {}, "0.1.0", entries)


@pytest.fixture(scope="module")
def plans() -> Iterator[dict[str, Recording]]:
    """What the recorder would time on a CPU and on a machine with eight GPUs that have everything, all with one time."""
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: str) -> object:
        return real("numpy") if name in ("cupy", "torchao", "PIL") else real(name, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        patch.setattr(_sparse, "two_four_refusal", lambda *_: "")
        patch.setattr(_integer, "refusal", lambda *_: "")
        patch.setattr(_parallel.devices, "available", lambda: [Device("cpu"), *(Device("cuda", k) for k in range(8))])
        patch.setattr(importlib.util, "find_spec", find_spec)
        yield {kind: a_recording(kind, _planned(Device(kind, 0)), kind) for kind in ("cpu", "cuda")}


def _planned(device: Device) -> tuple[Entry, ...]:
    """Every case of the recorder on a device."""
    return tuple(
        Entry(experiment.name, case.params, a_timing()) for experiment in recorder.experiments() for case in experiment.cases(device)
    )


def test_every_claim_finds_what_the_recorder_times(plans: dict[str, Recording]) -> None:
    """A claim whose parameters no experiment has would be "not recorded yet" for ever."""
    pytest.importorskip("numba")  # without it the ladders of Python kernels are not planned
    ledger = claims.ledger(plans.values())
    missing = [(f.claim.key, f.recording) for f in ledger.findings if f.verdict is Verdict.MISSING]
    assert missing == []
    assert {f.recording for f in ledger.of("single-twice-double")} == {"cpu", "cuda"}
    assert {f.recording for f in ledger.of("pinned-copies")} == {"cuda"}
    assert {f.recording for f in ledger.of("channels-last-cpu")} == {"cpu"}


def test_equal_times_decide_nothing_in_favour_of_faster(plans: dict[str, Recording]) -> None:
    """Where every time is the same within 1 %, no claim of a gain between two entries holds, not even partly."""
    asked = 0
    for finding in claims.ledger(plans.values()).findings:
        compares_entries = any(c.first != c.second and c.ratio == 1 for c in finding.comparisons)
        if compares_entries and finding.claim.low >= 1 and finding.claim.key != "overlapped-copies":
            assert finding.verdict in (Verdict.FAILS, Verdict.UNDECIDED), finding
            asked += 1
    assert asked > 30


def test_claims_are_many_and_have_sources() -> None:
    """At least 30, each once, each with a page to read, and a section where it stands."""
    listed = claims.claims()
    assert len(listed) >= 30
    assert len({claim.key for claim in listed}) == len(listed)
    assert len({claim.sentence for claim in listed}) == len(listed)
    for claim in listed:
        assert claim.source.url.startswith("https://"), claim.key
        assert claim.where, claim.key
        assert claim.sentence.endswith("."), claim.key
        assert claim.about in ("any", "cpu", "gpu"), claim.key
        assert claim.low < claim.high, claim.key
    by_key: dict[str, set[Source]] = {}
    for claim in listed:
        by_key.setdefault(claim.source.key, set()).add(claim.source)
    assert all(len(sources) == 1 for sources in by_key.values())


def test_claims_stand_in_the_sections_that_are_named() -> None:
    """As the tables of contents have it: Best Practices Guide 12.9 (5.2), Matrix Multiplication Background, February 2023 (2.3)."""
    where = {claim.key: claim.where for claim in claims.claims()}
    assert where["copies-outweigh-adding"] == "What Runs on a CUDA-Enabled Device?"  # its example; 10.1 speaks of small transfers
    assert where["larger-products"] == "Typical Tile Dimensions In cuBLAS And Performance"


PAIR = {"tip": "no_grad"}


def of_tip(without: Timing, with_it: Timing) -> Recording:
    """A CPU's recording of one tip."""
    return a_recording("cpu", (Entry("tips", {**PAIR, "form": "without"}, without), Entry("tips", {**PAIR, "form": "with"}, with_it)))


def test_ratio_and_interval_by_hand() -> None:
    """3 ms over 2 ms, 10 % wide each: 1.5, from 2.7 / 2.2 to 3.3 / 1.8."""
    finding = claims.judge("no-grad", of_tip(a_timing(3e-3, 0.1), a_timing(2e-3, 0.1)))
    (only,) = finding.comparisons
    assert only.ratio == pytest.approx(1.5)
    assert only.interval == pytest.approx((2.7 / 2.2, 3.3 / 1.8))
    assert (finding.verdict, finding.agreeing, finding.disagreeing) == (Verdict.HOLDS, 1, 0)
    assert finding.evidence is not None
    assert finding.evidence.badge == "RECORDED"


@pytest.mark.parametrize(
    ("without", "with_it", "width", "verdict"),
    [
        (2e-3, 1e-3, 0.05, Verdict.HOLDS),
        (1e-3, 2e-3, 0.05, Verdict.FAILS),
        (1.000e-3, 1e-3, 0.005, Verdict.FAILS),  # surely below a gain of 2 %
        (1.05e-3, 1e-3, 0.05, Verdict.UNDECIDED),  # from 0.95 to 1.16
    ],
)
def test_faster_is_decided_by_the_whole_interval(without: float, with_it: float, width: float, verdict: Verdict) -> None:
    """Above 1 it holds, surely below 1.02 it fails, and between nothing is said."""
    assert claims.judge("no-grad", of_tip(a_timing(without, width), a_timing(with_it, width))).verdict is verdict


def test_without_an_interval_nothing_is_decided() -> None:
    """A ratio is shown, but no verdict stands on it."""
    finding = claims.judge("no-grad", of_tip(a_timing(5e-3, interval_seconds=None), a_timing(1e-3)))
    assert finding.verdict is Verdict.UNDECIDED
    assert "5.00x (no interval)" in finding.summary


def test_ratios_for_each_sample_and_for_each_flop() -> None:
    """A batch of 256 that takes 32 times as long as one of 4 is twice as fast for each sample: (1/4) / (32/256)."""
    steps = {"workload": "cnn_training_step", "dtype": "float32"}
    recording = a_recording(
        "cpu", (Entry("catalogue", {**steps, "n": 4}, a_timing(1e-3)), Entry("catalogue", {**steps, "n": 256}, a_timing(32e-3)))
    )
    (only,) = claims.judge("larger-batches", recording).comparisons
    assert only.ratio == pytest.approx(2.0)
    assert only.case == "workload cnn_training_step, dtype float32, n 4 over 256"
    convolution = {"workload": "conv2d", "n": 4, "dtype": "float32"}
    dense, thin = a_timing(8e-3, flops=64e6), a_timing(2e-3, flops=1e6)
    recording = a_recording(
        "cpu", (Entry("catalogue", convolution, dense), Entry("catalogue", {**convolution, "workload": "depthwise_conv2d"}, thin))
    )
    (only,) = claims.judge("depthwise-time", recording).comparisons
    assert only.ratio == pytest.approx((2e-3 / 1e6) / (8e-3 / 64e6))


def test_without_its_flops_a_time_is_not_set_over_another_for_each_flop() -> None:
    """As in a file of another version: the pair is left out, and the claim is not recorded yet."""
    product = {"workload": "matmul", "dtype": "float32"}
    entries = [
        Entry("catalogue", {**product, "n": n}, a_timing(flops=flops)) for n, flops in ((64, None), (128, 1e6), (256, 0.0), (512, 1e6))
    ]
    finding = claims.judge("larger-products", a_recording("cpu", tuple(entries)))
    assert (finding.verdict, finding.comparisons) == (Verdict.MISSING, ())


def test_an_average_whose_interval_reaches_down_to_nothing() -> None:
    """One case from 0 to 2.2 ms over 1 ms: so from 0 on, up to the mean of the upper ends."""
    params = {"precision": "float32", "steps": 10}
    pairs = [(Entry("training", {**params, "model": model, "means": "plain"}, a_timing(2e-3, interval_seconds=(low, 2.2e-3))),
              Entry("training", {**params, "model": model, "means": "compile"}, a_timing(1e-3, 0.0)))
             for model, low in (("cnn", 0.0), ("transformer", 1.8e-3))]  # fmt: skip
    (one,) = claims.judge("compile-float32", a_recording("cuda", (*pairs[0], *pairs[1]))).comparisons
    assert (one.ratio, one.interval) == (pytest.approx(2), (0.0, pytest.approx(2.2)))


def test_figures_of_one_entry() -> None:
    """The first call over the median, the median over the launch, the copies over the work alone; intervals are the median's."""
    matmul = Entry("catalogue", {"workload": "matmul", "n": 4096, "dtype": "float32"}, a_timing(4e-3, 0.1, launch_seconds=1e-3))
    add = Entry("catalogue", {"workload": "add", "n": 2**22, "dtype": "float32"}, a_timing(1e-3, 0.1, with_transfer_seconds=9e-3))
    gpu = a_recording("cuda", (matmul, add))
    (launch,) = claims.judge("launch-returns-early", gpu).comparisons
    assert (launch.ratio, launch.interval) == (pytest.approx(4), pytest.approx((3.6, 4.4)))
    (copies,) = claims.judge("copies-outweigh-adding", gpu).comparisons
    assert (copies.ratio, copies.interval) == (pytest.approx(9), pytest.approx((9 / 1.1, 9 / 0.9)))
    assert [c.ratio for c in claims.judge("first-call", gpu).comparisons] == pytest.approx([10, 10])


def test_gpu_beside_cpu() -> None:
    """The recorded CPU's time over the GPU's, case by case; without a CPU's recording there is none."""
    params = {"workload": "matmul", "n": 1024, "dtype": "float32"}
    cpu = a_recording("cpu", (Entry("catalogue", params, a_timing(50e-3)),), "slow")
    gpu = a_recording("cuda", (Entry("catalogue", params, a_timing(1e-3)), Entry("catalogue", {**params, "n": 64}, a_timing(1e-5))), "fast")
    (only,) = claims.judge("gpu-10-to-1000", gpu, cpu).comparisons
    assert only.ratio == pytest.approx(50)
    assert only.case.endswith("over slow")
    assert claims.judge("gpu-10-to-1000", gpu).verdict is Verdict.MISSING
    assert claims.ledger([gpu, cpu]).of("gpu-10-to-1000")[0].verdict is Verdict.HOLDS


def test_the_cpu_of_the_same_box_is_compared_and_a_gpu_in_its_place_is_refused() -> None:
    """Both recordings of one box may have its name; 50 ms of a slower GPU over 1 ms is no GPU against a CPU."""
    params = {"workload": "matmul", "n": 1024, "dtype": "float32"}
    gpu = a_recording("cuda", (Entry("catalogue", params, a_timing(1e-3)),), "box")
    slow = (Entry("catalogue", params, a_timing(50e-3)),)
    for cpu in (a_recording("cpu", slow, "another"), a_recording("cpu", slow, "box")):
        assert claims.ledger([gpu, cpu]).of("gpu-10-to-1000")[0].verdict is Verdict.HOLDS
    machines = [line for line in page(claims.ledger([gpu, cpu])).splitlines() if line.startswith("- `box`: ")]
    assert [line.partition(", 2026")[0] for line in machines] == ["- `box`: RECORDED on a cuda", "- `box`: RECORDED on a cpu"]
    with pytest.raises(InputError, match=r"is of a device of kind 'cuda'; expected the recording of a CPU"):
        claims.judge("gpu-10-to-1000", gpu, a_recording("cuda", slow, "slow"))


def test_a_claim_of_the_largest_sizes_takes_of_each_workload_the_largest_that_both_have() -> None:
    """Small sizes decide nothing, the size of a convolution is its batch, and what only one machine has recorded is no comparison."""
    seconds = {("add", 1024): (1e-3, 4e-3), ("add", 2**22): (8e-3, 1e-3), ("conv2d", 16): (6e-3, 1e-3), ("conv2d", 64): (5e-3, 1e-3)}
    params = {case: {"workload": case[0], "n": case[1], "dtype": "float32"} for case in seconds}
    more = Entry("catalogue", {"workload": "add", "n": 2**26, "dtype": "float32"}, a_timing())
    double = {"workload": "add", "n": 2**26, "dtype": "float64"}
    cpu = a_recording("cpu", (*(Entry("catalogue", params[case], a_timing(there)) for case, (there, _) in seconds.items()), more), "slow")
    gpu = a_recording("cuda", tuple(Entry("catalogue", params[case], a_timing(here)) for case, (_, here) in seconds.items()), "fast")
    both = [dataclasses.replace(one, entries=(*one.entries, Entry("catalogue", double, a_timing()))) for one in (gpu, cpu)]
    finding = claims.judge("gpu-2-5", *both)
    assert {c.case.partition(", dtype")[0]: round(c.ratio, 3) for c in finding.comparisons} == {
        "workload add, n 4,194,304": 8.0,
        "workload conv2d, n 64": 5.0,
    }
    assert finding.verdict is Verdict.HOLDS


def compare(ratio: float, half: float = 0.01) -> Comparison:
    """A comparison with a narrow interval."""
    return Comparison("", ratio, (ratio - half, ratio + half), "a", "b")


A_CLAIM = Claim("k", "t", "s.", "r", Source("s", "t", "a", None, "https://"), "w", "any", 1, math.inf, True)


@pytest.mark.parametrize(
    ("low", "high", "of_each", "ratios", "verdict"),
    [
        (1, math.inf, True, [1.5, 2.0], Verdict.HOLDS),
        (1, math.inf, True, [1.5, 0.5], Verdict.PARTLY),
        (1, math.inf, True, [1.5, 1.005, 1.005, 1.005], Verdict.PARTLY),
        (1, math.inf, True, [1.5, None, None], Verdict.UNDECIDED),  # one agrees, none contradicts, and most tell nothing
        (1, math.inf, True, [0.5, 0.9], Verdict.FAILS),
        (2, 4, True, [2.5, 3.9], Verdict.HOLDS),
        (2, 4, True, [1.5, 4.5], Verdict.FAILS),
        (2, 4, True, [3.0, 4.5], Verdict.PARTLY),
        (0, 1.3, True, [1.2, 0.9], Verdict.HOLDS),
        (0, 1.3, True, [1.4], Verdict.FAILS),
        (3, math.inf, False, [1.1, 3.2], Verdict.HOLDS),
        (3, math.inf, False, [1.1, 2.5], Verdict.PARTLY),
        (3, math.inf, False, [0.8, 0.9], Verdict.FAILS),
        (3, math.inf, False, [3.005], Verdict.PARTLY),  # from 2.995 to 3.015: a gain, and the line is not surely reached
        (0.9, math.inf, False, [0.5, 0.6, 0.905], Verdict.UNDECIDED),  # from 0.895 to 0.915: the best may have reached it
        (1, math.inf, True, [], Verdict.MISSING),
    ],
)
def test_verdicts_by_hand(low: float, high: float, of_each: bool, ratios: list[float | None], verdict: Verdict) -> None:
    """Each rule of the page's first paragraph."""
    claim = dataclasses.replace(A_CLAIM, low=low, high=high, of_each=of_each)
    found = [Comparison("", 1.0, None, "a", "b") if ratio is None else compare(ratio) for ratio in ratios]
    assert _verdict(claim, found, [_inside(claim, one) for one in found]) is verdict


@pytest.mark.parametrize(
    ("low", "high", "of_each", "words"),
    [
        (1, math.inf, True, "more than 1x"), (2, math.inf, True, "at least 2.00x"), (3, math.inf, False, "up to 3.00x"),
        (0.9, math.inf, True, "at least 0.90x"), (0.937, math.inf, False, "up to 0.94x"), (0, 1.3, True, "at most 1.30x"),
        (2, 8, True, "2.00x to 8.00x"),
    ],
)  # fmt: skip
def test_promises_in_words(low: float, high: float, of_each: bool, words: str) -> None:
    """An efficiency of 0.9 is promised as such, not as a gain."""
    assert dataclasses.replace(A_CLAIM, low=low, high=high, of_each=of_each).promised == words


@pytest.mark.parametrize(
    ("compiled", "verdict"),
    [
        ((1e-3, 1e-3), Verdict.HOLDS),  # 2x and 1x: 1.41x on average, from 1.36x on
        ((1.6e-3, 1e-3), Verdict.FAILS),  # 1.25x and 1x: 1.12x, up to 1.16x
        ((1.4e-3, 1e-3), Verdict.UNDECIDED),  # 1.43x and 1x: 1.20x, from 1.15x to 1.24x
    ],
)
def test_an_average_is_judged_as_one(compiled: tuple[float, float], verdict: Verdict) -> None:
    """A gain "on average" is no promise of each model: the geometric mean of eager over compiled, and of the intervals' ends."""
    steps = {"precision": "float32", "steps": 10}
    recording = a_recording("cuda", tuple(
        Entry("training", {"model": model, **steps, "means": means}, a_timing(seconds, 0.02))
        for model, eager, fast in zip(("cnn", "transformer"), (2e-3, 1e-3), compiled, strict=True)
        for means, seconds in (("plain", eager), ("compile", fast))
    ))  # fmt: skip
    finding = claims.judge("compile-float32", recording)
    (only,) = finding.comparisons
    assert only.ratio == pytest.approx((2e-3 * 1e-3 / (compiled[0] * compiled[1])) ** 0.5)
    assert only.interval == pytest.approx((only.ratio * 0.98 / 1.02, only.ratio * 1.02 / 0.98))
    assert (only.case, finding.verdict) == ("geometric mean of 2 cases", verdict)


def test_an_average_needs_an_interval_of_each_case() -> None:
    """One model without an interval leaves the mean without one; none at all is not recorded yet."""
    params = {"model": "cnn", "precision": "float32", "steps": 10}
    pair = (Entry("training", {**params, "means": "plain"}, a_timing(2e-3, interval_seconds=None)),
            Entry("training", {**params, "means": "compile"}, a_timing(1e-3)))  # fmt: skip
    (only,) = claims.judge("compile-float32", a_recording("cuda", pair)).comparisons
    assert (only.ratio, only.interval, only.case) == (pytest.approx(2), None, "geometric mean of 1 case")
    assert claims.judge("compile-float32", a_recording("cuda", ())).verdict is Verdict.MISSING


def test_an_empty_recording_decides_nothing() -> None:
    """Not one verdict without a time."""
    ledger = claims.ledger([a_recording("cpu", ()), a_recording("cuda", (), "gpu")])
    assert {finding.verdict for finding in ledger.findings} == {Verdict.MISSING}
    assert claims.ledger([]).counts()[Verdict.MISSING] == len(claims.claims())


def test_the_page_is_what_the_command_writes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/claims.md is made, never edited: after a new recording or claim, run the command that it names."""
    monkeypatch.delenv("GPULAB_RECORDINGS", raising=False)
    out = tmp_path / "claims.md"
    assert cli.main(["claims", "--out", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs" / "claims.md").read_text(), "run: gpulab claims --out docs/claims.md"
    assert out.read_text() == page(claims.ledger())


def test_the_page_may_go_into_the_home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--out=~/page.md`, which no shell writes out, makes no folder of that name here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["claims", "--out=~/page.md"]) == 0
    assert [file.name for file in tmp_path.rglob("*")] in (["page.md", "here"], ["here", "page.md"])


def test_the_page_escapes_nothing_away(plans: dict[str, Recording]) -> None:
    """Every claim has a row of four cells, and every machine is named with its provenance."""
    text = page(claims.ledger(plans.values()))
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
    assert len(rows) == len(claims.claims())
    assert {line.count(" | ") for line in rows} == {3}
    assert "RECORDED on a cuda, 2026-11-20" in text


def test_the_command_lists(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """A line for each claim, by recordings of the learner's own where given."""
    own = tmp_path / "own.json"
    recordings.write(of_tip(a_timing(3e-3), a_timing(1e-3)), own)
    assert cli.main(["claims", "--recording", str(own)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(claims.claims()) + 1
    assert any(line.startswith("holds") and " no-grad " in line for line in lines)


def test_bad_input_is_one_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No such claim, no recording, a page that cannot be written."""
    with pytest.raises(InputError, match="no claim 'faster'"):
        claims.judge("faster", a_recording("cpu", ()))
    with pytest.raises(InputError, match="is no recording"):
        claims.judge("no-grad", "amd-epyc-2-cores")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="such as 'no-grad'"):
        claims.judge("no-grads", a_recording("cpu", ()))
    with pytest.raises(InputError, match="no claim"):
        claims.judge(np.array([1, 2]), a_recording("cpu", ()))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'slow' is no recording"):
        claims.judge("no-grad", a_recording("cpu", ()), "slow")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is no recording"):
        claims.ledger(["amd-epyc-2-cores"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="expected several"):
        claims.ledger("amd-epyc-2-cores")  # type: ignore[arg-type]
    assert cli.main(["claims", "--out", str(tmp_path)]) != 0
    assert "cannot be written" in capsys.readouterr().err


def test_results_round_trip() -> None:
    """A ledger is plain data."""
    ledger = claims.ledger([of_tip(a_timing(3e-3), a_timing(1e-3))])
    assert claims.Ledger.from_dict(ledger.to_dict()).to_dict() == ledger.to_dict()
    headers, rows = ledger.table()
    assert len(rows) == len(ledger.findings)
    assert {len(row) for row in rows} == {len(headers)}


def test_a_claim_speaks_of_its_devices_alone() -> None:
    """One about GPUs is never set beside a CPU."""
    gpu_claim = dataclasses.replace(A_CLAIM, about="gpu")
    assert not speaks_of(gpu_claim, a_recording("cpu", ()))
    assert speaks_of(gpu_claim, a_recording("cuda", ()))
    assert speaks_of(dataclasses.replace(A_CLAIM, about="cpu"), a_recording("cpu", ()))
    assert claims.judge("pinned-copies", a_recording("cpu", ())).verdict is Verdict.MISSING


@pytest.mark.parametrize(
    ("low", "high", "interval", "inside"),
    [
        (1, math.inf, (1.0, 1.02), None),  # surely below neither: a gain of 2 % may be
        (1, math.inf, (1.01, 1.02), True),
        (2, 4, (2.0, 4.0), True),
        (2, 4, (4.0, 5.0), None),
        (2, 4, (1.0, 2.0), None),
        (2, 4, (4.001, 5.0), False),
    ],
)
def test_the_line_itself_belongs_to_the_promise(low: float, high: float, interval: tuple[float, float], inside: bool | None) -> None:
    """Of "2 to 4" both ends hold; "more than 1x" does not hold 1, and is contradicted below 1.02 only."""
    claim = dataclasses.replace(A_CLAIM, low=low, high=high)
    assert _inside(claim, Comparison("", 1.0, interval, "a", "b")) is inside


@pytest.mark.parametrize(
    ("low", "of_each", "ends", "verdict"),
    [
        (1, True, [1.5, None], Verdict.HOLDS),  # half of the cases are at least half
        (1, True, [0.5, None], Verdict.FAILS),
        (1, True, [0.5, None, None], Verdict.UNDECIDED),
        (3, False, [None], Verdict.UNDECIDED),
        (3, False, [1.02], Verdict.FAILS),  # a gain begins above 2 %
        (3, False, [0.9, 1.0], Verdict.FAILS),
        (3, False, [0.9, 0.9, None], Verdict.UNDECIDED),  # the best case may be the third
    ],
)
def test_half_of_the_cases_are_enough(low: float, of_each: bool, ends: list[float | None], verdict: Verdict) -> None:
    """It takes "at least half", as the page says, of cases that are points; and "gains at all" is more than 2 %."""
    claim = dataclasses.replace(A_CLAIM, low=low, of_each=of_each)
    found = [Comparison("", 1.0, None if end is None else (end, end), "a", "b") for end in ends]
    assert _verdict(claim, found, [_inside(claim, one) for one in found]) is verdict


def test_what_was_compared_in_a_table_and_in_one_line() -> None:
    """3 ms over 2 ms, 10 % wide each (by hand above), beside a machine that does not speak of the claim."""
    finding = claims.judge("no-grad", of_tip(a_timing(3e-3, 0.1), a_timing(2e-3, 0.1)))
    assert finding.table() == (("no-grad: more than 1x", "ratio"), [("", "1.50x [1.23x, 1.83x]")])
    assert repr(finding) == "<no-grad on invented: holds>"
    missing = dataclasses.replace(finding, recording="", verdict=Verdict.MISSING, comparisons=(), evidence=None)
    assert repr(missing) == "<no-grad on no machine: not recorded yet>"
    ledger = claims.Ledger((finding, missing))
    assert repr(ledger) == "<ledger of 1 claim, 2 verdicts: 1 holds, 1 not recorded yet>"
    sentence, source = "torch.no_grad makes inference faster.", "PyTorch performance tuning guide, " + finding.claim.where
    assert ledger.table()[1] == [
        (sentence, source, "more than 1x", "invented", "RECORDED", "holds", "1.50x [1.23x, 1.83x]"),
        (sentence, source, "more than 1x", "none", "RECORDED", "not recorded yet", "not recorded yet"),
    ]


def test_the_page_without_a_machine() -> None:
    """Every claim is there, and that nothing is recorded is said once for all and once for each; of a named machine with its name."""
    text = page(claims.ledger([]))
    assert "\n\nNo machine is recorded yet.\n\n" in text
    assert text.count("| not recorded yet (no machine of this kind) |") == len(claims.claims())
    assert "| not recorded yet (`invented`) |" in page(claims.ledger([a_recording("cpu", ())]))


def test_scaling_is_set_over_two_four_and_eight_ranks(plans: dict[str, Recording]) -> None:
    """Of a machine with eight GPUs each number of ranks is a case, and of the reference kernel each depth of the tile."""
    ledger = claims.ledger([plans["cuda"]])
    scaling, tiled = ledger.of("ddp-near-linear")[0], ledger.of("matmul-94")[0]
    ranks = {one.case.partition("ranks ")[2].partition(",")[0] for one in scaling.comparisons}
    assert ranks == {"1 over 2", "1 over 4", "1 over 8"}
    assert len({one.second for one in tiled.comparisons}) == 3


def test_an_unknown_claim_is_answered_with_the_nearest() -> None:
    """Three keys at most that look like it; the first three of the ledger where none does."""
    with pytest.raises(InputError) as caught:
        claims.judge("reduction", a_recording("cpu", ()))
    assert str(caught.value) == (
        "claims: there is no claim 'reduction'; expected the key of one of gl.claims.claims(), such as "
        "'reduction-30x', 'reduction-strided', 'reduction-sequential'."
    )
    with pytest.raises(InputError, match=r"such as 'pinned-copies', 'one-large-copy', 'overlapped-copies'\.$"):
        claims.judge("zzzz", a_recording("cpu", ()))


def test_the_command_says_where_the_page_is(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line: what was judged, and the file."""
    own, out = tmp_path / "own.json", tmp_path / "claims.md"
    recordings.write(of_tip(a_timing(3e-3), a_timing(1e-3)), own)
    assert cli.main(["claims", "--recording", str(own), "--out", str(out)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"<ledger of {len(claims.claims())} claims, ")
    assert line.endswith(f"> in {out}")


def test_a_median_that_may_be_nothing_has_no_ratio_to_trust() -> None:
    """An interval that reaches down to zero gives a figure over the median none."""
    timing = a_timing(1e-3, interval_seconds=(0.0, 2e-3))
    (only,) = claims.judge("first-call", a_recording("cpu", (Entry("catalogue", {"dtype": "float32"}, timing),))).comparisons
    assert (only.ratio, only.interval) == (pytest.approx(10), None)


def test_what_is_promised_of_the_best_case_alone() -> None:
    """By their sources' words: "up to", "about" on one machine, a best kernel. All others promise it of each case."""
    assert {one.key for one in claims.claims() if not one.of_each} == {"reduction-30x", "matmul-94", "tf32-7x", "amp-3x"}


# By the column "read as", written down once more by hand: which cases of a machine that has everything a claim speaks of.
CASES = {
    "one-large-copy": [f"direction {way}, memory {kind}, 4.00 KiB over 4.00 MiB"
                       for way in ("to_device", "to_host") for kind in ("pageable", "pinned")],
    "copies-outweigh-adding": [f"workload add, n {n}, dtype float32" for n in ("4,194,304", "16,777,216", "67,108,864")],
    "launch-returns-early": [f"workload {one}, dtype float32" for one in ("matmul, n 4,096", "attention, n 4,096", "conv2d, n 256")],
    "graph-launches": ["launches 1,000"],
    "item-waits": ["reads_loss 1 over 0, steps 50"],
    "workers-help": [f"workers 0 over {one}, batch 32, size 128" for one in (1, 2, 4, 8)],
    "four-workers": [f"workers {one} over 4, batch 32, size 128" for one in (0, 1, 2, 8)],
    "single-twice-double": ["operation gemm, n 8,192", *(f"workload matmul, n {n}" for n in ("1,024", "2,048", "4,096"))],
    **{key: [f"n {n}" for n in ("1,024", "4,096", "8,192")] for key in ("half-2-to-8", "tf32-7x", "fp8-twice")},
    "sizes-of-eight": ["n 1,023 over 1,024", "n 4,095 over 4,096", "n 8,191 over 8,192"] * 2,  # of float16 and of bfloat16
    "amp-3x": [f"model {one}, steps 10" for one in ("cnn", "transformer")] * 2,
    "larger-batches": ["workload cnn_training_step, n 4 over 256, dtype float32",
                       "workload transformer_training_step, n 1 over 16, dtype float32"],
    "pruned-3x": ["layer linear, dtype float32, n 4,096, rows 1"],
    "two-four-twice": ["layer linear, dtype float16, n 4,096, rows 4,096"],
    "groups-cost-time": [f"layer convolution, form dense, groups {one} over 1, dtype float32, n 128, side 56, batch 64"
                         for one in (4, 32, 128)],
    **{key: [f"family reduction, n {n}" for n in ("4,194,304", "67,108,864")]
       for key in ("reduction-strided", "reduction-sequential", "reduction-30x")},
    **{key: [f"family transpose, n {n}" for n in ("2,048", "8,192")] for key in ("transpose-tiled", "transpose-padded")},
    "matmul-coalesced": ["family matmul, n 4,096"],
    "matmul-94": ["family matmul, n 4,096"] * 3,
    "larger-products": [f"workload matmul, n {n}, dtype float32"
                        for n in ("64 over 128", "128 over 256", "256 over 512", "512 over 1,024")],
    "activations-alike": ["n 67,108,864, dtype float32"],
    "depthwise-time": [f"n {n}, dtype float32" for n in (1, 2, 4, 16, 64, 256)],
    "gpu-2-5": [f"workload {one}, dtype float32, over cpu" for one in (
        "matmul, n 4,096", "attention, n 4,096", "solve, n 6,144", "add, n 67,108,864", "exp, n 67,108,864", "sum, n 67,108,864",
        "softmax, n 65,536", "fft, n 16,777,216", "sort, n 16,777,216", "conv2d, n 256")],
}  # fmt: skip


@pytest.mark.parametrize("key", sorted(CASES))
def test_a_claim_speaks_of_the_cases_that_it_is_read_as(plans: dict[str, Recording], key: str) -> None:
    """Neither fewer nor others, whatever a recording of today has of them."""
    pytest.importorskip("numba")  # without it the ladders of Python kernels are not planned
    finding = claims.judge(key, plans["cuda"], plans["cpu"])
    assert sorted(one.case for one in finding.comparisons) == sorted(CASES[key])


def test_copies_of_64_kib_and_more_are_set_beside_pinned_ones(plans: dict[str, Recording]) -> None:
    """Both ways, each power of two from 64 KiB to 1 GiB: fifteen sizes."""
    cases = [one.case for one in claims.judge("pinned-copies", plans["cuda"]).comparisons]
    assert len(cases) == 2 * 15
    assert {"direction to_device, 64.0 KiB", "direction to_host, 1.00 GiB"} <= set(cases)
    assert not any("32.0 KiB" in case for case in cases)


def test_kernels_of_8_bits_are_set_beside_float32(plans: dict[str, Recording]) -> None:
    """Of a CPU: torch's own kernels and torchao's, each beside the dense layer without zeros."""
    found = claims.judge("int8-2-to-4", plans["cpu"]).comparisons
    assert [one.case for one in found] == ["layer linear, dtype float32, n 1,024, rows 64"] * 2
    assert len({one.second for one in found}) == 2
    assert len({one.first for one in found}) == 1


def test_how_near_a_key_must_be_to_be_proposed() -> None:
    """By Python's own ratio, twice the letters in common over all: "pi000" and a key of 14 share four, 8 of 19, which is near enough."""
    assert difflib.SequenceMatcher(None, "gpu-10-to-1000", "pi000").ratio() == 8 / 19
    with pytest.raises(InputError, match=r"such as 'gpu-10-to-1000'\.$"):
        claims.judge("pi000", a_recording("cpu", ()))
