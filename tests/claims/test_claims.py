"""The claim ledger: verdicts follow from recorded intervals alone."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from gpulab import claims, cli, recordings
from gpulab.claims import Verdict
from gpulab.recordings import Entry, Recording
from made_recordings import MATMUL, a_recording, a_timing

ROOT = Path(__file__).resolve().parents[2]
Span = tuple[float, float]


def machine(kind: str, *entries: Entry, name: str = "made") -> Recording:
    """Return a recording of an invented device of the given kind."""
    environment = dataclasses.replace(
        a_recording().environment, device_kind=kind, device=f"a {kind}"
    )
    return a_recording(environment=environment, entries=entries, name=name)


def judge(key: str, *machines: Recording) -> claims.Finding:
    """Return the ledger's first finding about a claim on these machines."""
    return claims.ledger(machines).of(key)[0]


def entry(experiment: str, span: Span | None, **params: Any) -> Entry:
    """Return an entry whose median is the middle of ``span`` in seconds, or 1 s without it."""
    median = 1.0 if span is None else (span[0] + span[1]) / 2
    return Entry(experiment, params, a_timing(median_seconds=median, interval_seconds=span))


# For each claim, as its source words it: the parameters of the ratio's first time, and those that
# differ for the second.
PAIRS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "fused-optimizer": ({"means": "not fused", "precision": "float32"}, {"means": "fused"}),
    "channels-last-gpu": ({"means": "plain", "precision": "bfloat16"}, {"means": "channels_last"}),
    "checkpoint-30": ({"means": "checkpoint", "precision": "float32"}, {"means": "plain"}),
    "amp-3x": ({"means": "plain", "precision": "float32"}, {"precision": "bfloat16"}),
}
HOLDS, PARTLY, FAILS = Verdict.HOLDS, Verdict.PARTLY, Verdict.FAILS
UNDECIDED, MISSING = Verdict.UNDECIDED, Verdict.MISSING


@pytest.mark.parametrize(
    ("key", "spans", "verdict", "counts"),
    [
        # Promise: more than 1x in each case. An interval above 1 agrees, one below 1.02 disagrees.
        ("fused-optimizer", [(1.5, 1.6), (1.01, 3.0)], HOLDS, (2, 0)),
        ("fused-optimizer", [(1.5, 1.6), (0.5, 0.6)], PARTLY, (1, 1)),
        ("fused-optimizer", [(1.01, 1.02), (0.5, 0.6)], PARTLY, (1, 1)),
        ("fused-optimizer", [(1.5, 1.6), (0.9, 1.1)], HOLDS, (1, 0)),
        ("fused-optimizer", [(1.5, 1.6), (0.9, 1.1), None], UNDECIDED, (1, 0)),
        ("fused-optimizer", [(1.0, 1.019), (0.9, 1.1)], FAILS, (0, 1)),
        ("fused-optimizer", [(1.0, 1.02)], UNDECIDED, (0, 0)),
        ("fused-optimizer", [(0.5, 0.6), None, None], UNDECIDED, (0, 1)),
        ("fused-optimizer", [None], UNDECIDED, (0, 0)),
        ("fused-optimizer", [], MISSING, (0, 0)),
        # Promise: 1.08x to 1.35x in each case, both ends included.
        ("channels-last-gpu", [(1.08, 1.35)], HOLDS, (1, 0)),
        ("channels-last-gpu", [(1.07, 1.2)], UNDECIDED, (0, 0)),
        ("channels-last-gpu", [(1.35, 1.5)], UNDECIDED, (0, 0)),
        ("channels-last-gpu", [(1.36, 1.5), (1.0, 1.07)], FAILS, (0, 2)),
        ("channels-last-gpu", [(1.1, 1.2), (1.36, 1.5)], PARTLY, (1, 1)),
        # Promise: at most 1.3x in each case.
        ("checkpoint-30", [(0.5, 0.6), (1.1, 1.3)], HOLDS, (2, 0)),
        ("checkpoint-30", [(1.31, 1.4)], FAILS, (0, 1)),
        # Promise: up to 3x. One case that reaches it is enough; a smaller gain holds partly.
        ("amp-3x", [(1.1, 1.2), (3.0, 3.4)], HOLDS, (1, 1)),
        ("amp-3x", [(0.5, 0.6), (1.03, 2.5)], PARTLY, (0, 2)),
        ("amp-3x", [(2.9, 3.1)], PARTLY, (0, 0)),
        ("amp-3x", [(1.02, 1.02), (0.8, 0.9)], FAILS, (0, 2)),
        ("amp-3x", [(0.8, 0.9), None], UNDECIDED, (0, 1)),
        ("amp-3x", [(0.9, 3.1)], UNDECIDED, (0, 0)),
    ],
)
def test_verdicts_by_hand(
    key: str, spans: list[Span | None], verdict: Verdict, counts: tuple[int, int]
) -> None:
    """Each rule in the first paragraph of docs/claims.md, from intervals of the ratio."""
    first, second = PAIRS[key]
    entries = [
        each
        for number, span in enumerate(spans)
        for each in (
            entry("training", span, model=f"m{number}", steps=10, **first),
            entry("training", (1.0, 1.0), model=f"m{number}", steps=10, **{**first, **second}),
        )
    ]
    finding = judge(key, machine("cuda", *entries))
    assert (finding.verdict, (finding.agreeing, finding.disagreeing)) == (verdict, counts)
    ratios = [one.ratio for one in finding.comparisons]
    assert ratios == sorted(ratios)
    assert len(ratios) == len(spans)


