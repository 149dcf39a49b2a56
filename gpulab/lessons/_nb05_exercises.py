"""The exercises of notebook 05: choose a format, find safe scales, rescue a run, know autocast's policy, count bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpulab import precision
from gpulab.lessons import _guard, _loading
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.precision import Format

# -- 05.3: the narrowest format for a task -------------------------------------------------------------------------------

CANDIDATES = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64")
# Largest magnitude, smallest one that must keep its digits, relative error allowed.
_DEMANDS = (
    (1000.0, 1e-3, 6e-4),
    (1e6, 1e-3, 1e-2),
    (1e6, 1e-3, 1e-3),
    (300.0, 0.02, 0.1),
    (40000.0, 1e-4, 0.2),
    (200.0, 1e-6, 1e-3),
    (1e300, 1.0, 1e-3),
    (1000.0, 1e-3, 1e-9),  # float64 for its digits
    (1.0, 1e-42, 1e-2),  # and for its smallest numbers
)


def _fits(one: Format, largest: float, smallest: float, error: float) -> bool:
    return largest <= one.largest and smallest >= one.smallest_normal and error >= one.epsilon / 2


def _check_choose(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for largest, smallest, error in _DEMANDS:
        where = f"choose({largest:g}, {smallest:g}, {error:g})"
        said = ask(f"For {where}", largest, smallest, error)
        if not isinstance(said, str) or said not in CANDIDATES:
            raise Refused(f"{where} gives {_guard.describe(said)}; the check expects one of {', '.join(CANDIDATES)}.")
        one = precision.format(said)
        if largest > one.largest:
            raise Refused(f"{where}: {said} ends at {one.largest:.4g}; {largest:g} does not fit.")
        if smallest < one.smallest_normal:
            raise Refused(f"{where}: below {one.smallest_normal:.2g} the numbers of {said} are subnormal and lose digits.")
        if error < one.epsilon / 2:
            raise Refused(f"{where}: {said} rounds by up to half of its epsilon, {one.epsilon / 2:.2g} of a number: more than {error:g}.")
        least = min(precision.format(name).bits for name in CANDIDATES if _fits(precision.format(name), largest, smallest, error))
        if one.bits > least:
            close = " (rounding to nearest is off by half of epsilon at most)" if error < 1e-3 else ""
            raise Refused(f"{where}: {said} would do, but so would a format of {least} bits{close}. The check expects the narrowest.")
    return "Range decides as often as precision does: the same 16 bits are float16 for the one task and bfloat16 for the other."


_CHOOSE_HEAD = "import gpulab as gl\n\n\ndef choose(largest, smallest, error):\n"
_NAMES = (
    '    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):\n'
    "        f = gl.precision.format(name)\n"
)
CHOOSE = Exercise(
    id="05.3",
    title="the narrowest format that will do",
    answer_name="choose",
    stub="""\
def choose(largest, smallest, error):
    ...  # the name of the narrowest float format that holds such numbers with such an error""",
    solution=_CHOOSE_HEAD
    + _NAMES
    + "        if largest <= f.largest and smallest >= f.smallest_normal and error >= f.epsilon / 2:\n            return name",
    hints=(
        "Three questions for each format, from the narrowest on: is its range large enough, does it go down far enough with all its "
        "digits, is its rounding fine enough?",
        "`f = gl.precision.format(name)` has `f.largest`, `f.smallest_normal` and `f.epsilon`.",
        "Rounding to nearest moves a number by half of the spacing at most: relative to it, by `f.epsilon / 2`.",
    ),
    check=_check_choose,
    usual=(
        Usual(_CHOOSE_HEAD + '    return "float32" if largest < 1e38 and smallest > 1e-37 else "float64"', "the narrowest"),
        Usual(_CHOOSE_HEAD + _NAMES + "        if error >= f.epsilon / 2:\n            return name", "does not fit"),
        Usual(
            _CHOOSE_HEAD + _NAMES + "        if largest <= f.largest and smallest >= f.smallest_subnormal and error >= f.epsilon / 2:\n"
            "            return name",
            "subnormal and lose digits",
        ),
        Usual(
            _CHOOSE_HEAD + _NAMES + "        if largest <= f.largest and smallest >= f.smallest_normal:\n            return name",
            "rounds by up to",
        ),
        Usual(
            _CHOOSE_HEAD + _NAMES + "        if largest <= f.largest and smallest >= f.smallest_normal and error >= f.epsilon:\n"
            "            return name",
            "half of epsilon at most",
        ),
        Usual(
            _CHOOSE_HEAD + _NAMES.replace(', "float64"', "") + "        if largest <= f.largest and smallest >= f.smallest_normal and "
            'error >= f.epsilon / 2:\n            return name\n    return "float32" if largest < 3.4e38 else "float64"',
            "choose(1000, 0.001, 1e-09): float32 rounds by up to",
        ),
        Usual(
            _CHOOSE_HEAD + _NAMES + '        smallest_kept = f.smallest_normal if "8" in name or name == "float16" else 0.0\n'
            "        if largest <= f.largest and smallest >= smallest_kept and error >= f.epsilon / 2:\n            return name",
            "choose(1, 1e-42, 0.01): below 1.2e-38 the numbers of bfloat16 are subnormal",
        ),
        Usual('def choose(largest, smallest, error):\n    return "half"', "expects one of"),
    ),
)

