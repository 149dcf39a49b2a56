"""What the tables of the lessons show: each whole, from results of round numbers, worked out by hand."""

from __future__ import annotations

import html
import re
from types import SimpleNamespace
from typing import Any

import pytest

from gpulab import lessons
from gpulab.evidence import Badge, Evidence, Note
from gpulab.lessons._architecture import SideBySide
from gpulab.lessons._climb import Climb, Instructions, LadderTable, Uncompiled
from gpulab.lessons._columns import ColumnLoop
from gpulab.lessons._density import DensityRow, DensitySweep, FusionGain
from gpulab.lessons._feeding import Feeding
from gpulab.lessons._five_times import FiveRow, FiveTimes, UsualTimings
from gpulab.lessons._idioms import IdiomRow, IdiomRun, Rosetta, RosettaRun
from gpulab.lessons._lighter import Budget, Grouping, GroupRow, RecordedForms, SparseRace, SparseRow
from gpulab.lessons._material import Claim, Claims, Contest, ContestRow
from gpulab.lessons._nb06_timelines import RecordedOptions
from gpulab.lessons._nb08_strategy import CASES
from gpulab.lessons._passes import Passes, Spelling, Spellings
from gpulab.lessons._precisions import RecordedPrecisions, RecordedProduct
from gpulab.lessons._recorded_gains import GainRow, RecordedGains, RecordedOverlap, Ridges
from gpulab.lessons._recorded_gpus import Launches, LaunchRow, Tuning, UnderWay, UnderWayRow
from gpulab.lessons._retraces import Retraces
from gpulab.lessons._road import Pinning, TwoKinds
from gpulab.lessons._sharded import Shard, Sharded
from gpulab.lessons._speedup import LadderClaims, TechniqueGains
from gpulab.training import Gain

LIVE = Evidence.measured("a CPU")
FAR = Evidence(Badge.RECORDED, "a GPU", date="2026-01-02")
MODEL = Evidence.modelled("nothing", "this test")
M, MI = 1e6, 2**20
FIVE = (
    FiveRow("A", "cpu", 0.4, 1e-3, 0.1, 0.2, 0.05, "once", "the wait", 1e-7, "contended"),
    FiveRow("B", "", None, None, None, None, None, "twice", "", None, "not installed"),
)
FAR_ROW = FiveRow("A", "a GPU", 0.3, 1e-3, 2e-3, 4e-3, None, "", "", None, "")
TOTALS = SimpleNamespace(
    conflict_words="32-way", sectors_per_request=4.0, global_bytes_moved=2 * MI, shared_wavefronts=2048, divergent_branches=1500
)
COUNTED = Climb("matmul-tiled", "tiles", SimpleNamespace(totals=TOTALS), 4e-3, 8e9, 1e6)  # type: ignore[arg-type]
LIBRARY = Climb("matmul-library", "the library's", None, 1e-3, 8e9, 1e6)
PLAIN = SimpleNamespace(**{**vars(TOTALS), "conflict_words": "", "sectors_per_request": None})
WIDE = Climb("copy-wide", "16 bytes", SimpleNamespace(totals=PLAIN), None, 1.0, 8e6)  # type: ignore[arg-type]
NARROW = Climb("copy-narrow", "4 bytes", None, 2e-3, 1.0, 8e6)


def finding(key: str, verdict: str, *ratios: str) -> Any:
    """What one machine says of one claim, as far as the table looks."""
    source = SimpleNamespace(title="a guide")
    claim = SimpleNamespace(key=key, sentence=f"It is said of {key}.", source=source, promised="3x")
    return SimpleNamespace(claim=claim, recording="far" if ratios else None, verdict=verdict, comparisons=ratios, evidence=FAR)