def of_tip(without: Span | None, with_it: Span) -> Recording:
    """A CPU's recording of one tip."""
    forms = (("without", without), ("with", with_it))
    return machine("cpu", *(entry("tips", span, tip="no_grad", form=form) for form, span in forms))


def test_ratio_and_interval_by_hand() -> None:
    """3 s over 2 s, each known to 10 %: the ratio is 1.5, within 2.7 / 2.2 and 3.3 / 1.8."""
    finding = judge("no-grad", of_tip((2.7, 3.3), (1.8, 2.2)))
    (only,) = finding.comparisons
    assert only.ratio == pytest.approx(1.5)
    assert only.interval == pytest.approx((2.7 / 2.2, 3.3 / 1.8))
    assert finding.evidence.badge == "RECORDED"
    assert finding.table() == (("no-grad: more than 1x", "ratio"), [("", "1.50x [1.23x, 1.83x]")])
    assert "no interval" in judge("no-grad", of_tip(None, (1.0, 1.0))).summary


def test_ratios_for_each_sample_and_flop_and_figures_of_one_entry() -> None:
    """Ratios by hand: per sample, per FLOP, the first call, the launch and the copies."""
    step = {"workload": "cnn_training_step", "dtype": "float32"}
    convolution = {"workload": "conv2d", "n": 4, "dtype": "float32"}
    dense = a_timing(median_seconds=8e-3, interval_seconds=None, flops=64e6)
    thin = a_timing(median_seconds=2e-3, interval_seconds=None, flops=1e6)
    wide = {"interval_seconds": (0.9e-3, 1.1e-3), "median_seconds": 1e-3}
    add = {"workload": "add", "n": 2**22, "dtype": "float32"}
    recording = machine(
        "cuda",
        *(entry("catalogue", (s, s), n=n, **step) for n, s in ((4, 1.0), (256, 32.0))),
        Entry("catalogue", convolution, dense),
        Entry("catalogue", {**convolution, "workload": "depthwise_conv2d"}, thin),
        Entry("catalogue", add, a_timing(with_transfer_seconds=9e-3, **wide)),
        Entry("catalogue", {**MATMUL, "n": 4096}, a_timing(launch_seconds=2.5e-4, **wide)),
        Entry("catalogue", {**MATMUL, "n": 512}, a_timing(flops=None)),
        Entry("catalogue", {**MATMUL, "n": 1024}, a_timing()),
        *(
            Entry("ladders", {"rung": f"transpose-{rung}"}, a_timing(launch_seconds=s, **wide))
            for rung, s in (("naive", 4e-4), ("tiled", 5e-4), ("padded", 6e-4))
        ),
    )
    expected = {
        "larger-batches": (2.0, (2.0, 2.0)),  # (1 / 4) / (32 / 256)
        "depthwise-time": ((2e-3 / 1e6) / (8e-3 / 64e6), None),
        "copies-outweigh-adding": (9, (9 / 1.1, 9 / 0.9)),
        "launch-returns-early": (4, (3.6, 4.4)),
        "transpose-tiled": (1, (9 / 11, 11 / 9)),
        "transpose-padded": (1, None),  # of the second time, 60 % is the launch
    }
    for key, (ratio, interval) in expected.items():
        (only,) = judge(key, recording).comparisons
        assert (only.ratio, only.interval) == (
            pytest.approx(ratio), interval and pytest.approx(interval)
        )  # fmt: skip
    assert judge("larger-products", recording).verdict is MISSING  # FLOPs are unknown
    steps = [entry("pipeline", (1.0, 1.0), part="step", workers=n) for n in (0, 4)]
    assert judge("four-workers", machine("cuda", *steps)).verdict is MISSING  # none is no rival
    assert not judge("workers-help", machine("cpu", *steps)).recording  # batches without steps
    assert 200 in [round(one.ratio) for one in judge("first-call", recording).comparisons]


