"""The exercises of notebook 03: place work, find a batch size, halve traffic, explain a point, bound a gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpulab import models, workloads
from gpulab.lessons import _density, _guard, _loading
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Seen, Usual
from gpulab.units import format_bytes, format_ratio, format_seconds

# -- 03.3: five operations, placed before they are measured --------------------------------------------------------------

FIVE: Mapping[str, tuple[str, int, dict[str, int]]] = {
    "add": ("add", 1 << 24, {}),
    "sum": ("sum", 1 << 24, {}),
    "softmax": ("softmax", 1 << 14, {}),
    "one row": ("linear", 1, {"features": 4096}),
    "matmul": ("matmul", 1024, {}),
}
_WITHIN = 1.5
_ROOF = Seen("the roofs of your device", models.Roofline, lambda: _density._kept, lambda roof: setattr(_density, "_kept", roof))
_ROUNDING = 1 + 1e-9  # exactly 1.5 is within 1.5


def five_works() -> dict[str, workloads.Workload]:
    """Return the five pieces of work of exercise 03.3, float32, by the names that it uses."""
    return {key: workloads.get(name)(n=n, **params) for key, (name, n, params) in FIVE.items()}


def _check_place(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a dict from each name to seconds.")
    works = five_works()
    missing = [name for name in works if name not in answer]
    if missing:
        raise Refused(f"{', '.join(missing)}: not there. The check expects all of {', '.join(works)}.")
    roof = _density.roof()
    peak, bandwidth = roof.arithmetic_roof("float32").flops_per_second, roof.memory_roof("DRAM").bytes_per_second
    for name, work in works.items():
        if _guard.is_stub(answer[name]):
            raise NotAttempted
        said = _guard.number(answer[name], f"seconds for {name!r}")
        computing, moving = work.flops / peak, work.nbytes / bandwidth
        if said <= 0:
            raise Refused(f"{name}: {said:g} s; a time is more than nothing.")
        if 1 / _WITHIN / _ROUNDING <= said / max(computing, moving) <= _WITHIN * _ROUNDING:
            continue
        raise Refused(f"{name}: you say {format_seconds(said)}. {_why_misplaced(said, computing, moving)}")
    return "All five are within a factor of 1.5 of what your roofs allow. Now see how near the real ones come."


def _why_misplaced(said: float, computing: float, moving: float) -> str:
    def like(seconds: float) -> bool:
        return 1 / 1.1 <= said / seconds <= 1.1

    if moving > computing:
        if like(computing):
            return "That is what the arithmetic alone would take. The bytes take longer, and the longer of the two counts."
        if like(moving / 4):
            return "That is a fourth of what it takes to move it all: a float32 number has 4 bytes."
        if like(moving / 2):
            return "That is half of what it takes to move it all: what is read and what is written both count."
    else:
        if like(moving):
            return "That is what the bytes alone would take. The arithmetic takes longer, and the longer of the two counts."
        if like(computing / 2):
            return "That is half of the arithmetic: a multiplication and an addition count two."
    short = "little" if said < max(computing, moving) else "much"
    return f"That is too {short}: count the FLOPs and the bytes, divide each by its roof, and take the longer time."


_ROOFS = """\
import gpulab as gl

roof = gl.lessons.roof()
peak = roof.arithmetic_roof("float32").flops_per_second
bandwidth = roof.memory_roof("DRAM").bytes_per_second
"""
_LEAST = """

def least(flops, nbytes):
    return max(flops / peak, nbytes / bandwidth)


n = 2**24
"""
PLACE = Exercise(
    id="03.3",
    title="place five operations before you measure them",
    answer_name="least_seconds",
    stub='least_seconds = {"add": ..., "sum": ..., "softmax": ..., "one row": ..., "matmul": ...}',
    solution=_ROOFS
    + _LEAST
    + """\