# -- 05.7: the safe scales -----------------------------------------------------------------------------------------------


_INFINITE_FROM = 65_520  # in float16: half-way from 65,504 to 2^16


def _gradient_sets() -> list[np.ndarray]:
    """Gradients as a network has them: of both signs, some exactly zero; the ends differ from set to set.

    Of each set the smallest and the largest lie beside a power of two: a thousandth away; exactly at it, where half of the smallest number
    still becomes zero; and so close below it that 65,520 is passed before 2^16 is. Either may be the negative one.
    """
    rng = np.random.default_rng(5)
    sets = []
    for low, high, smallest, largest in (
        (-34, -4, -1.001, 0.999), (-29, 3, 1.001, -0.999), (-40, -18, -1.0, 0.999), (-26, 9, 1.001, 0.9999),
    ):  # fmt: skip
        powers = rng.uniform(low + 2.5, high - 2.5, 500)
        values = rng.choice([-1.0, 1.0], 500) * 2.0**powers
        values[:40] = 0.0
        values[40:42] = smallest * 2.0**low, largest * 2.0**high
        sets.append(values)
    return sets


def _check_scales(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for gradients in _gradient_sets():
        sizes = np.abs(gradients[gradients != 0])
        ends = f"for gradients from {sizes.min():.2g} to {sizes.max():.2g}"
        said = _guard.listed(ask(ends.capitalize(), gradients.copy()))
        if not isinstance(said, (tuple, list)) or len(said) != 2:
            raise Refused(f"Your function gives {_guard.describe(said)}; the check expects (lowest, highest).")
        low, high = (_guard.number(each, "a scale") for each in said)
        for name, scale in (("lowest", low), ("highest", high)):
            if math.frexp(scale)[0] != 0.5:
                raise Refused(f"Your {name} scale {ends} is {scale:g}; the check expects a power of two, which changes no digit.")
        window = precision.gradient_window(gradients, "float16", low, tolerance=0.0)
        if window.vanishing_share > 0:
            raise Refused(
                f"At your lowest scale, {low:g}, {ends}, some gradients still become zero: half of the smallest float16 number, 2^-25, "
                "and less rounds to zero. Take the sizes without their sign, and leave out those that are zero anyway."
            )
        if low > (window.lowest_scale or 0.0):
            raise Refused(
                f"Your lowest scale {ends} is {low:g}, and half of it would do: what is above half of the smallest number, 2^-25, "
                "does not become zero."
            )
        top = precision.gradient_window(gradients, "float16", high, tolerance=0.0)
        if top.overflowing_share > 0:
            signed = float(gradients.max()) * high < _INFINITE_FROM
            largest = (-1 if signed else 1) * sizes.max() * high
            why = "A negative one: take the sizes without their sign." if signed else "Rounding ends at infinity from 65,520 on."
            raise Refused(f"At your highest scale, {high:g}, {ends}, the largest becomes {largest:.6g}: beyond 65,504, infinite. {why}")
        if high < (top.highest_scale or 0.0):
            raise Refused(f"Your highest scale {ends} is {high:g}, and twice as much would still not overflow.")
    return (
        "Between the two nothing becomes zero or infinite. They are not equally good: near the lowest the small gradients are subnormal "
        "and keep few digits. That is why a scaler looks for a large one, and halves it when something overflows."
    )


_SCALES_HEAD = "import numpy as np\n\n\ndef scales(gradients):\n    sizes = np.abs(gradients[gradients != 0])\n"
_LOW = "    low = 2.0 ** -40\n    while sizes.min() * low <= 2.0**-25:\n        low *= 2\n"
_HIGH = "    high = 2.0**40\n    while sizes.max() * high >= 65520:\n        high /= 2\n"
SCALES = Exercise(
    id="05.7",
    title="the smallest scale that rescues, the largest that does not overflow",
    answer_name="scales",
    stub="""\
def scales(gradients):
    ...  # (lowest, highest): powers of two at which no gradient becomes zero or infinite in float16""",
    solution=_SCALES_HEAD + _LOW + _HIGH + "    return low, high",
    hints=(
        "Only two of the gradients matter: the smallest that is not zero, and the largest.",
        "Start with a tiny power of two and double it until the smallest gradient times the scale no longer rounds to zero. What rounds to "
        "zero is half of the smallest number and less.",
        "The smallest number of float16 is 2^-24, so times the scale the smallest gradient must be above 2^-25; the largest must stay "
        "under 65,520, which is where rounding ends at infinity.",
    ),
    check=_check_scales,
    usual=(
        Usual(_SCALES_HEAD + _LOW.replace("2.0**-25", "2.0**-24") + _HIGH + "    return low, high", "half of it would do"),
        Usual(_SCALES_HEAD + _LOW.replace("2.0**-25", "2.0**-14") + _HIGH + "    return low, high", "half of it would do"),
        Usual(
            "import numpy as np\n\n\ndef scales(gradients):\n    sizes = gradients[gradients > 0]\n"
            + _LOW
            + _HIGH
            + "    return low, high",
            "without their sign",
        ),
        Usual(_SCALES_HEAD + _LOW + "    return low, low", "twice as much"),
        Usual(_SCALES_HEAD + _LOW + "    return low, 2.0**40", "infinite"),
        Usual(_SCALES_HEAD + _LOW + _HIGH.replace("sizes.max()", "gradients.max()") + "    return low, high", "A negative one"),
        Usual(_SCALES_HEAD + _LOW + _HIGH.replace("65520", "65536") + "    return low, high", "the largest becomes 65529.4: beyond 65,504"),
        Usual(_SCALES_HEAD + _LOW.replace("<=", "<") + _HIGH + "    return low, high", "2^-25, and less rounds to zero"),
        Usual(_SCALES_HEAD + "    return 2.0**-25 / sizes.min(), 65504 / sizes.max()", "a power of two"),
        Usual("def scales(gradients):\n    return 65536.0", "(lowest, highest)"),
    ),
)

# -- 05.11: what autocast does -------------------------------------------------------------------------------------------

OPERATORS = ("linear", "relu", "layer_norm", "softmax", "cross_entropy")
_CHOICES = ("lower", "float32", "inputs")
_WHY = {
    "linear": "a product: that is what autocast is for",
    "relu": "it is on no list, so it runs in the type that it is given",
    "layer_norm": "it sums squares over a row: CUDA's list keeps it in float32, the CPU's list leaves it alone",
    "softmax": "exponentials overflow early: CUDA's list keeps it in float32, the CPU's list leaves it alone",
    "cross_entropy": "a loss: small differences of logarithms, in float32 on both",
}


def _truth() -> dict[str, tuple[str, str]]:
    """Return what each operator does on the CPU (observed now) and on CUDA (PyTorch's lists)."""
    from gpulab.precision._autocast_documents import documented

    seen = precision.autocast_policy("cpu", "bfloat16", OPERATORS)
    return {name: (seen.row(name).policy or documented("cpu", name), documented("cuda", name)) for name in OPERATORS}


def _check_policy(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a dict from each operator to two words.")
    missing = [name for name in OPERATORS if name not in answer]
    if missing:
        raise Refused(f"{', '.join(missing)}: not there. The check expects all of {', '.join(OPERATORS)}.")
    truth = _truth()
    for name in OPERATORS:
        said = answer[name]
        if _guard.is_stub(said) or (isinstance(said, (tuple, list)) and any(map(_guard.is_stub, said))):
            raise NotAttempted
        pair = isinstance(said, (tuple, list)) and len(said) == 2
        if not pair or not all(isinstance(word, str) and word in _CHOICES for word in said):
            raise Refused(
                f"{name}: {_guard.describe(said)}; the check expects two of 'lower', 'float32' and 'inputs': the CPU's, then CUDA's."
            )
        for where, word, right in zip(("the CPU", "CUDA"), said, truth[name], strict=True):
            if word != right:
                raise Refused(f"{name} on {where} is not {word!r}. {_hint(name, word, right)}")
    return "All ten are right. Why: " + "; ".join(f"{name}, {_WHY[name]}" for name in OPERATORS) + "."


def _hint(name: str, word: str, right: str) -> str:
    if word == "lower":
        return "Autocast does not convert the model: only the operators on its list run in the lower precision, products above all."
    if right == "inputs":
        return f"Ask the policy: it is on no list there. {_WHY[name].capitalize()}."
    return f"Ask the policy: {_WHY[name]}."


_TABLE = 'autocast_runs = {{"linear": {}, "relu": {}, "layer_norm": {}, "softmax": {}, "cross_entropy": {}}}'
_L, _F, _I = '("lower", "lower")', '("float32", "float32")', '("inputs", "inputs")'
POLICY = Exercise(
    id="05.11",
    title="what did autocast leave in float32?",
    answer_name="autocast_runs",
    stub='autocast_runs = {"linear": ..., "relu": ..., "layer_norm": ..., "softmax": ..., "cross_entropy": ...}',
    solution=_TABLE.format(_L, _I, '("inputs", "float32")', '("inputs", "float32")', _F),
    hints=(
        "Which of these is a matrix product? Which one adds up many numbers, or takes exponentials or logarithms of them?",
        'Look at the two policies above: `cpu.row("softmax").policy`, and the same of `cuda`.',
    ),
    check=_check_policy,
    usual=(
        Usual(_TABLE.format(_L, _L, _L, _L, _L), "does not convert the model"),
        Usual(_TABLE.format(_L, _I, _F, _F, _F), "on no list there"),
        Usual(_TABLE.format(_L, _I, _I, _I, _F), "CUDA's list keeps it in float32"),
        Usual(_TABLE.format(_L, _I, '("inputs", "float32")', '("inputs", "float32")', _I), "a loss"),
        Usual('autocast_runs = {"linear": ("lower", "lower")}', "not there"),
        Usual('autocast_runs = "lower"', "a dict"),
    ),
    loads=_loading.OBSERVED,
)

# -- 05.13: bytes of a parameter -----------------------------------------------------------------------------------------

SETTINGS = ("float32", "autocast", "pure bfloat16", "bfloat16 with master weights")
# Weight, gradient and Adam's two numbers, in bytes.
_PARTS = {
    "float32": (4, 4, 8, 0),
    "autocast": (4, 4, 8, 0),
    "pure bfloat16": (2, 2, 4, 0),
    "bfloat16 with master weights": (2, 2, 8, 4),
}


def _check_bytes(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a dict from each setting to bytes.")
    missing = [name for name in SETTINGS if name not in answer]
    if missing:
        raise Refused(f"{', '.join(missing)}: not there. The check expects all of {', '.join(SETTINGS)}.")
    for name in SETTINGS:
        said, right = _guard.number(answer[name], f"bytes for {name!r}"), sum(_PARTS[name])
        if said == right:
            continue
        if name == "autocast" and said < right:
            raise Refused(f"autocast: {said:g} bytes. It converts no weight: the model, its gradients and Adam's state stay float32.")
        if name == "bfloat16 with master weights" and said < right:
            raise Refused(f"{name}: {said:g} bytes. The float32 copy of the weights and Adam's float32 state come on top of what is short.")
        if said == right / 2 or said == 4:
            raise Refused(f"{name}: {said:g} bytes. Besides the weight there is its gradient, and Adam keeps two numbers for each weight.")
        raise Refused(f"{name}: {said:g} bytes; count the weight, its gradient and Adam's two numbers, each with the bytes of its format.")
    return "Right: with Adam, mixed precision saves nothing on the parameters' side. What it saves is activations, and time."


_FOUR = 'bytes_a_parameter = {{"float32": {}, "autocast": {}, "pure bfloat16": {}, "bfloat16 with master weights": {}}}'
BYTES = Exercise(
    id="05.13",
    title="bytes of a parameter in four settings",
    answer_name="bytes_a_parameter",
    stub='bytes_a_parameter = {\n    "float32": ..., "autocast": ...,\n    "pure bfloat16": ..., "bfloat16 with master weights": ...,\n}',
    solution=_FOUR.format("4 + 4 + 8", "4 + 4 + 8", "2 + 2 + 4", "2 + 2 + 8 + 4"),
    hints=(
        "Four things live as long as the model trains: the weight, its gradient, and Adam's two averages. How many bytes has each?",
        "Autocast converts what it multiplies, for as long as it multiplies. What does it leave as it is?",
        "With master weights there are two copies of each weight, one of 2 bytes and one of 4; Adam works on the float32 side.",
    ),
    check=_check_bytes,
    usual=(
        Usual(_FOUR.format(16, 8, 8, 16), "It converts no weight"),
        Usual(_FOUR.format(16, 16, 8, 8), "come on top"),
        Usual(_FOUR.format(16, 16, 8, 12), "come on top"),
        Usual(_FOUR.format(4, 4, 2, 6), "Adam keeps two numbers"),
        Usual(_FOUR.format(8, 16, 8, 16), "Adam keeps two numbers"),
        Usual(_FOUR.format(16, 16, 16, 16), "each with the bytes of its format"),
        Usual('bytes_a_parameter = {"float32": 16}', "not there"),
        Usual("bytes_a_parameter = 16", "a dict"),
    ),
)
