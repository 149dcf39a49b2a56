"""07.14: take it home: 8-bit weights for any model."""

# %% exercise
id = "07.14"
title = "take it home: 8-bit weights for any model"
answer_name = "to_int8"
live = True
loads = ["torch"]

# %% stub
import torch
from torch import nn


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    ...

# %% hint
# Write a small module with two buffers: the codes (torch.int8) and the scales (one for each row).
# Use register_buffer, so that state_dict contains them. Keep the bias as it is.

# %% hint
# In forward, multiply codes by scales to get the weight back, and call
# torch.nn.functional.linear(x, weight, self.bias).

# %% hint
# To find the layers: for name, child in model.named_children(). Replace a linear child with
# setattr(model, name, ...), and call the function again for any other child.

# %% solution
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", (weight / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    if isinstance(model, nn.Linear):
        return Int8Linear(model)
    for name, child in model.named_children():
        setattr(model, name, to_int8(child))
    return model

# %% check
import copy
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_SCALES = 8  # bytes allowed for each row in addition to its codes: enough for a float64 scale
# Limits for an answer's error, as multiples of the error of correct rounding (to the nearest code, one scale for each row): for the mean
# over the channels (truncation doubles the error), and for a single channel.
_FAIR, _FAIR_CHANNEL = 1.6, 4.0


def _plain(seed: int) -> Any:
    """Two linear layers with an activation between them, as in most examples."""
    from torch import nn

    return _seeded(seed, lambda: nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32)))


def _nested(seed: int) -> Any:
    """A convolution and a batch norm, then linear layers at three depths of nesting; one of them has no bias."""
    from torch import nn

    def build() -> Any:
        block = nn.Sequential(nn.Linear(72, 40, bias=False), nn.Sequential(nn.ReLU(), nn.Linear(40, 24)))
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), block, nn.LayerNorm(24), nn.Linear(24, 16))

    return _seeded(seed, build)


def _uneven(seed: int) -> Any:
    """A linear layer whose rows differ widely in magnitude; one row holds only zeros."""
    import torch
    from torch import nn

    model = _seeded(seed, lambda: nn.Sequential(nn.Linear(64, 6)))
    with torch.no_grad():
        model[0].weight *= torch.tensor([1.0, 0.02, 30.0, 0.1, 0.0, 1.0])[:, None]
        model[0].bias *= torch.tensor([1.0, 0.02, 30.0, 0.1, 1.0, 1.0])
    return model


def _seeded(seed: int, build: Any) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build().eval()


_CASES = (
    ("a layer with a row of zeros and rows of very different sizes", _uneven, (64, 64)),
    ("a model of two linear layers", _plain, (64, 64)),
    ("inputs with three dimensions", _plain, (4, 16, 64)),
    ("a model with blocks inside blocks", _nested, (64, 1, 8, 8)),
)


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for words, make, shape in _CASES:
        before = make(1)
        after = ask(f"For {words}", copy.deepcopy(before))
        _judge(words, before, after, shape)
    _reload(ask)
    return "The linear layers take about a quarter of their bytes, the outputs hardly moved, and state_dict holds all that a file needs."