least_seconds = {
    "add": least(n, 3 * 4 * n),  # two arrays read, one written
    "sum": least(n, 4 * n),  # one array read
    "softmax": least(5 * n, 2 * 4 * n),  # one read, one written
    "one row": least(2 * 4096**2, 4 * 4096**2),  # every weight is read for one multiply-add
    "matmul": least(2 * 1024**3, 3 * 4 * 1024**2),  # three matrices
}""",
    hints=(
        "For each: how many FLOPs, and how many bytes are read and written? A float32 number has 4 bytes.",
        "Divide the FLOPs by the roof of arithmetic and the bytes by the roof of memory. Both must happen: the longer time counts.",
        "The arrays of add, sum and softmax have 2^24 numbers. A matrix with 4096 x 4096 weights times one row reads each weight once.",
    ),
    check=_check_place,
    usual=(
        Usual(
            _ROOFS + 'n = 2**24\nleast_seconds = {"add": n / peak, "sum": n / peak, "softmax": 5 * n / peak,\n'
            '                 "one row": 2 * 4096**2 / peak, "matmul": 2 * 1024**3 / peak}',
            "arithmetic alone",
        ),
        Usual(
            _ROOFS + 'n = 2**24\nleast_seconds = {"add": 12 * n / bandwidth, "sum": 4 * n / bandwidth, "softmax": 8 * n / bandwidth,\n'
            '                 "one row": 4 * 4096**2 / bandwidth, "matmul": 12 * 1024**2 / bandwidth}',
            "bytes alone",
        ),
        Usual(
            _ROOFS + _LEAST + 'least_seconds = {"add": least(n, 3 * n), "sum": least(n, n), "softmax": least(5 * n, 2 * n),\n'
            '                 "one row": least(2 * 4096**2, 4096**2), "matmul": least(2 * 1024**3, 3 * 1024**2)}',
            "has 4 bytes",
        ),
        Usual(
            _ROOFS + _LEAST + 'least_seconds = {"add": least(n, 12 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 4 * n),\n'
            '                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(2 * 1024**3, 12 * 1024**2)}',
            "what is read and what is written",
        ),
        Usual(
            _ROOFS + _LEAST + 'least_seconds = {"add": least(n, 12 * n), "sum": least(n, 4 * n), "softmax": least(5 * n, 8 * n),\n'
            '                 "one row": least(2 * 4096**2, 4 * 4096**2), "matmul": least(1024**3, 12 * 1024**2)}',
            "count two",
        ),
        Usual('least_seconds = {"add": 1.0}', "not there"),
        Usual("least_seconds = 0.5", "a dict"),
    ),
    machine="the roofs of your device",
    seen=_ROOF,
)

# -- 03.6: from which batch size on is a linear layer bound by arithmetic? -----------------------------------------------

FEATURES = 4096


def _crossing(ridge: float) -> float:
    """The batch size at which a linear layer has the ridge's intensity; infinite where it never has.

    With n rows: 2 n f^2 FLOPs, and 4 (f^2 + 2 n f) bytes.
    """
    rest = 2 * FEATURES**2 - 8 * FEATURES * ridge
    return 4 * ridge * FEATURES**2 / rest if rest > 0 else math.inf


def _check_batch(answer: Any) -> str:
    ridge = _density.roof().ridge_flops_per_byte("float32")
    right = _crossing(ridge)
    where = f"your ridge is at {ridge:.3g} FLOP a byte"
    if isinstance(answer, str):
        if answer.strip().lower() != "never":
            raise Refused("The check expects a number of rows, or 'never'.")
        if right == math.inf:
            return f"Right: {where}, more than this layer has at any batch size."
        raise Refused(f"It does turn: {where}, and with enough rows each weight is used often enough.")
    said = _guard.number(answer, "a number of rows, or 'never'")
    if said < 1 or said != int(said):
        raise Refused(f"{said:g} rows is no batch; the check expects a whole number from 1, or 'never'.")
    if right == math.inf:
        raise Refused(f"It never does: {where}. Rows of {FEATURES} numbers must be read and written too.")
    least = max(1.0, right)
    if least / _WITHIN / _ROUNDING <= said <= math.ceil(least) * _WITHIN * _ROUNDING:
        return f"From about {math.ceil(least)} rows on: {where}, and a weight of 4 bytes does 2 FLOP a row."
    intensity = 2 * said * FEATURES**2 / (4 * (FEATURES**2 + 2 * said * FEATURES))
    text = f"With {said:g} row{'' if said == 1 else 's'} the layer has {intensity:.3g} FLOP a byte; {where}."
    if said < least:
        raise Refused(f"{text} That is still under the ridge: each weight has 4 bytes, and does 2 FLOP for each row.")
    raise Refused(f"{text} That is well beyond the ridge: a multiply-add counts two, so fewer rows are enough.")


_RIDGE = 'import math\n\nimport gpulab as gl\n\nridge = gl.lessons.roof().ridge_flops_per_byte("float32")\n'
BATCH = Exercise(
    id="03.6",
    title="the batch size that pays",
    answer_name="rows",
    stub='rows = ...  # a whole number, or "never"',
    solution=_RIDGE
    + f"""\
