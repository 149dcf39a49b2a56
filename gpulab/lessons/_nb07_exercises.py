"""The exercises of notebook 07: bytes of zeros, the order of the steps, rounding a weight, shared weights, groups, and a budget."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

from gpulab import compression, training
from gpulab.lessons import _guard, _lighter, _loading
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.units import format_bytes, format_ratio, plural

# -- 07.2: what zeros take on disk -------------------------------------------------------------------------------------------

# (weights, share of zeros, bits of a stored weight): many zeros, few, codes of 8 bits with few zeros (where a mask does not pay), none.
_LAYERS = ((1_000_000, 0.9, 32), (80_000, 0.25, 32), (64_000, 0.05, 8), (1000, 0.0, 32), (256_000, 0.5, 8))
_BYTES = 1.0  # off by this much at most: rounding up is as right as rounding down


def stored_bytes(n: int, zeros: float, bits: int) -> float:
    """The smaller of all weights, and one bit a weight with the others."""
    return min(n * bits / 8, n / 8 + (1 - zeros) * n * bits / 8)


def _check_bytes(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for n, zeros, bits in _LAYERS:
        where = f"For {n:,} weights of {bits} bits with {zeros:.0%} zeros"
        said = _guard.number(ask(where, n, zeros, bits), "one number of bytes")
        right = stored_bytes(n, zeros, bits)
        if abs(said - right) <= _BYTES:
            continue
        raise Refused(f"{where} you say {said:,.0f} bytes. {_why_bytes(said, n, zeros, bits)}")
    return "90 % zeros make a file of float32 weights 7.6 times smaller, not 10 times: the mask is a bit for each weight, zero or not."


def _why_bytes(said: float, n: int, zeros: float, bits: int) -> str:
    if abs(said - 8 * stored_bytes(n, zeros, bits)) <= 8 * _BYTES:
        return "Those are bits. A byte has 8."
    if abs(said - (1 - zeros) * n * bits / 8) <= _BYTES:
        return "That stores the weights that are not zero, but not where they belong: one bit a weight says so."
    if abs(said - n * bits / 8) <= _BYTES:
        return "That stores every zero in full. One bit a weight can say which are not zero."
    if abs(said - (n / 8 + (1 - zeros) * n * bits / 8)) <= _BYTES:
        return "With so few zeros the mask costs more than it saves: take the smaller of both forms."
    if abs(said - (n / 8 + zeros * n * bits / 8)) <= _BYTES:
        return "You stored the zeros and left out the others: (1 - zeros) of them are not zero."
    return "It is the smaller of two: all weights in full, or a bit for each weight and then those that are not zero."


_BYTES_STUB = 'def stored_bytes(n, zeros, bits):\n    """Return the bytes of n weights of so many bits, a share of which is zero."""\n'
STORED = Exercise(
    id="07.2",
    title="what zeros take on disk",
    answer_name="stored_bytes",
    stub=_BYTES_STUB + "    ...",
    solution=_BYTES_STUB
    + """\
    plain = n * bits / 8
    masked = n / 8 + (1 - zeros) * n * bits / 8  # a bit for each weight, then those that are not zero
    return min(plain, masked)""",
    hints=(
        "How many bytes does the mask have, with one bit for each weight? And the weights that are not zero?",
        "n / 8 bytes of mask, and (1 - zeros) * n * bits / 8 bytes of weights. When is n * bits / 8, without a mask, smaller?",
    ),
    check=_check_bytes,
    usual=(
        Usual(_BYTES_STUB + "    return (1 - zeros) * n * bits / 8", "where they belong"),
        Usual(_BYTES_STUB + "    return n / 8 + (1 - zeros) * n * bits / 8", "costs more than it saves"),
        Usual(_BYTES_STUB + "    return min(n * bits, n + (1 - zeros) * n * bits)", "Those are bits"),
        Usual(_BYTES_STUB + "    return n * bits / 8", "every zero in full"),
        Usual(_BYTES_STUB + "    return min(n * bits / 8, n / 8 + zeros * n * bits / 8)", "left out the others"),
        Usual(_BYTES_STUB + "    return 'less'", "plain number"),
    ),
)

# -- 07.5: the order of the steps --------------------------------------------------------------------------------------------

_STEPS = ("train", "prune channels", "prune weights", "fine-tune", "quantise")


def _check_order(answer: Any) -> str:
    if not isinstance(answer, (list, tuple)) or not all(isinstance(each, str) or _guard.is_stub(each) for each in answer):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a list of steps.")
    if any(_guard.is_stub(each) for each in answer):
        raise NotAttempted
    steps = [" ".join(each.lower().split()) for each in answer]
    unknown = [each for each in steps if each not in _STEPS]
    if unknown:
        raise Refused(f"{unknown[0]!r} is no step of these: {', '.join(_STEPS)}.")
    missing = [each for each in _STEPS if each not in steps]
    if missing:
        raise Refused(f"{missing[0]!r} is missing; the recipe needs each step at least once.")
    if steps[0] != "train" or steps.count("train") > 1:
        raise Refused("Training comes first, and once: the size of an untrained weight says nothing about what it is worth.")
    if steps[-1] != "quantise" or steps.count("quantise") > 1:
        raise Refused(
            "Quantise once, at the end: an optimizer's small steps are lost on integers, and what is moved must be rounded again."
        )
    if "prune channels" in steps[steps.index("prune weights") :]:
        raise Refused(
            "Remove channels before single weights: a channel that goes takes its weights along, and where the others lie changes."
        )
    for step, after in itertools.pairwise(steps):
        if step.startswith("prune") and after != "fine-tune":
            raise Refused(f"After {step!r} comes {after!r}: the damage is not mended before more is done. Fine-tune after each loss.")
    return "Each loss is mended before the next one, channels go before weights, and rounding comes last."


_LIST = '["train", "prune channels", "fine-tune", "prune weights", "fine-tune", "quantise"]'
ORDER = Exercise(
    id="07.5",
    title="the order that keeps accuracy",
    answer_name="steps",
    stub='steps = [...]  # of "train", "prune channels", "prune weights", "fine-tune", "quantise"',
    solution=f"steps = {_LIST}",
    hints=(
        "Which steps lose accuracy, and which one wins it back? A step may come more than once.",
        "Whatever loses is followed by fine-tuning. Which loss cannot be trained away any more, so that it must come last?",
    ),
    check=_check_order,
    usual=(
        Usual('steps = ["train", "prune channels", "prune weights", "fine-tune", "quantise"]', "not mended before more"),
        Usual('steps = ["train", "quantise", "prune channels", "fine-tune", "prune weights", "fine-tune"]', "at the end"),
        Usual('steps = ["train", "prune weights", "fine-tune", "prune channels", "fine-tune", "quantise"]', "before single weights"),
        Usual('steps = ["prune channels", "fine-tune", "prune weights", "fine-tune", "train", "quantise"]', "Training comes first"),
        Usual('steps = ["train", "prune channels", "prune weights", "quantise"]', "'fine-tune' is missing"),
        Usual('steps = ["train", "pray"]', "no step of these"),
    ),
)

# -- 07.6: round a weight ------------------------------------------------------------------------------------------------------


def _weights() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(7)
    plain = torch.randn(6, 20, generator=generator)
    spread = plain * torch.tensor([1.0, 0.01, 10.0, 0.1, 1.0, 0.001])[:, None]
    shifted = torch.rand(4, 30, generator=generator) + 0.5
    dead = plain.clone()
    dead[2] = 0.0
    return [dead, plain, spread, shifted, -spread]  # the one with zeros first: what an offset does to them is the first thing to say


def _check_quantise(answer: Any) -> str:
    import torch

    ask = _guard.in_turn(answer)
    for weight in _weights():
        for bits in (8, 4, 2):
            given = weight.clone()
            result = ask(f"For a weight of {len(weight)} rows and {bits} bits", given, bits)
            if not isinstance(result, (tuple, list)) or len(result) != 2 or not all(isinstance(each, torch.Tensor) for each in result):
                raise Refused(f"Your function returned {_guard.describe(result)}; the check expects two tensors: codes, scales.")
            codes, scales = (each.detach().double() for each in result)
            _judge(codes, scales, weight.double(), bits)
            if not torch.equal(given, weight):
                raise Refused("Your function changes the weight itself. Compute new tensors.")
    return "No weight moved by more than half a step of its own row, and the narrowest row kept as many codes as the widest."


def _judge(codes: Any, scales: Any, weight: Any, bits: int) -> None:
    import torch

    most = 2 ** (bits - 1) - 1
    if codes.shape != weight.shape:
        raise Refused(f"codes have the shape {tuple(codes.shape)}; the check expects that of the weight, {tuple(weight.shape)}.")
    if scales.numel() == 1:
        raise Refused(
            "There is one scale for the whole layer. Give each row (output channel) its own: a narrow row has nothing left otherwise."
        )
    if scales.numel() != len(weight):
        raise Refused(f"There are {scales.numel()} scales; the check expects one for each of the {len(weight)} rows.")
    if not bool(torch.isfinite(scales).all()) or not bool(torch.isfinite(codes).all()):
        raise Refused("For a row of zeros something is not finite: 0 / 0. Keep the scale above zero there, with clamp_min.")
    if not torch.equal(codes, codes.round()):
        raise Refused("The codes are not whole numbers. Round them.")
    if float(codes.abs().max()) > most:
        raise Refused(f"A code of {bits} bits is {codes.abs().max():.0f}; expected from -{most} to {most}, so that 0 stays in the middle.")
    if bool((codes[weight == 0] != 0).any()):
        raise Refused("A weight of zero has another code than 0. What was pruned must stay zero: no offset.")
    scales = scales.reshape(-1, 1)
    error = (codes * scales - weight).abs()
    largest = weight.abs().amax(1, keepdim=True)
    # A row of zeros may have any scale: its codes are zero, and each guard against 0 / 0 puts another number there.
    if bool(((scales > 1.001 * largest / most) & (largest > 0)).any()):
        raise Refused(f"With {bits} bits a row's steps are wider than they need be: its largest magnitude should get the code {most}.")
    if bool((error > 1.01 * scales).any()):
        raise Refused("A weight was cut off at the end of the codes. The largest magnitude of the row must fit: negative ones count too.")
    if bool((error > 0.501 * scales).any()):
        raise Refused("A weight moved by more than half a step. Take the nearest code; conversion to an integer type cuts off instead.")


_QUANTISE = (
    "import torch\n\n\ndef quantise(weight, bits):\n"
    '    """Return codes from -(2**(bits-1) - 1) to 2**(bits-1) - 1, and a scale for each row."""\n'
)
_AMAX = "    most = 2 ** (bits - 1) - 1\n    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / most\n"
QUANTISE = Exercise(
    id="07.6",
    title="round a weight",
    answer_name="quantise",
    stub=_QUANTISE + "    ...",
    solution=_QUANTISE + _AMAX + "    codes = (weight / scales).round()\n    return codes, scales",
    hints=(
        "With b bits the largest code is 2**(b-1) - 1. Which weight of a row should get it?",
        "scales = weight.abs().amax(1, keepdim=True) / most. Then divide, and round to the nearest.",
        "A row of zeros has a scale of zero, and 0 / 0 is nan: clamp_min(1e-30) keeps it above.",
    ),
    check=_check_quantise,
    usual=(
        Usual(
            _QUANTISE + "    most = 2 ** (bits - 1) - 1\n    s = weight.abs().max() / most\n    return (weight / s).round(), s",
            "one scale for the whole",
        ),
        Usual(_QUANTISE + _AMAX + "    return (weight / scales).to(torch.int8), scales", "more than half a step"),
        Usual(_QUANTISE + _AMAX.replace("- 1\n", "\n") + "    return (weight / scales).round(), scales", "0 stays in the middle"),
        Usual(
            _QUANTISE + _AMAX.replace("weight.abs().amax", "weight.amax") + "    return (weight / scales).round(), scales",
            "0 stays in the middle",
        ),
        Usual(
            _QUANTISE + _AMAX.replace(".clamp_min(1e-30)", "") + "    return (weight / scales).round(), scales",
            "not finite",
        ),
        Usual(
            _QUANTISE
            + "    most = 2 ** (bits - 1) - 1\n    low = weight.amin(1, keepdim=True)\n    span = weight.amax(1, keepdim=True) - low\n"
            + "    scales = span.clamp_min(1e-30) / (2 * most)\n    return ((weight - low) / scales).round() - most, scales",
            "no offset",
        ),
        Usual(_QUANTISE + _AMAX + "    return weight / scales, scales", "not whole numbers"),
    ),
    loads=_loading.TORCH,
)

# -- 07.10: weights that a convolution shares -----------------------------------------------------------------------------------

# (input channels, output channels, kernel, side)
_SHAPES = ((6, 16, 3, 32), (1, 8, 5, 28), (64, 64, 1, 7), (16, 32, 3, 8))


def _check_shared(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for shape in _SHAPES:
        source, wide, kernel, side = shape
        case = f"For {source} to {wide} channels, {kernel}x{kernel}, {side}x{side} pixels"
        result = _guard.listed(ask(case, *shape))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Refused(f"Your function returned {_guard.describe(result)}; the check expects two numbers: convolution, linear layer.")
        said = [_guard.number(each, "a number of weights") for each in result]
        right = source * wide * kernel**2, source * side**2 * wide * side**2
        where = f"{case} you say"
        if said[0] != right[0]:
            raise Refused(f"{where} {said[0]:,.0f} weights for the convolution. {_why_convolution(said[0], *shape)}")
        if said[1] != right[1]:
            raise Refused(f"{where} {said[1]:,.0f} weights for the linear layer. {_why_linear(said[1], *shape)}")
    source, wide, kernel, side = _SHAPES[0]
    ratio = side**4 / kernel**2
    return (
        f"A convolution has 1/{ratio:,.0f} of the linear layer's weights at {side}x{side}: the same few at each place, and none from afar."
    )


def _why_convolution(said: float, source: int, wide: int, kernel: int, side: int) -> str:
    if said == source * wide * kernel**2 * side**2:
        return "It has the same weights at each of the pixels: they count once."
    if said == wide * kernel**2:
        return "Each output channel looks at every input channel."
    if said == source * wide * kernel:
        return "A kernel has kernel x kernel weights."
    return "One kernel for each pair of an input and an output channel (no bias)."


def _why_linear(said: float, source: int, wide: int, kernel: int, side: int) -> str:
    if said == source * wide * side**2:
        return "Each output number, one a pixel and channel, has a weight for each input number, one a pixel and channel."
    return "Flatten both images: every one of the outputs has a weight for every one of the inputs (no bias)."


_SHARED = (
    "def weights(source, wide, kernel, side):\n"
    '    """Return the weights of a convolution and of a linear layer between the same images."""\n'
)
SHARED = Exercise(
    id="07.10",
    title="weights that a convolution shares",
    answer_name="weights",
    stub=_SHARED + "    ...  # return convolution, linear",
    solution=_SHARED + "    return source * wide * kernel**2, (source * side**2) * (wide * side**2)",
    hints=(
        "A convolution has a kernel of kernel x kernel weights for each pair of an input and an output channel. Does side matter?",
        "The linear layer has source * side**2 inputs and wide * side**2 outputs, and a weight for each pair of them.",
    ),
    check=_check_shared,
    usual=(
        Usual(_SHARED + "    return source * wide * kernel**2 * side**2, source * wide * side**4", "they count once"),
        Usual(_SHARED + "    return source * wide * kernel**2, source * wide * side**2", "has a weight for each input number"),
        Usual(_SHARED + "    return wide * kernel**2, source * wide * side**4", "every input channel"),
        Usual(_SHARED + "    return source * wide * kernel, source * wide * side**4", "kernel x kernel"),
        Usual(_SHARED + "    return source * wide * kernel**2", "two numbers"),
    ),
)

# -- 07.11: the FLOPs of a convolution in groups --------------------------------------------------------------------------------

# (input channels, output channels, kernel, groups, side)
_GROUPED = ((128, 128, 3, 1, 16), (128, 128, 3, 128, 16), (64, 96, 3, 4, 14), (32, 64, 1, 1, 8), (48, 48, 5, 48, 9))


def _check_grouped(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for source, wide, kernel, groups, side in _GROUPED:
        where = f"For {source} to {wide} channels in {plural(groups, 'group')}, {kernel}x{kernel}, {side}x{side}"
        said = _guard.number(ask(where, source, wide, kernel, groups, side), "one number of FLOPs")
        right = 2 * source * wide * kernel**2 * side**2 / groups
        if math.isclose(said, right, rel_tol=1e-9):
            continue
        raise Refused(f"{where}: {said:,.0f}. {_why_grouped(said / right, groups, side)}")
    return "Depthwise, 128 channels: 1/128 of the FLOPs. The bytes of the images in and out are the same as before."


def _why_grouped(ratio: float, groups: int, side: int) -> str:
    if math.isclose(ratio, 0.5):
        return "Those are multiply-adds: each is two FLOP."
    if math.isclose(ratio, groups):
        return "In groups, an output channel looks only at the input channels of its own group."
    if math.isclose(ratio, 1 / groups):
        return "You divided by the groups twice: fewer inputs for each output, but as many outputs as before."
    if math.isclose(ratio * side**2, 1):
        return "Those are the FLOPs of one pixel of the output; all of them are computed."
    return "Two for each weight that is read: outputs x (source / groups) x kernel x kernel, where outputs = wide x side x side."


_GROUPED_STUB = (
    "def flops(source, wide, kernel, groups, side):\n"
    '    """Return the FLOPs of a convolution that keeps an image of side x side pixels."""\n'
)
GROUPED = Exercise(
    id="07.11",
    title="FLOPs of a convolution in groups",
    answer_name="flops",
    stub=_GROUPED_STUB + "    ...",
    solution=_GROUPED_STUB + "    outputs = wide * side**2\n    return 2 * outputs * (source // groups) * kernel**2",
    hints=(
        "Count the numbers of the output. How many inputs does each of them look at?",
        "Each of wide * side**2 outputs takes (source / groups) * kernel**2 multiply-adds, of two FLOP each.",
    ),
    check=_check_grouped,
    usual=(
        Usual(_GROUPED_STUB + "    return 2 * wide * side**2 * source * kernel**2", "of its own group"),
        Usual(_GROUPED_STUB + "    return wide * side**2 * source * kernel**2 / groups", "multiply-adds"),
        Usual(_GROUPED_STUB + "    return 2 * wide * source * kernel**2 / groups", "one pixel"),
        Usual(_GROUPED_STUB + "    return 2 * wide * side**2 * source * kernel**2 / groups**2", "twice"),
        Usual(_GROUPED_STUB + "    return [1]", "plain number"),
    ),
)

# -- 07.13: the budget -------------------------------------------------------------------------------------------------------------


def _check_budget(answer: Any) -> str:
    import torch

    if not isinstance(answer, torch.nn.Module):
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects a model (a torch.nn.Module).")
    limits = _lighter.budget()
    model = compression.finish(answer).cpu()
    right = training.evaluate(model, _lighter.TASK)
    nbytes = compression.size_on_disk(model)
    found = f"{100 * right.ratio:.1f} % right, {nbytes:,} bytes"
    if right.ratio < limits.least_accuracy:
        raise Refused(f"{found}: less than {limits.least_accuracy:.0%} right. Did you fine-tune after each step that loses something?")
    if nbytes > limits.largest_file:
        raise Refused(f"{found}: the file is over {limits.largest_file:,} bytes. Zeros, fewer bits, fewer channels: which of them is left?")
    share, sure = _share_of_time(model, limits)
    took = f"{found}, {share:.2f} of the time"
    if not sure:
        took += " (the middle of several measurements: your machine was busy, or it is close to the limit)"
    if share > limits.longest_time:
        raise Refused(
            f"{took}: longer than {limits.longest_time:g} of it. Zeros and rounded weights save bytes; what saves time on your machine?"
        )
    before = compression.size_on_disk(_lighter.trained())
    return f"{took}: within the budget. {format_ratio(1 / share)} as fast, with {format_bytes(nbytes)} in place of {format_bytes(before)}."


_ROUND_SECONDS = (0.25, 0.5, 1.0, 2.0)  # each longer than the one before: a short disturbance is a smaller part of it


def _share_of_time(model: Any, limits: _lighter.Budget) -> tuple[float, bool]:
    """Return a model's time over the trained one's, and whether a whole interval lies on one side of the limit.

    An interval that reaches over the limit answers nothing, so it is measured again, longer; in the end the median decides.
    """
    shares = []
    for seconds in _ROUND_SECONDS:
        row = _lighter.time_against_trained(model, limits.batch, seconds)
        shares.append(1 / row.speedup if row.speedup else math.inf)
        if row.speedup_interval is not None:
            most, least = (1 / end for end in row.speedup_interval)
            if least > limits.longest_time or most <= limits.longest_time:
                return shares[-1], True
    return statistics.median(shares), False


_BEGIN = "import gpulab as gl\n\nlight = gl.lessons.trained()\n"
BUDGET = Exercise(
    id="07.13",
    title="a budget on your machine",
    answer_name="light",
    stub="light = ...  # a model: begin with gl.lessons.trained()",
    solution=_BEGIN
    + """\