def test_an_average_is_judged_as_one() -> None:
    """A gain "on average" is the geometric mean of the cases and of their intervals' ends."""

    def pair(model: str, span: Span | None) -> list[Entry]:
        common = {"model": model, "precision": "float32", "steps": 10}
        return [entry("training", span, means="plain", **common),
                entry("training", (1.0, 1.0), means="compile", **common)]  # fmt: skip

    for spans, interval, verdict in (
        ([(1.9, 2.1), (0.9, 1.1)], ((1.9 * 0.9) ** 0.5, (2.1 * 1.1) ** 0.5), HOLDS),
        ([(1.2, 1.3), (0.9, 1.1)], ((1.2 * 0.9) ** 0.5, (1.3 * 1.1) ** 0.5), FAILS),
        ([(1.9, 2.1), (0.0, 2.0)], (0.0, (2.1 * 2.0) ** 0.5), UNDECIDED),
        ([(1.9, 2.1), None], None, UNDECIDED),
    ):
        entries = [each for k, span in enumerate(spans) for each in pair(f"m{k}", span)]
        finding = judge("compile-float32", machine("cuda", *entries))
        (only,) = finding.comparisons
        means = [1.0 if span is None else sum(span) / 2 for span in spans]
        assert only.ratio == pytest.approx(math.prod(means) ** 0.5)
        assert only.interval == (interval and pytest.approx(interval))
        assert (only.case, finding.verdict) == ("geometric mean of 2 cases", verdict)
    assert judge("compile-float32", machine("cuda")).verdict is MISSING


def test_a_gpu_beside_a_cpu() -> None:
    """A GPU is compared with a CPU only, case by case; one claim takes the largest size alone."""
    add = {"workload": "add", "dtype": "float32"}
    cpu = machine("cpu", entry("catalogue", (50.0, 50.0), **MATMUL), name="slow")
    gpu = machine("cuda", entry("catalogue", (1.0, 1.0), **MATMUL), name="fast")
    (only,) = judge("gpu-10-to-1000", gpu, cpu).comparisons
    assert (only.ratio, only.case.rpartition(", ")[2]) == (50, "vs. slow")
    assert judge("gpu-10-to-1000", gpu).verdict is MISSING
    assert claims.ledger([gpu, cpu]).of("gpu-10-to-1000")[0].verdict is HOLDS
    sizes = ((1024, 4.0), (2**22, 8.0), (2**26, 16.0))
    slow = machine("cpu", *(entry("catalogue", (s, s), n=n, **add) for n, s in sizes))
    fast = machine("cuda", *(entry("catalogue", (1.0, 1.0), n=n, **add) for n, _ in sizes[:2]))
    assert [one.ratio for one in judge("gpu-2-5", fast, slow).comparisons] == [8.0]


def test_claims_have_keys_sources_and_promises(approved: Any) -> None:
    """Each claim has a key, device, promise, sentence and source; an unknown key is refused."""
    ledger = claims.ledger([])
    assert approved == "".join(
        f"{c.key} ({c.about}, {c.promised}{'' if c.of_each else ', best case'}): {c.sentence} "
        f"[{c.reading}; {c.source.title}, {c.where}]\n"
        for c in (finding.claim for finding in ledger.findings)
    )
    with pytest.raises(ValueError, match="fused-optimizer"):
        ledger.of("no-such-claim")


def test_what_the_shipped_recordings_say(approved: Any) -> None:
    """Every comparison behind every verdict on the recorded machines that ship."""
    ledger = claims.ledger()
    lines = [repr(ledger)]
    for finding in ledger.findings:
        counts = f"{finding.agreeing} agree, {finding.disagreeing} do not"
        lines.append(f"{finding!r} {counts}")
        lines += [f"    {case}: {ratio}" for case, ratio in finding.table()[1]]
    assert "\n".join(lines) + "\n" == approved


def test_the_page_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/claims.md is generated: rerun `gpulab claims --out docs/claims.md` after a recording."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["claims", "--out=~/claims.md"]) == 0
    page = (tmp_path / "claims.md").read_text(encoding="utf-8")
    assert page == (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_the_command_judges_by_recordings_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    approved: Any,
) -> None:  # fmt: skip
    """``gpulab claims --recording FILE`` prints a line per claim; ``--out`` writes the page."""
    monkeypatch.chdir(tmp_path)
    recordings.write(of_tip((3.0, 3.0), (1.0, 1.0)), "own.json")
    assert cli.main(["claims", "--recording", "own.json"]) == 0
    assert cli.main(["claims", "--recording", "own.json", "--out", "page.md"]) == 0
    assert cli.main(["claims", "--out", "."]) == 2
    printed = capsys.readouterr()
    assert printed.out + printed.err == approved
    assert "| more than 1x | **holds** (`made`): 3.00x" in Path("page.md").read_text("utf-8")