f = {FEATURES}
# 2 n f^2 FLOP over 4 (f^2 + 2 n f) bytes = ridge, solved for n:
rest = 2 * f**2 - 8 * f * ridge
rows = max(1, math.ceil(4 * ridge * f**2 / rest)) if rest > 0 else "never\"""",
    hints=(
        "With n rows each weight is read once and used n times: how many FLOPs a byte is that, if the weights are most of the bytes?",
        "A weight has 4 bytes and does a multiply-add, 2 FLOP, for each row: n / 2 FLOP a byte. Set that equal to your ridge.",
    ),
    check=_check_batch,
    usual=(
        Usual(_RIDGE + "rows = max(1, round(ridge))", "still under the ridge"),
        Usual(_RIDGE + "rows = max(1, round(ridge / 2))", "still under the ridge"),
        Usual(_RIDGE + "rows = 8 * math.ceil(ridge)", "well beyond the ridge"),
        Usual('rows = "never"', "It does turn"),
        Usual("rows = 0", "no batch"),
        Usual('rows = "many"', "or 'never'"),
    ),
    machine="the ridge of your device",
    seen=_ROOF,
)

# -- 03.8: the same numbers with half of the traffic ---------------------------------------------------------------------

# (mean, scale, gain, shift): ordinary ones, negative ones, and ones where a lost term would show.
_SETTINGS = ((0.5, 2.0, 3.0, 1.0), (-1.0, 0.25, -2.0, 0.5), (10.0, 5.0, 0.5, -7.0))
_ELEMENTS = 1 << 16
# Both forms round in float32 a few times; results are of order 10.
_CLOSE = 1e-4
_HALF = 0.5
# The first count of a process loads PyTorch's compiler: three seconds on an idle machine, half a minute on a crowded one.
_COUNTING_SECONDS = 90.0


def standardise(x: Any, mean: float, scale: float, gain: float, shift: float) -> Any:
    """The expression of exercise 03.8, as it is written first."""
    return (x - mean) / scale * gain + shift