def _judge(words: str, before: Any, after: Any, shape: tuple[int, ...]) -> None:
    import torch
    from torch import nn

    if not isinstance(after, nn.Module):
        raise Refused(f"For {words} your function returned {checking.describe(after)}; expected the model, a torch.nn.Module.")
    left = [name for name, each in after.named_modules() if isinstance(each, nn.Linear) and _floats(each)]
    total = sum(isinstance(each, nn.Linear) for each in before.modules())
    if left and len(left) < total:
        raise Refused(
            f"For {words}: the linear layer {left[0]!r} still has a float weight. Look inside the modules of the model, at any depth."
        )
    if left:
        raise Refused(
            f"For {words}: the linear layers still have float weights. Rounded floats take as many bytes as before. Store torch.int8, and do not keep the old layer."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        x = torch.randn(shape)
    with torch.no_grad():
        right, got = before(x), _run(words, after, x)
    if not isinstance(got, torch.Tensor) or got.shape != right.shape:
        what = f"a tensor of the shape {tuple(got.shape)}" if isinstance(got, torch.Tensor) else checking.describe(got)
        raise Refused(f"For {words} the model returned {what}; expected a tensor of the shape {tuple(right.shape)}.")
    if not bool(torch.isfinite(got).all()):
        raise Refused(f"For {words} an output is not finite. A row of zeros has the scale 0, and 0 / 0 is nan: keep the scale above 0.")
    with torch.no_grad():
        error, fair = (_rms(each - right) / _rms(right) for each in (got, _rounded(before)(x)))
    if float(error.mean()) > _FAIR * float(fair.mean()) or bool((error > _FAIR_CHANNEL * fair + 1e-5).any()):
        moved = f"{float(error.max()):.1%}" if float(error.max()) < 1 else "more than its own size"
        spread = _rms(got - right - (got - right).flatten(0, -2).mean(0)) / _rms(right)
        if float(spread.mean()) < _FAIR * float(fair.mean()):
            raise Refused(f"For {words} an output is off by the same amount for every input. Is the bias still added?")
        raise Refused(f"For {words} an output moved by {moved}. {_why((error / fair)[fair > 0])}")
    _weigh(words, before, after)


def _rms(outputs: Any) -> Any:
    """The root mean square of each output channel, over all inputs."""
    return outputs.flatten(0, -2).square().mean(0).sqrt()


def _rounded(model: Any) -> Any:
    """A copy whose linear weights are rounded to the nearest of 255 codes of their row."""
    import torch
    from torch import nn

    model = copy.deepcopy(model)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                scales = layer.weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
                layer.weight.copy_((layer.weight / scales).round() * scales)
    return model


def _floats(layer: Any) -> bool:
    """Whether a linear layer keeps its weight as a float parameter or buffer of its own."""
    own = {**layer._parameters, **layer._buffers}
    return own.get("weight") is not None and own["weight"].is_floating_point()


def _run(words: str, model: Any, x: Any) -> Any:
    try:
        return model(x)
    except Exception as error:
        raise Refused(f"For {words} the model that you returned raised {checking.explain(error)}.") from error


def _why(ratio: Any) -> str:
    """Return the likely cause of a large error; ``ratio`` holds, for each channel, the error relative to that of correct 8-bit rounding."""
    if float(ratio.max()) > 10 and float(ratio.min()) < _FAIR_CHANNEL:
        return "The rows have very different sizes. Give each row its own scale."
    if float(ratio.max()) < 40:
        return "8 bits do better. Use the codes from -127 to 127, and round to the nearest code before the conversion to int8."
    return "Are the codes multiplied by the scales of their rows, and all of them from -127 to 127? In int8, 128 becomes -128."


def _tensors(words: str, model: Any) -> dict[str, Any]:
    import torch

    state = model.state_dict()
    strange = [name for name, each in state.items() if not isinstance(each, torch.Tensor)]
    if strange:
        raise Refused(f"For {words}, {strange[0]!r} of state_dict is no tensor. Use buffers with plain tensors.")
    return dict(state)


def _bytes(tensors: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _weigh(words: str, before: Any, after: Any) -> None:
    import torch
    from torch import nn

    linear = [each for each in before.modules() if isinstance(each, nn.Linear)]
    codes = sum(each.weight.numel() for each in linear)
    rest = _bytes(before.state_dict().values()) - 4 * codes
    tensors = _tensors(words, after).values()
    has = _bytes(tensors)
    if has < rest + codes:
        raise Refused(
            f"For {words} state_dict has {has:,} bytes, which is too few: something is missing, and a saved file would lack it. "
            "Store the codes and scales with register_buffer."
        )
    if has > rest + codes + _SCALES * sum(each.out_features for each in linear) + 64 * len(linear):
        raise Refused(
            f"For {words} state_dict has {has:,} bytes; int8 codes and a scale for each row need about {rest + codes:,}. "
            "Store the codes as torch.int8, and do not keep the old weight."
        )
    if sum(each.numel() for each in tensors if each.dtype is torch.int8) < codes:
        raise Refused(f"For {words} there are not {codes:,} codes of the type torch.int8 in state_dict, one for each weight.")


def _reload(ask: Any) -> None:
    """Refuse models whose state_dict lacks something: after loading it, another model must give the same outputs."""
    import torch

    one, other = (ask("For a model of two linear layers", _plain(seed)) for seed in (1, 2))
    try:
        other.load_state_dict(one.state_dict())
    except Exception as error:
        raise Refused(f"A state_dict of your model cannot be loaded into another one: {checking.explain(error)}.") from error
    x = torch.ones(3, 64)
    with torch.no_grad():
        same = torch.allclose(one(x), other(x), atol=1e-5)
    if not same:
        raise Refused(
            "A model that loads the state_dict of another one gives other outputs, so something is not in it. "
            "Are the scales in a buffer, and is the weight computed in forward?"
        )

# %% wrong: at any depth
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", (weight / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, Int8Linear(child))
    return model

# %% wrong: still have float weights
import torch
from torch import nn


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            scales = layer.weight.data.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
            layer.weight.data = (layer.weight.data / scales).round() * scales
    return model

# %% wrong: which is too few
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        self.scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.codes = (weight / self.scales).round().to(torch.int8)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else to_int8(child))
    return model

# %% wrong: do not keep the old weight
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", (weight / scales).round())
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else to_int8(child))
    return model

# %% wrong: round to the nearest code
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", (weight / scales).to(torch.int8))
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else to_int8(child))
    return model

# %% wrong: Give each row its own scale
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().max() / 127
        self.register_buffer("codes", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scale, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else to_int8(child))
    return model

# %% wrong: Is the bias still added
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", (weight / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else to_int8(child))
    return model

# %% wrong: something is not in it
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        self.scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", (weight / self.scales).round().to(torch.int8))
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.codes * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    for name, child in model.named_children():
        setattr(model, name, Int8Linear(child) if isinstance(child, nn.Linear) else to_int8(child))
    return model

# %% wrong: the model, a torch.nn.Module
def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    return model.state_dict()

# %% wrong: codes of the type torch.int8
import torch
from torch import nn


class Int8Linear(nn.Module):
    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach()
        scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        self.register_buffer("codes", ((weight / scales).round() + 128).to(torch.uint8))
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    def forward(self, x):
        return nn.functional.linear(x, (self.codes.float() - 128) * self.scales, self.bias)


def to_int8(model):
    """Return the model with every nn.Linear, at any depth, replaced by a layer with int8 weights."""
    if isinstance(model, nn.Linear):
        return Int8Linear(model)
    for name, child in model.named_children():
        setattr(model, name, to_int8(child))
    return model