# Result, headers, rows, and what it is called in one line.
SHOWN: dict[str, tuple[Any, tuple[str, ...], list[tuple[str, ...]], str]] = {
    "columns": (
        ColumnLoop(4096, 6e-3, 2e-3, (), LIVE),
        ("4,096 x 4,096, float32", "the loop takes"),
        [
            ("row by row, as NumPy makes it (order C)", "6.00 ms"),
            ("column by column, as MATLAB keeps it (order F)", "2.00 ms"),
            ("the first over the second", "3.00x"),
        ],
        "<a loop over columns takes 3.00x as long where the array lies row by row>",
    ),
    "feeding": (
        Feeding(2 * MI, "a CPU", 6e-3, 2e-3, 3e-3, (), LIVE),
        ("session.run on a CPU", "copied in each run", "time of a run"),
        [
            ("fed in every run (feed_dict), off a boundary", "2.00 MiB", "6.00 ms"),
            ("fed, from a 64-byte boundary", "none, if used in place", "3.00 ms"),
            ("kept in a Variable", "none", "2.00 ms"),
            ("fed over kept", "", "3.00x"),
        ],
        "<feeding 2.00 MiB: a run takes 3.00x as long as one on kept data>",
    ),
    "feeding over a link": (
        Feeding(2 * MI, "a GPU", 6e-3, 2e-3, None, (), MODEL),
        ("session.run on a GPU", "copied in each run", "time of a run"),
        [
            ("fed in every run (feed_dict)", "2.00 MiB", "6.00 ms"),
            ("kept in a Variable", "none", "2.00 ms"),
            ("fed over kept", "", "3.00x"),
        ],
        "<feeding 2.00 MiB: a run takes 3.00x as long as one on kept data>",
    ),
    "retraces": (
        Retraces((32, 17, 32), 2, 0.5, 1e-3, "", LIVE),
        ("batches of rows", "32, 17, 32"),
        [
            ("programs compiled", "2"),
            ("a call with a new shape", "500 ms"),
            ("a call with a known one", "1.00 ms"),
            ("the first over the second", "500x"),
        ],
        "<3 batches, 2 programs compiled, MEASURED>",
    ),
    "retraces of new shapes alone": (
        Retraces((32, 17), 2, 0.5, None, "", LIVE),
        ("batches of rows", "32, 17"),
        [("programs compiled", "2"), ("a call with a new shape", "500 ms"), ("a call with a known one", "there was none")],
        "<2 batches, 2 programs compiled, MEASURED>",
    ),
    "retraces without JAX": (
        Retraces((32,), 1, None, None, "no JAX", MODEL),
        ("batches of rows", "32"),
        [("programs compiled", "1"), ("no calls were timed", "no JAX")],
        "<1 batch, 1 program compiled, MODELLED>",
    ),
    "a run of a table": (
        RosettaRun(
            "JAX",
            (
                IdiomRun("a", "cpu", "agrees", "agrees", 1e-7, ""), IdiomRun("b", "", "not run here", "not run here", None, "no JAX"),
                IdiomRun("c", "", "differs", "not run here", 0.5, "no JAX"), IdiomRun("d", "", "differs", "agrees", None, "off"),
            ),
            (), LIVE,
        ),
        ("JAX", "result on", "the line here", "their own line", "off by", ""),
        [
            ("a", "cpu", "agrees", "agrees", "1.0e-07", ""), ("b", "", "not run here", "not run here", "", ""),
            ("c", "", "differs", "not run here", "5.0e-01", ""), ("d", "", "differs", "agrees", "", "off"),
        ],
        "<JAX: 1 of 4 rows agree with NumPy>",
    ),
    "a run of a tongue that is not Python": (
        RosettaRun("MATLAB", (IdiomRun("a", "cpu", "agrees", "", 0.0, ""),), (), LIVE),
        ("MATLAB", "result on", "the line here", "off by", ""),
        [("a", "cpu", "agrees", "0.0e+00", "")],
        "<MATLAB: 1 of 1 rows agree with NumPy>",
    ),
    "idioms": (
        Rosetta("MATLAB", (IdiomRow("n", "theirs", "here", "waits", "where", "less"),)),
        ("MATLAB", "here", "what the host waits for", "where the data are", "what is not the same"),
        [("theirs", "here", "waits", "where", "less")],
        "<1 idiom of MATLAB: n>",
    ),
    "measured products": (
        RecordedPrecisions((RecordedProduct("here", "tf32", 4096, 1e14, 2.0, LIVE, ("contended", "stalled")),)),
        ("device (MEASURED)", "format", "side", "rate", "over float32"),
        [("here", "tf32", "4,096", "100 TFLOP/s (contended, stalled)", "2.00x")],
        "<1 measured product>",
    ),
    "no products": (
        RecordedPrecisions(()),
        ("GPU (RECORDED)", "format", "side", "rate", "over float32"),
        [("not recorded yet", "", "", "", "`gpulab record --out FILE` on a GPU machine makes a recording")],
        "<products on a GPU: not recorded yet>",
    ),
    "no options": (
        RecordedOptions((), ()),
        ("machine", "training, and how many steps of it", "time (RECORDED)"), [("no GPU", "not recorded yet", "")], "<not recorded yet>",
    ),
    "no tuning": (
        Tuning("warp", (), ()),
        ("GPU (RECORDED)", "n", "options", "time", "rate", ""), [("not recorded yet", "", "", "", "", "")], "<warp: not recorded yet>",
    ),
    "no forms": (
        RecordedForms((), ()), ("recorded on", "layer", "time (median, 95 %)"), [("not recorded yet", "", "")], "<not recorded yet>",
    ),
    "sparse, as fast": (
        SparseRace("a layer", (SparseRow(0.5, 2e-3, 1e-3, None, None), SparseRow(0.9, 1e-3, 1e-3, 1.0, (0.9, 1.1))), LIVE),
        ("zeros", "dense", "CSR", "CSR is so many times as fast"),
        [("50%", "2.00 ms", "1.00 ms", "not told"), ("90%", "1.00 ms", "1.00 ms", "1.00x [0.90x, 1.10x]")],
        "<a layer: CSR is faster at none of these>",
    ),
    "shards": (
        Sharded((Shard("d0", 8, 0, 8), Shard("d1", 8, 8, 16)), (1.0,), 1, "", LIVE),
        ("JAX's device", "rows that it holds"),
        [("d0", "0 to 7"), ("d1", "8 to 15"), ("all-reduces that XLA put into the sum", "1")],
        "<2 shards, 1 all-reduce in the sum>",
    ),
    "one shard": (
        Sharded((Shard("d0", 8, 0, 8),), (1.0,), 0, "", LIVE),
        ("JAX's device", "rows that it holds"), [("d0", "0 to 7"), ("all-reduces that XLA put into the sum", "0")],
        "<1 shard, 0 all-reduces in the sum>",
    ),
    "no shards": (Sharded((), (), 0, "no JAX", None), ("JAX's device", "rows that it holds"), [("not run here", "no JAX")], "<no JAX>"),
    "two kinds of memory": (
        TwoKinds(2 * MI, 2e-3, 1e-3, LIVE),
        ("2.00 MiB to the GPU from", "time", "rate"),
        [("pageable", "2.00 ms", "1.05 GB/s"), ("pinned", "1.00 ms", "2.10 GB/s")],
        "<2.00 MiB from pageable memory takes 2.00x as long as from pinned>",
    ),
    "pinning": (
        Pinning(MI, 5e-3, 4e-3, 2e-3, LIVE),
        ("1.00 MiB to the GPU", ""),
        [
            ("plain copy from pageable memory", "4.00 ms"),
            ("pin the buffer", "5.00 ms"),
            ("then copy from pinned memory", "2.00 ms"),
            ("pin and copy, together", "7.00 ms"),
            ("pinning has paid", "after 3 copies of the buffer"),
        ],
        "<pinning 1.00 MiB takes 5.00 ms>",
    ),
    "claims": (
        Claims((Claim("A", "add", 1e9, 0.5), Claim("B", "copy", 2e9, 0.25)), 20e9, MODEL),
        ("claim", "the work (float32)", "time claimed"),
        [("A", "add", "500 ms"), ("B", "copy", "250 ms")],
        "Memory moves at most 20.0 GB/s. Four claims:\n  A: add in 500 ms\n  B: copy in 250 ms",
    ),
    "contest": (
        Contest(
            "add float32", "n", "a chip",
            (ContestRow(64, 1e-3, 1e-6, 2e-6, 3e-3, "contended"), ContestRow(8, 1.0, 2.0, 3.0, 4.0)), MODEL, LIVE,
        ),
        ("n", "CPU (MEASURED)", "MODELLED: returned", "MODELLED: done", "MODELLED: with copies", "notes on the CPU"),
        [("64", "1.00 ms", "1.00 us", "2.00 us", "3.00 ms", "contended"), ("8", "1.00 s", "2.00 s", "3.00 s", "4.00 s", "none")],
        "<add float32: CPU against a chip at 2 sizes>",
    ),
    "passes": (
        Passes(("multiply", "add"), 2 * MI, 2**16, MODEL),
        ("passes", "NumPy's functions", "read and written", "bytes an element"),
        [("2", "multiply, add", "2.00 MiB", "32")],
        "<2 passes (multiply, add): 32 bytes for each element>",
    ),
    "spellings": (
        Spellings(1_000_000, (Spelling("NumPy", 4e-3, "contended"), Spelling("Triton", None, "no CUDA device here")), LIVE),
        ("1,000,000 elements", "time", "8 bytes an element", ""),
        [("NumPy", "4.00 ms", "2.00 GB/s", "contended"), ("Triton", "not run", "", "no CUDA device here")],
        "<NumPy, 1,000,000 elements>",
    ),
    "five times": (
        FiveTimes(64, FIVE, (FAR_ROW,), LIVE, (FAR,)),
        ("library", "on", "first call", "until it returned", "until it was done", "with both copies", "as usually timed"),
        [
            ("A", "cpu", "400 ms", "1.00 ms", "100 ms", "200 ms", "50.0 ms"),
            ("B", "not run here", "not installed", "", "", "", ""),
            ("A", "RECORDED: a GPU", "300 ms", "1.00 ms", "2.00 ms", "4.00 ms", "not recorded yet"),
        ],
        "<one product, n = 64: 1 library, the longest time 400x the shortest>",
    ),
    "usual timings": (
        UsualTimings(FIVE[:1], LIVE),
        ("library", "as usually timed", "it says", 'over "until it was done"', "what it leaves out"),
        [("A", "once", "50.0 ms", "0.50x", "the wait")],
        "<usual timings of A>",
    ),
    "ridges": (
        Ridges(
            (("far", "float32", 50e12, 12.5, 1.0), ("far", "bfloat16", 600e12, 150.0, 12.0), ("other", "tf32", 1e12, 2.0, None)), (FAR,)
        ),
        ("GPU (RECORDED)", "format", "best product", "over float32", "ridge, FLOP a byte"),
        [
            ("far", "float32", "50.0 TFLOP/s", "1.00x", "12.5"),
            ("far", "bfloat16", "600 TFLOP/s", "12.0x", "150"),
            ("other", "tf32", "1.00 TFLOP/s", "", "2"),
        ],
        "<ridges: float32 12.5, bfloat16 150, tf32 2>",
    ),
    "recorded gains": (
        RecordedGains(
            "a CPU",
            (
                GainRow("add", "far", 1.0, 0.01, 0.25, 5e-3), GainRow("sum", "far", 1.0, None, None, None),
                GainRow("copy", "far", 1.0, 0.5, None, None),
            ),
            (LIVE, FAR),
        ),
        ("work", "a CPU (MEASURED)", "GPU (RECORDED)", "there", "with copies", "gain", "gain with copies", "of its roof"),
        [
            ("add", "1.00 s", "far", "10.0 ms", "250 ms", "100x", "4.00x", "50 %"),
            ("sum", "1.00 s", "far", "not recorded yet", "", "", "", ""),
            ("copy", "1.00 s", "far", "500 ms", "", "2.00x", "", ""),
        ],
        "<3 recorded gains over a CPU>",
    ),
    "overlap": (
        RecordedOverlap((("far", MI, 16, 3e-3, 2e-3),), (FAR,)),
        ("GPU (RECORDED)", "copied and computed on", "chunks", "one after the other", "chunks that overlap", "so many times as fast"),
        [("far", "1.00 MiB", "16", "3.00 ms", "2.00 ms", "1.50x")],
        "<1 recorded overlap>",
    ),
    "launches": (
        Launches(
            (LaunchRow("far", "stream", 4e-6, None), LaunchRow("far", "graph", 1e-6, None), LaunchRow("other", "stream", 2e-6, None)),
            (FAR,),
        ),
        ("GPU (RECORDED)", "how small kernels are started", "from one to the next", "over a graph"),
        [
            ("far", "one by one, in a stream", "4.00 us", "4.00x"),
            ("far", "all at once, as a CUDA graph", "1.00 us", "1.00x"),
            ("other", "one by one, in a stream", "2.00 us", ""),
        ],
        "<launches: stream 4.00 us, graph 1.00 us, stream 2.00 us>",
    ),
    "tuning": (
        Tuning("warp", (("far", 4096, "", 3e-3, 1e12), ("far", 4096, "-DD=8", 2e-3, 2e12), ("far", 64, "", 2e-3, 3e12)), (FAR,)),
        ("GPU (RECORDED)", "n", "options", "time", "rate", ""),
        [
            ("far", "4,096", "as it stands", "3.00 ms", "1.00 TFLOP/s", ""),
            ("far", "4,096", "-DD=8", "2.00 ms", "2.00 TFLOP/s", "fastest"),
            ("far", "64", "as it stands", "2.00 ms", "3.00 TFLOP/s", "fastest"),
        ],
        "<warp: 3 recorded settings>",
    ),
    "under way": (
        UnderWay((UnderWayRow("a CPU", 100e-9, 10.24e9, 1, 1, Badge.MEASURED),), (LIVE,)),
        ("", "a load waits", "memory moves", "under way: the product", "that is"),
        [("a CPU (MEASURED)", "100 ns", "10.2 GB/s", "1.00 KiB", "16 lines of 64 bytes"), ("a GPU: not recorded yet", "", "", "", "")],
        "<under way: a CPU 1.00 KiB>",
    ),
    "products": (
        RecordedPrecisions((RecordedProduct("far", "float32", 4096, 5e13, None, FAR), RecordedProduct("far", "tf32", 4096, 1e14, 2.0, FAR)),
                           (("float8", 64, "no kernel"),)),
        ("GPU (RECORDED)", "format", "side", "rate", "over float32"),
        [
            ("far", "float32", "4,096", "50.0 TFLOP/s", ""), ("far", "tf32", "4,096", "100 TFLOP/s", "2.00x"),
            ("", "float8", "64", "no kernel", ""),
        ],
        "<2 recorded products>",
    ),
    "a sweep of arithmetic": (
        DensitySweep(1024, (DensityRow(4, 1e-3, 8e6, 4e6, ""), DensityRow(8, 4e-3, 16e6, 2 * MI, "contended")), LIVE),
        ("multiply-adds a number", "FLOP a byte", "bytes", "time", "over the shortest", "arithmetic", "notes"),
        [
            ("4", "2", "3.81 MiB", "1.00 ms", "1.00x", "8.00 GFLOP/s", "none"),
            ("8", "7.63", "2.00 MiB", "4.00 ms", "4.00x", "4.00 GFLOP/s", "contended"),
        ],
        "<1024 numbers: up to 4 multiply-adds each within twice the shortest time>",
    ),
    "fusion": (
        FusionGain("f", 6.0 * MI, 2.0 * MI, None, None, "no compiler", MODEL),
        ("f", "bytes (MODELLED)", "time"),
        [("one by one", "6.00 MiB", "not measured"), ("fused", "2.00 MiB", "not measured"), ("one by one / fused", "3.00x", "no compiler")],
        "<f: one by one / fused 3.00x (MODELLED)>",
    ),
    "a ladder of products": (
        LadderTable("matmul", 128, 1024, (COUNTED, LIBRARY), MODEL, FAR),
        (
            "rung", "what is new", "sectors a request", "moved", "shared wavefronts", "conflicts", "divergent branches",
            "RECORDED: time, n = 1,024",
        ),
        [
            ("tiled", "tiles", "4.0", "2.00 MiB", "2,048", "32-way", "1,500", "4.00 ms, 2.00 TFLOP/s, 25 % of the library's"),
            ("library", "the library's", "", "", "", "", "", "1.00 ms, 8.00 TFLOP/s"),
        ],
        "<ladder matmul: 2 rungs, counted at n = 128, times RECORDED on a GPU>",
    ),
    "a ladder of copies": (
        LadderTable("copy", 128, 128, (WIDE, NARROW), MODEL, None),
        ("rung", "what is new", "sectors a request", "moved", "shared wavefronts", "conflicts", "divergent branches", "time"),
        [
            ("wide", "16 bytes", "", "2.00 MiB", "", "", "1,500", "not recorded yet"),
            ("narrow", "4 bytes", "", "", "", "", "", "2.00 ms, 4.00 GB/s"),
        ],
        "<ladder copy: 2 rungs, counted at n = 128, times: not recorded yet>",
    ),
    "instructions": (
        Instructions({"FFMA": 2, "HMMA": 0}, "", MODEL),
        ("instruction", "how often it stands in the code"),
        [("FFMA", "2"), ("HMMA", "0")],
        "FFMA: 2, HMMA: 0",
    ),
    "no instructions": (Instructions({}, "no compiler.", MODEL), ("not compiled here",), [("no compiler.",)], "no compiler."),
    "uncompiled": (Uncompiled("no compiler.", {}, MODEL), ("not compiled here",), [("no compiler.",)], "no compiler."),
    "sparse": (
        SparseRace("a layer", (SparseRow(0.5, 1e-3, 2e-3, 0.5, (0.45, 0.55)), SparseRow(0.9, 3e-3, 1e-3, 3.0, (2.9, 3.1))), LIVE),
        ("zeros", "dense", "CSR", "CSR is so many times as fast"),
        [("50%", "1.00 ms", "2.00 ms", "0.50x [0.45x, 0.55x]"), ("90%", "3.00 ms", "1.00 ms", "3.00x [2.90x, 3.10x]")],
        "<a layer: CSR is faster from 90% zeros>",
    ),
    "groups": (
        Grouping(
            "images",
            (
                GroupRow("full", 1, 147_456, 8e9, 4e-3, (3.9e-3, 4.1e-3), None, None),
                GroupRow("depthwise", 128, 1152, 1e9, 2e-3, (1.9e-3, 2.1e-3), 2.0, (1.9, 2.1)),
            ),
            LIVE,
        ),
        ("3x3 convolution", "weights", "FLOP (counted)", "time", "times as fast", "rate"),
        [
            ("full", "147,456", "8.00 GFLOP", "4.00 ms [3.90 ms, 4.10 ms]", "the first", "2.00 TFLOP/s"),
            ("depthwise", "1,152", "1.00 GFLOP", "2.00 ms [1.90 ms, 2.10 ms]", "2.00x [1.90x, 2.10x]", "500 GFLOP/s"),
        ],
        "<images: depthwise has 1/8 of the FLOPs and is 2.00x as fast>",
    ),
    "recorded forms": (
        RecordedForms((("far", "dense", "1 ms"),), (FAR,)), ("recorded on", "layer", "time (median, 95 %)"), [("far", "dense", "1 ms")],
        "<1 recorded layer>",
    ),
    "measured forms": (
        RecordedForms((("here", "dense", "1 ms"),), (LIVE,)), ("measured on", "layer", "time (median, 95 %)"), [("here", "dense", "1 ms")],
        "<1 measured layer>",
    ),
    "side by side": (
        SideBySide("a CPU", "a GPU", (("cores", "8", "132"),), LIVE, FAR, (Note("contended", "Others were at work."),)),
        ("", "CPU: a CPU", "GPU: a GPU"),
        [("cores", "8", "132"), ("note: contended", "Others were at work.", "")],
        "<a CPU beside a GPU: 1 figure>",
    ),
    "claims about the ladder": (
        LadderClaims(
            (
                ("fused", finding("a", "holds", "1.5x", "2.0x", "3.0x")), ("fused", finding("a", "fails", "1.1x")),
                ("fused", finding("b", "open")),
            )
        ),
        ("technique", "what was published", "promised", "machine (RECORDED)", "verdict", "recorded, with its interval"),
        [
            ("fused", "It is said of a. [a guide]", "3x", "far", "holds", "1.5x to 3.0x, 3 cases"),
            ("", "", "", "far", "fails", "1.1x"),
            ("", "It is said of b. [a guide]", "3x", "none", "open", "not recorded yet"),
        ],
        "<2 published claims about 1 technique>",
    ),
    "gains of techniques": (
        TechniqueGains(
            (("far", "tf32", "one product", Gain(2.0, (1.9, 2.1))), ("far", "graph", "a step", Gain(2.0, None))), ("waits",), (FAR,)
        ),
        ("technique", "GPU (RECORDED)", "what was timed", "gain"),
        [
            ("tf32", "far", "one product", "2.00x [1.90x, 2.10x]: faster"),
            ("graph", "far", "a step", "2.00x (no interval)"),
            ("waits", "not recorded yet", "", ""),
        ],
        "<2 recorded gains; not recorded yet: waits>",
    ),
    "parts of a step": (
        lessons.step_of_parts("prefetch", "compile"),
        ("MODELLED", "loading", "starting", "arithmetic", "waiting", "alone"),
        [  # of 20 ms: prefetch leaves 13 ms, compile 1.5 ms of starting and 4 ms of arithmetic: 14.5 ms, both 1 + 1.5 + 4 + 1 ms
            ("a step", "8.00 ms", "6.00 ms", "5.00 ms", "1.00 ms", ""),
            ("data on the device", "leaves 0.1", "", "", "", "1.56x"),  # 12.8 ms
            ("prefetch (applied)", "leaves 0.125", "", "", "", "1.54x"),
            ("CUDA graph", "", "leaves 0.1", "", "", "1.37x"),  # 14.6 ms
            ("compile (applied)", "", "leaves 0.25", "leaves 0.8", "", "1.38x"),
            ("fused optimizer", "", "leaves 0.8", "", "", "1.06x"),  # 18.8 ms
            ("bfloat16", "", "", "leaves 0.4", "", "1.18x"),  # 17 ms
            ("fewer waits", "", "", "", "leaves 0.1", "1.05x"),  # 19.1 ms
            ("together", "", "", "", "", "2.67x"),
            ("single gains multiplied", "", "", "", "", "2.12x"),
        ],
        "<prefetch, compile: together 2.67x, single gains multiplied 2.12x>",
    ),
    "three cases": (
        lessons.three_cases(),
        ("", "parameters", "machine", "memory of each GPU", "joined by"),
        [  # 4 layers of 12 width^2, both embeddings of 32,000; memory by NVIDIA's data sheets
            ("A", "0.12 billion", "4 x GeForce RTX 4090", "24.0 GiB", "PCIe"),
            ("B", "1.6 billion", "8 x A100 40GB", "40.0 GiB", "PCIe"),
            ("C", "9.4 billion", "8 x H100 SXM", "80.0 GiB", "NVLink"),
        ],
        "<3 models on 3 machines>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SHOWN)
def test_a_table_shows_its_numbers(what: str) -> None:
    """Headers, every cell, and the line that stands for the result in text."""
    result, headers, rows, line = SHOWN[what]
    said, shown = result.table()
    assert (tuple(said), [tuple(row) for row in shown]) == (headers, rows)
    assert repr(result) == line


def test_a_gain_is_asked_for_by_its_technique_and_a_word_of_its_case() -> None:
    """The first that has both; none where there is none."""
    found = SHOWN["gains of techniques"][0]
    assert [found.of("tf32"), found.of("tf32", "product"), found.of("graph", "a step")] == [
        Gain(2.0, (1.9, 2.1)), Gain(2.0, (1.9, 2.1)), Gain(2.0, None),
    ]  # fmt: skip
    assert [found.of("tf32", "a step"), found.of("waits")] == [None, None]


def test_a_rung_that_was_not_counted_is_none_of_the_ladders() -> None:
    """The library's own product has a time and no counts."""
    ladder = SHOWN["a ladder of products"][0]
    assert ladder.of("matmul-tiled") is COUNTED.simulation
    with pytest.raises(KeyError, match="matmul-library"):
        ladder.of("matmul-library")


BUDGET = Budget(0.95, 60_000, 0.6, 256)
CAPTIONS: dict[str, tuple[Any, str]] = {
    "columns": (ColumnLoop(8, 1.0, 1.0, ("a note", "another"), LIVE), "MEASURED on a CPU · a note · another"),
    "feeding": (Feeding(8, "x", 1.0, 1.0, None, ("a note",), LIVE), "MEASURED on a CPU · a note"),
    "claims": (SHOWN["claims"][0], f"{MODEL.sentence} · your main memory moves at most 20.0 GB/s (MEASURED)"),
    "contest": (SHOWN["contest"][0], f"MODELLED · the accelerator's columns: a chip · {MODEL.sentence.removeprefix('MODELLED · ')}"),
    "five times": (SHOWN["five times"][0], "MEASURED on a CPU · A: contended\nRECORDED on a GPU, 2026-01-02"),
    "recorded gains": (SHOWN["recorded gains"][0], "MEASURED on a CPU\nRECORDED on a GPU, 2026-01-02"),
    "a run of a table": (SHOWN["a run of a table"][0], "MEASURED on a CPU · no JAX"),
    "a ladder": (
        SHOWN["a ladder of products"][0], f"{MODEL.sentence} · counted at n = 128\nRECORDED · the times: on a GPU, 2026-01-02",
    ),
    "side by side": (
        SHOWN["side by side"][0],
        "MEASURED · the CPU's rates (the rest as the system reports it): on a CPU\n"
        "RECORDED · the GPU's rates (the rest by its driver and its compute capability): on a GPU, 2026-01-02",
    ),
}  # fmt: skip


CAPTIONS |= {
    what: (SHOWN[what][0], "RECORDED on a GPU, 2026-01-02")
    for what in (
        "claims about the ladder", "gains of techniques", "launches", "overlap", "products", "recorded forms", "ridges", "tuning",
    )
} | {"under way": (SHOWN["under way"][0], "MEASURED on a CPU"), "no forms": (SHOWN["no forms"][0], "not recorded yet")}  # fmt: skip


@pytest.mark.parametrize("what", [what for what in SHOWN if what != "idioms"])  # which a notebook shows in blocks, not in columns
def test_a_notebook_shows_the_whole_table_and_its_caption(what: str) -> None:
    """Each header and each cell as text, and the beginning of each line below the table."""
    result, headers, rows, _ = SHOWN[what]
    drawn = html.unescape(re.sub(r"<[^>]*>", "\n", result._repr_html_()))
    below = [line.partition(" ")[2].removeprefix("· ")[:20] for line in result.caption().splitlines()]
    assert [text for text in (*headers, *(cell for row in rows for cell in row), *below) if text not in drawn] == []


@pytest.mark.parametrize("what", CAPTIONS)
def test_a_caption_says_where_its_numbers_are_from(what: str) -> None:
    """The badge of each side, in its order, then the notes."""
    result, words = CAPTIONS[what]
    assert result.caption() == words


def test_the_budget_in_words() -> None:
    """Three limits, in the units of the exercise."""
    assert [row[1] for row in BUDGET.table()[1]] == [
        "95%", "60,000 bytes", "0.6 of the time of gl.lessons.trained(), on one core of this machine",
    ]  # fmt: skip


def test_the_parameters_of_the_three_models_are_pytorchs() -> None:
    """Counted by PyTorch in a network without memory."""
    import torch

    from gpulab import networks

    for case in CASES.values():
        with torch.device("meta"):
            model = networks.transformer(32_000, case.width, 16, 4, context=1024)
        assert case.parameter_count == sum(p.numel() for p in model.parameters())