def _check_halve(answer: Any) -> str:
    import torch

    from gpulab import memory
    from gpulab.errors import InputError

    x = torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(3))
    ask = _guard.in_turn(answer)
    for setting in _SETTINGS:
        given = x.clone()
        result = ask(f"For mean, scale, gain, shift = {setting}", given, *setting)
        expected = standardise(x.double(), *setting)
        if not isinstance(result, torch.Tensor):
            raise Refused(f"Your function returned {_guard.describe(result)}; the check expects a tensor.")
        if result.shape != x.shape or not torch.allclose(result.double(), expected, rtol=_CLOSE, atol=_CLOSE):
            raise Refused(f"The result is another one for mean, scale, gain, shift = {setting}. Only the traffic may change.")
        if not torch.equal(given, x):
            raise Refused("Your function changes x itself. Who called it may need x again; leave it as it is.")
    slow, slow_short = (memory.traffic(standardise, part, *_SETTINGS[0]) for part in (x, x[: _ELEMENTS // 2]))
    try:
        fast, fast_short = (memory.traffic(answer, part.clone(), *_SETTINGS[0]) for part in (x, x[: _ELEMENTS // 2]))
    except InputError as error:
        raise Refused(str(error)) from error
    # Of what grows with the array: an answer may keep a and b in tensors of one number each, whose few bytes would tip an exact half.
    ratio = (fast.nbytes - fast_short.nbytes) / (slow.nbytes - slow_short.nbytes)
    if fast.nbytes < fast.compulsory_bytes:
        raise Refused(
            f"PyTorch moved only {format_bytes(fast.nbytes)}, less than reading x and writing the result: "
            "you compute where it is not counted. Use PyTorch's operators."
        )
    count = len(fast.operators)
    moved = f"{format_bytes(slow.nbytes)} became {format_bytes(fast.nbytes)} in {count} operator{'s' if count != 1 else ''}"
    if ratio <= _HALF:
        return f"{moved}: {ratio:.0%} of the traffic, the same numbers."
    if any(each.name.partition(".")[2].partition(".")[0].endswith("_") for each in fast.operators) and ratio > 1 - 1e-9:
        raise Refused(f"{moved}. In place saves memory, not traffic: the array is still read and written by every operator.")
    raise Refused(f"{moved}: {ratio:.0%} is left. Each operator that passes over the array reads it and writes it; how few do you need?")


_STANDARDISE = "def standardise(x, mean, scale, gain, shift):\n"
HALVE = Exercise(
    id="03.8",
    title="half of the traffic",
    answer_name="standardise",
    stub=_STANDARDISE + "    ...  # (x - mean) / scale * gain + shift, with at most half of the bytes",
    solution=_STANDARDISE
    + """\
    a = gain / scale  # numbers, not arrays: computed once
    return x * a + (shift - mean * a)  # two passes over the array in place of four""",
    hints=(
        "mean, scale, gain and shift are plain numbers. Which of these operations need the array at all?",
        "(x - mean) / scale * gain + shift is a straight line in x: x * a + b. Work out a and b before you touch x.",
    ),
    check=_check_halve,
    limit_seconds=_COUNTING_SECONDS,
    loads=_loading.OBSERVED,
    usual=(
        Usual(
            _STANDARDISE + "    y = x.clone()\n    y.sub_(mean).div_(scale).mul_(gain).add_(shift)\n    return y",
            "In place saves memory, not traffic",
        ),
        Usual(_STANDARDISE + "    return (x - mean) * (gain / scale) + shift", "is left"),
        Usual(_STANDARDISE + "    return (x - mean) / scale * gain + shift", "100% is left"),
        Usual(_STANDARDISE + "    return x * (gain / scale) + shift", "another one"),
        Usual(
            _STANDARDISE + "    a = gain / scale\n    return x.mul_(a).add_(shift - mean * a)",
            "changes x itself",
        ),
        Usual(
            "import torch\n\n\n" + _STANDARDISE + "    return torch.from_numpy((x.numpy() - mean) / scale * gain + shift)",
            "where it is not counted",
        ),
        Usual(_STANDARDISE + "    return 3", "expects a tensor"),
    ),
)

# -- 03.10: a point far under the roof -----------------------------------------------------------------------------------

_CAUSES = {
    "call": "Starting one call takes microseconds",
    "lines": "",
    "arithmetic": "There is one addition for each 4 bytes, and the roof above this intensity is the memory's",
    "core": "The work is divided among your cores as for any other sum of this length",
}
# A cache line has 64 bytes on x86 and most ARM processors, 128 on Apple's; processors may also fetch lines in pairs.
_LINES = (64, 128)


def _check_explain(answer: Any) -> str:
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects two things: a cause and a number of bytes.")
    cause, nbytes = answer
    if _guard.is_stub(cause) or _guard.is_stub(nbytes):
        raise NotAttempted
    if not isinstance(cause, str) or cause.strip().lower() not in _CAUSES:
        raise Refused(f"The cause is {_guard.describe(cause)}; the check expects one of {', '.join(_CAUSES)}.")
    key = cause.strip().lower()
    if key != "lines":
        raise Refused(f"{_CAUSES[key]}; that does not explain what is missing here. What does memory send when you ask for 4 bytes?")
    said = _guard.number(nbytes, "the bytes that memory moves")
    rows, width = _density.COLUMN_ROWS, _density.COLUMN_WIDTH
    if any(math.isclose(said, line * rows, rel_tol=0.01) for line in _LINES):
        return (
            f"{format_bytes(said)} travel for {format_bytes(4 * rows)} that are used: "
            f"{format_ratio(said / (4 * rows))} as much. Counted so, the point moves up by that factor."
        )
    if said < 3.96 * rows:
        raise Refused(
            f"{format_bytes(max(said, 0.0))} is less than the {format_bytes(4 * rows)} that you asked for. The check expects bytes."
        )
    if said <= 4.04 * rows:
        raise Refused("Those are the bytes that you asked for. Memory moves whole cache lines: how long is one, and how many are touched?")
    if math.isclose(said, 4 * rows * width, rel_tol=0.01):
        raise Refused("That is the whole matrix. A row has 256 bytes, which is several cache lines, and only one of them is touched.")
    raise Refused(f"{format_bytes(said)} is not it: one cache line for each of the {rows:,} rows.")


EXPLAIN = Exercise(
    id="03.10",
    title="explain a point far under the roof",
    answer_name="explained",
    stub='explained = (..., ...)  # "call", "lines", "arithmetic" or "core"; and the bytes that memory really moves',
    solution=(
        "# Each number of the column lies in a cache line of its own, and memory moves whole lines (of 64 bytes):\n"
        'explained = ("lines", 64 * 2**20)'
    ),
    hints=(
        "Neighbours in the column are 256 bytes apart in memory. What comes along when the processor fetches one of them?",
        "Caches hold lines of 64 bytes (128 on Apple's processors). Each of the 2^20 numbers lies in a line of its own.",
    ),
    check=_check_explain,
    usual=(
        Usual('explained = ("arithmetic", 64 * 2**20)', "the roof above this intensity is the memory's"),
        Usual('explained = ("call", 4 * 2**20)', "Starting one call"),
        Usual('explained = ("core", 64 * 2**20)', "divided among your cores"),
        Usual('explained = ("lines", 4 * 2**20)', "the bytes that you asked for"),
        Usual('explained = ("lines", 64)', "less than the 4.00 MiB"),
        Usual('explained = ("lines", 256 * 2**20)', "the whole matrix"),
        Usual('explained = ("lines", 16 * 2**20)', "one cache line for each"),
        Usual('explained = "lines"', "two things"),
        Usual('explained = ("caches", 3)', "expects one of"),
    ),
)

# -- 03.11: what can a GPU gain at most? ---------------------------------------------------------------------------------

# (FLOP/s, bytes/s) of made-up processors, so that a right answer is right everywhere; the link in bytes/s.
_CPU, _GPU, _LINK = (1e11, 2e10), (6e13, 4e12), 2.5e10
# (what it is, FLOPs, bytes, bytes that must be copied): bound by memory on both; by arithmetic on both; by arithmetic on the CPU alone.
_WORK = (
    ("a sum of two arrays that stay on the GPU", 1e8, 1.2e9, 0.0),
    ("a large matrix product that stays on the GPU", 1e12, 1.2e9, 0.0),
    ("a thin matrix product that stays on the GPU", 1e10, 1e9, 0.0),
    ("a sum of two arrays that begin and end in main memory", 1e8, 1.2e9, 1.2e9),
    ("a large matrix product that begins and ends in main memory", 1e12, 1.2e9, 1.2e9),
    ("a sum of two arrays that begin in main memory, and whose result stays on the GPU", 1e8, 1.2e9, 0.8e9),
)
_SAME = 0.01


def _gain(flops: float, nbytes: float, copied: float) -> float:
    here = max(flops / _CPU[0], nbytes / _CPU[1])
    return here / (max(flops / _GPU[0], nbytes / _GPU[1]) + copied / _LINK)


def _check_gain(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for what, flops, nbytes, copied in _WORK:
        said = _guard.number(ask(f"For {what}", flops, nbytes, copied, _CPU, _GPU, _LINK), "one number, the gain")
        right = _gain(flops, nbytes, copied)
        if math.isclose(said, right, rel_tol=_SAME):
            continue
        raise Refused(f"For {what} you say {said:.3g} times. {_why_gain(said, right, flops, nbytes, copied)}")
    return (
        f"A sum gains at most {format_ratio(_gain(*_WORK[0][1:]))} and a product {format_ratio(_gain(*_WORK[1][1:]))} on these processors; "
        f"with the copies it is {format_ratio(_gain(*_WORK[3][1:]))} and {format_ratio(_gain(*_WORK[4][1:]))}."
    )


def _why_gain(said: float, right: float, flops: float, nbytes: float, copied: float) -> str:
    if math.isclose(said, 1 / right, rel_tol=_SAME):
        return "That is upside down: the gain is the CPU's time over the GPU's."
    if copied and math.isclose(said, _gain(flops, nbytes, 0.0), rel_tol=_SAME):
        return "That leaves out the copies: they take copied / link seconds before and after."
    if math.isclose(said, _GPU[0] / _CPU[0], rel_tol=_SAME):
        return "That is the ratio of the peaks of arithmetic, which counts only where arithmetic binds on both."
    if math.isclose(said, _GPU[1] / _CPU[1], rel_tol=_SAME):
        return "That is the ratio of the bandwidths, which counts only where memory binds on both."
    if copied:
        return "Add the copies to the GPU's time: copied / link seconds."
    return "On each processor the longer of flops / peak and nbytes / bandwidth counts; they need not be bound by the same."


_GAIN = "def gain(flops, nbytes, copied, cpu, gpu, link):\n"
_GAIN_DOC = '    """Return at most how many times as fast the GPU is; cpu and gpu are (FLOP/s, bytes/s), link is bytes/s."""\n'
GAIN = Exercise(
    id="03.11",
    title="what can a GPU gain at most?",
    answer_name="gain",
    stub=_GAIN + _GAIN_DOC + "    ...",
    solution=_GAIN
    + _GAIN_DOC
    + """\
    here = max(flops / cpu[0], nbytes / cpu[1])
    there = max(flops / gpu[0], nbytes / gpu[1]) + copied / link
    return here / there""",
    hints=(
        "What is the least time that each processor's roofs allow? The gain is the CPU's over the GPU's.",
        "max(flops / peak, nbytes / bandwidth) on each side; the copies add copied / link to the GPU's.",
    ),
    check=_check_gain,
    usual=(
        Usual(_GAIN + "    return gpu[0] / cpu[0]", "ratio of the peaks"),
        Usual(_GAIN + "    return gpu[1] / cpu[1]", "ratio of the bandwidths"),
        Usual(
            _GAIN + "    return max(flops / cpu[0], nbytes / cpu[1]) / max(flops / gpu[0], nbytes / gpu[1])",
            "leaves out the copies",
        ),
        Usual(
            _GAIN + "    return max(flops / gpu[0], nbytes / gpu[1], copied / link) / max(flops / cpu[0], nbytes / cpu[1])",
            "upside down",
        ),
        Usual(
            _GAIN + "    return (flops / cpu[0] + nbytes / cpu[1]) / (flops / gpu[0] + nbytes / gpu[1] + copied / link)",
            "the longer of",
        ),
        Usual(
            _GAIN + "    there = max(flops / gpu[0], nbytes / gpu[1]) + (nbytes / link if copied else 0)\n"
            "    return max(flops / cpu[0], nbytes / cpu[1]) / there",
            "whose result stays on the GPU you say 1.24 times. Add the copies to the GPU's time: copied / link seconds.",
        ),
        Usual(_GAIN + '    return "much"', "one number"),
    ),
)