light = gl.compression.prune(light, 0.6, structured=True)  # channels: what saves time
gl.training.fit("digits-cnn", model=light, epochs=5, device="cpu")""",
    hints=(
        "Which technique of this notebook leaves work out on any processor? Begin with it, and fine-tune.",
        "Removing channels saves time and bytes at once. How much of the accuracy comes back when you fine-tune for some epochs?",
        "If the file is still too large, set weights to zero on top (and fine-tune), or store 8 bits.",
    ),
    check=_check_budget,
    usual=(
        Usual(_BEGIN, "the file is over"),
        Usual(_BEGIN + "light = gl.compression.prune(light, 0.6, structured=True)", "Did you fine-tune"),
        Usual(
            _BEGIN + 'light = gl.compression.prune(light, 0.85)\ngl.training.fit("digits-cnn", model=light, epochs=3, device="cpu")',
            "save bytes",
        ),
        Usual(_BEGIN + "light = gl.compression.quantize(light, bits=4)", "save bytes"),
        Usual("light = 0.95", "expects a model"),
        Usual("light = {'accuracy': 0.95}", "expects a model"),
    ),
    limit_seconds=120.0,
    loads=(*_loading.STEPS, *_loading.DIGITS),
    machine="the time of a call on your processor",
    unkept="a trained model is larger than what is kept",
)

EXERCISES: Mapping[str, Exercise] = {each.id: each for each in (STORED, ORDER, QUANTISE, SHARED, GROUPED, BUDGET)}
