"""Quantisation: codes by hand, grids against torch's own fake quantisation, integer kernels against the same numbers in float."""

from __future__ import annotations

import copy
import logging
import platform
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpulab import compression, networks
from gpulab.compression import _finish, _integer, _modules, _quantize, _ranges, _torchao
from gpulab.errors import DeviceError, InputError, MissingLibraryError

PER_CHANNEL = _ranges.Scheme("per-channel", 8, None, 8)


def test_codes_by_hand():
    """Per channel each row has a scale of its own; per tensor the small row is left with three codes."""
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.27, -0.635, 0.01], [0.0127, 0.00635, 0.0]])
    each = compression.quantize(nn.Sequential(layer))[0]
    assert each.codes.tolist() == [[127, -64, 1], [127, 64, 0]]  # -63.5 and 63.5: ties go to the even neighbour
    assert each.scale.flatten().tolist() == pytest.approx([0.01, 0.0001])
    whole = compression.quantize(nn.Sequential(layer), "per-tensor")[0]
    assert whole.codes.tolist() == [[127, -64, 1], [1, 1, 0]]
    assert float(whole.scale) == pytest.approx(0.01)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_weights_agree_with_torchs_fake_quantisation(bits: int, weights: str):
    """PyTorch's own operator, given the same scales, gives the same weights, a tie's other neighbour too; no error is over half a step."""
    layer, most = nn.Conv2d(3, 5, 3), 2 ** (bits - 1) - 1
    with torch.no_grad():
        layer.weight[0].view(-1)[0] = 0.3  # the largest of all: others are drawn up to 1 / sqrt(27)
        layer.weight[0].view(-1)[1 : 1 + most] = (torch.arange(most)[:26] + 0.5) * 0.3 / most  # and ties
    done = compression.quantize(nn.Sequential(layer), weights, bits=bits)[0]
    scales = done.scale.flatten().expand(5).contiguous()
    theirs = torch.fake_quantize_per_channel_affine(layer.weight, scales, torch.zeros(5, dtype=torch.int32), 0, -most, most)
    # Theirs multiplies by 1 / scale, ours divides: they agree to 2 units in the last place of up to 127, which is 1.5e-5.
    tie = ((layer.weight / done.scale).abs() % 1 - 0.5).abs() < 1e-4
    assert torch.equal(done.weight[~tie], theirs[~tie])
    assert bool(((done.weight - theirs).abs() <= 1.001 * done.scale).all())
    assert bool(((done.weight - layer.weight).abs() <= done.scale / 2 + 1e-7).all())
    assert int(done.codes.abs().max()) == most


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(-100, 100, width=32),
    width=st.floats(0, 100, width=32),
    bits=st.integers(2, 8),
    seed=st.integers(0, 100),
)
def test_inputs_agree_with_torchs_fake_quantisation(low: float, width: float, bits: int, seed: int):
    """On any range the rounded inputs are those of PyTorch's operator, zero stays zero, and nothing moves by more than a step."""
    x = low + width * torch.rand(50, generator=torch.Generator().manual_seed(seed))
    x[0] = 0.0
    step, zero = _ranges.input_grid(*torch.aminmax(x), bits)
    ours = _ranges.round_inputs(x, step, zero, bits)
    theirs = torch.fake_quantize_per_tensor_affine(x, float(step), int(zero), 0, 2**bits - 1)
    # Theirs multiplies by 1 / step, ours divides: a value in the middle of two codes may go either way.
    assert bool(((ours - theirs).abs() <= step * 1.001).all())
    assert float((ours != theirs).float().mean()) <= 0.1
    assert float(ours[0]) == 0.0
    assert bool(((ours - x).abs() <= 1.01 * step).all())  # half a step, and half of one more where the zero point was rounded


@pytest.mark.parametrize("bits", [7, 8])
def test_an_even_range_ends_at_its_last_code(bits: int):
    """With steps of 1 both ends lie between two whole numbers and go to the even one; above 2^bits - 1 is no code, so the top is lower."""
    half = 2 ** (bits - 1)
    end = torch.tensor(half - 0.5)
    step, zero = _ranges.input_grid(-end, end, bits)
    assert (float(step), float(zero)) == (1.0, half)
    x = torch.tensor([-9.0 * half, -half + 0.5, 0.0, half - 0.5, 9.0 * half])
    assert _ranges.round_inputs(x, step, zero, bits).tolist() == [-half, -half, 0, half - 1, half - 1]


@pytest.mark.parametrize("bits", [7, 8])
def test_a_kernels_inputs_end_at_their_last_code(bits: int):
    """In eight bits a code of 2^8 would be 0: an image with such ends comes through a filter of 1 as it was, but for half a step."""
    if not has_integers(True):
        pytest.skip("no 8-bit kernels in this build of PyTorch")
    layer, half = nn.Conv2d(1, 1, 1, bias=False), 2 ** (bits - 1)
    nn.init.ones_(layer.weight)
    end = half - 0.5
    image = torch.tensor([[-end, end], [end, -end]])[None, None]
    with torch.no_grad():
        found = _modules.Integer(layer, _ranges.Scheme("per-channel", 8, "dynamic", bits))(image)
    assert found.flatten().tolist() == pytest.approx([-half, half - 1, half - 1, -half], rel=1e-5)


def test_zeros_of_a_pruned_model_stay_zero():
    """Prune, then quantise: the symmetric codes keep every zero."""
    pruned = compression.prune(networks.cnn(width=4), 0.8)
    done = compression.quantize(pruned, bits=4)
    assert compression.sparsity(done) >= compression.sparsity(pruned)


def test_static_uses_the_calibrated_range_and_clips():
    """The range is that of the calibration inputs, widened to hold zero; a larger input is cut off."""
    layer = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight[:] = 1.0
    done = compression.quantize(nn.Sequential(layer), activations="static", calibration=torch.tensor([[0.5], [2.55]]))
    assert float(done(torch.tensor([[100.0]]))) == pytest.approx(2.55)
    assert float(done(torch.tensor([[-3.0]]))) == 0.0
    assert float(done[0].step) == pytest.approx(0.01)


def test_a_percentile_leaves_an_outlier_out():
    """With 99 % of the values, one outlier in a thousand does not stretch the range."""
    x = torch.rand(1000, 1)
    x[0] = 50.0
    model = nn.Sequential(nn.Linear(1, 1))
    whole = compression.quantize(model, activations="static", calibration=x)
    most = compression.quantize(model, activations="static", calibration=x, percentile=99)
    assert float(whole[0].step) == pytest.approx(50 / 255)
    assert float(most[0].step) < 1.01 / 255


@pytest.mark.parametrize(("count", "percentile", "ends"), [(4, 75.0, (0, 3)), (8, 75.0, (1, 6)), (101, 90.0, (10, 90)), (5, 100.0, (0, 4))])
def test_a_percentile_is_taken_at_both_ends(count: int, percentile: float, ends: tuple[int, int]):
    """Of the values 0, 1, 2, ... with 75 % it begins a quarter of the steps in, rounded down (of 3 steps: none), and ends likewise."""
    values = torch.arange(float(count))[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    assert tuple(map(float, _quantize._ends(values, percentile))) == ends


def test_calibration_in_batches_is_calibration_at_once():
    """Several batches give the range of all of them."""
    torch.manual_seed(0)
    model, x = networks.mlp(8, 16, 4).eval(), torch.randn(30, 8)
    one = compression.quantize(model, activations="static", calibration=x)
    several = compression.quantize(model, activations="static", calibration=list(x.split(7)))
    torch.testing.assert_close(one(x), several(x))


def has_integers(convolution: bool) -> bool:
    """Whether this build has the kernels: on x86 by PyTorch's own word, for a mistake of ours must not pass for a build without them."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return ("onednn" if convolution else "fbgemm") in torch.backends.quantized.supported_engines
    return not _integer.refusal("cpu", convolution)


@pytest.mark.parametrize("kind", ["linear", "convolution", "depthwise", "strided", "per tensor"])
@pytest.mark.parametrize("place", ["positive", "both", "negative"])
def test_integer_kernels_give_the_same_numbers(kind: str, place: str):
    """Integer arithmetic on the same codes gives what float arithmetic on the rounded values gives: nothing overflows."""
    torch.manual_seed(3)
    layer = {
        "linear": lambda: nn.Linear(200, 30),
        "per tensor": lambda: nn.Linear(200, 30),
        "convolution": lambda: nn.Conv2d(16, 24, 3, padding=1),
        "depthwise": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
        "strided": lambda: nn.Conv2d(8, 8, 3, stride=2, bias=False),
    }[kind]()
    if not has_integers(isinstance(layer, nn.Conv2d)):
        pytest.skip("no 8-bit kernels in this build of PyTorch")
    x = torch.randn(5, 200) if isinstance(layer, nn.Linear) else torch.randn(5, layer.in_channels, 9, 9)
    x = {"positive": x.relu(), "both": x, "negative": -x.relu()}[place]
    weights = "per-tensor" if kind == "per tensor" else "per-channel"
    model = nn.Sequential(layer)
    integer = compression.quantize(model, weights, "dynamic", arithmetic="integer")
    assert isinstance(integer[0], _modules.Integer)
    bits = integer[0].scheme.activation_bits
    rounded = _ranges.round_inputs(x, *_ranges.input_grid(*torch.aminmax(x), bits), bits)
    expected = compression.quantize(model, weights)(rounded)
    with torch.no_grad():
        torch.testing.assert_close(integer(x), expected, atol=2e-5, rtol=1e-4)
        again = copy.deepcopy(integer)
        torch.testing.assert_close(again(x), integer(x))


@pytest.mark.parametrize(
    ("machine", "vnni", "bits"), [("x86_64", True, 8), ("x86_64", False, 7), ("AMD64", False, 7), ("arm64", False, 8), ("x86_64", None, 7)]
)
def test_inputs_have_seven_bits_without_vnni(machine: str, vnni: bool | None, bits: int, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's reduce_range: two products of 255 and 127 overflow 16 bits on an x86 CPU without VNNI."""
    monkeypatch.setattr(_integer.platform, "machine", lambda: machine)
    if vnni is None:
        monkeypatch.delattr(torch.cpu, "_is_vnni_supported", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni, raising=False)
    assert _integer.activation_bits() == bits


@pytest.mark.parametrize(
    ("options", "padding"),
    [({"padding": "same", "dilation": 2, "kernel_size": (3, 5)}, (2, 4)), ({"padding": "valid", "kernel_size": 3}, 0)],
)
def test_padding_by_name_is_padding_by_number(options: dict, padding: object):
    """PyTorch's documentation of "same": d * (k - 1) zeros in all, half on each side; of "valid": none."""
    torch.manual_seed(0)
    layer, x = nn.Conv2d(2, 3, **options), torch.randn(2, 2, 11, 12)
    done = compression.quantize(nn.Sequential(layer))
    expected = nn.functional.conv2d(x, done[0].weight, layer.bias, padding=padding, dilation=options.get("dilation", 1))
    torch.testing.assert_close(done(x), expected)


@pytest.mark.parametrize(
    ("options", "says"), [({"padding_mode": "reflect", "padding": 1}, "padding_mode='reflect'"), ({"padding": "same"}, "even kernel")]
)
def test_padding_that_is_not_zeros_on_both_sides_is_refused(options: dict, says: str):
    """A reflected border, or one more column on one side, has no place in the finished layer; it is told before a training, not after."""
    model = nn.Sequential(nn.Conv2d(2, 3, 4, **options), nn.Conv2d(3, 3, 3, padding="same"))
    for make in (compression.quantize, compression.quantize_aware):
        with pytest.raises(InputError, match=says):
            make(model)
        make(model, skip=["0"])


@pytest.mark.parametrize(("bits", "reduced"), [(7, True), (8, False)])
def test_a_linear_kernel_is_told_how_many_bits_its_inputs_may_have(bits: int, reduced: bool, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's reduce_range: seven bits where VNNI is missing, and all eight where it is there."""
    if not has_integers(False):
        pytest.skip("no 8-bit kernels in this build of PyTorch")
    asked = []
    monkeypatch.setattr(torch.ops.quantized, "linear_dynamic", lambda x, weight, reduce: asked.append(reduce) or x)
    _modules.Integer(nn.Linear(4, 4), _ranges.Scheme("per-channel", 8, "dynamic", bits))(torch.ones(2, 4))
    assert asked == [reduced]


def test_integers_follow_a_loaded_state():
    """Loading other codes is not answered from weights that were packed before."""
    if not has_integers(False):
        pytest.skip("no 8-bit kernels in this build of PyTorch")
    first, second = (compression.quantize(nn.Sequential(nn.Linear(8, 8)), "per-channel", "dynamic", arithmetic="integer") for _ in range(2))
    x = torch.randn(3, 8)
    first(x)
    first.load_state_dict(second.state_dict())
    torch.testing.assert_close(first(x), second(x))


@pytest.mark.parametrize("activations", [None, "dynamic"])
def test_torchao_has_the_same_weights(activations: str | None):
    """Torchao's symmetric 8 bits a channel are ours; with rounded inputs both stay near the float model."""
    pytest.importorskip("torchao", exc_type=ImportError)
    torch.manual_seed(0)
    model, x = networks.mlp(32, 64, 10).eval(), torch.randn(20, 32)
    ours = compression.quantize(model, "per-channel", activations)
    theirs = compression.quantize(model, "per-channel", activations, arithmetic="torchao")
    with torch.no_grad():
        for mine, its in zip(model.layers, theirs.layers, strict=True):
            if isinstance(mine, nn.Linear):  # its codes go from -128 to 127, so its step is 2 / 255 of the largest weight
                step = mine.weight.abs().amax(1, keepdim=True) / 127.5
                assert bool(((its.weight.dequantize() - mine.weight).abs() <= 0.51 * step).all())
        # Two roundings of a weight differ by a step at most: |difference| <= step * sum |x| in one layer, and there are three.
        assert float((ours(x) - theirs(x)).abs().max()) < 0.02 * float(model(x).abs().max())


def test_torchaos_weights_are_weighed_and_not_compressed_again():
    """Its tensors count no zeros and take few operators: they are weighed as any other, and a second pruning says that nothing is left."""
    pytest.importorskip("torchao", exc_type=ImportError)
    model = nn.Sequential(nn.Linear(32, 32))
    with torch.no_grad():
        model[0].weight.fill_(1.0)[:8] = 0.0
    theirs = compression.quantize(model, arithmetic="torchao")
    assert compression.sparsity(theirs) == 0.25
    found = compression.weigh({"dense": model, "torchao": theirs}, inputs=torch.ones(4, 32), deadline=0.02)
    assert (found["torchao"].forms, found["torchao"].zeros) == (("torchao",), 256)
    with pytest.raises(InputError, match="prune: no layer is left to compress"):
        compression.prune(theirs)


@pytest.mark.slow
def test_importing_torchao_is_silent_for_the_learner():
    """What torchao tells of libraries that it cannot load stays out of the lesson, and its loggers are as they were."""
    code = (
        "import torch, logging\nfrom gpulab import compression, networks\n"
        "compression.quantize(networks.mlp(8, 8, 2), arithmetic='torchao')\n"
        "assert logging.getLogger('torchao').level == logging.NOTSET"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout
    assert done.stderr == "", done.stderr
    assert logging.getLogger("torchao").level in (logging.NOTSET, logging.WARNING)


@pytest.mark.parametrize("activations", [None, "dynamic", "static"])
def test_aware_training_is_what_is_shipped(activations: str | None):
    """In evaluation, the model that was trained as if quantised gives exactly what the finished one gives."""
    torch.manual_seed(0)
    x = torch.randn(40, 1, 8, 8)
    aware = compression.quantize_aware(networks.cnn(width=4), activations=activations, bits=3)
    optimizer = torch.optim.Adam(aware.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        aware(x).square().mean().backward()
        optimizer.step()
    aware.eval()
    done = compression.finish(aware)
    torch.testing.assert_close(done(x), aware(x), atol=1e-6, rtol=1e-5)
    assert not any(p.requires_grad for m in done.modules() if hasattr(m, "codes") for p in m.parameters())


def test_the_gradient_passes_the_rounding():
    """The straight-through estimator: the weight's gradient is that of a layer with the rounded weight."""
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 3), torch.randn(7, 5)
    aware = compression.quantize_aware(nn.Sequential(layer), bits=3)
    aware(x).square().sum().backward()
    rounded = nn.Linear(5, 3)
    with torch.no_grad():
        rounded.weight[:], rounded.bias[:] = compression.quantize(nn.Sequential(layer), bits=3)[0].weight, layer.bias
    rounded(x).square().sum().backward()
    torch.testing.assert_close(aware[0].layer.weight.grad, rounded.weight.grad)


def test_a_range_that_was_never_followed_is_no_range():
    """A model that was not trained would round all inputs to zero: finishing it says what is missing."""
    aware = compression.quantize_aware(nn.Sequential(nn.Linear(2, 2)), activations="static")
    with pytest.raises(InputError, match=r"finish: no input reached 0 in training.*calibration=x"):
        compression.finish(aware)
    aware(torch.ones(1, 2))
    assert isinstance(compression.finish(aware)[0], _modules.Quantized)


def test_followed_ranges_freeze_in_evaluation():
    """The first training batch sets the range, later ones move it by a tenth, evaluation does not."""
    aware = compression.quantize_aware(nn.Sequential(nn.Linear(1, 1)), activations="static")
    followed = aware[0].observed
    aware(torch.tensor([[0.0], [1.0]]))
    assert float(followed.high) == 1.0
    aware(torch.tensor([[0.0], [2.0]]))
    assert float(followed.high) == pytest.approx(1.1)
    aware.eval()(torch.tensor([[9.0]]))
    assert float(followed.high) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": "per-row"}, "per-channel"),
        ({"activations": "lazy"}, "dynamic"),
        ({"bits": 1}, "bits"),
        ({"bits": 9}, "bits"),
        ({"activations": "static"}, "calibration"),
        ({"calibration": torch.ones(1, 8)}, "calibration"),
        ({"activations": "static", "calibration": []}, "no inputs"),
        ({"activations": "static", "calibration": torch.ones(1, 5)}, "calibration input"),
        ({"activations": "static", "calibration": torch.full((1, 8), float("nan"))}, "finite"),
        ({"activations": "static", "calibration": torch.ones(1, 8), "percentile": 3}, "percentile"),
        ({"arithmetic": "integer"}, "dynamic"),
        ({"arithmetic": "integer", "activations": "dynamic", "bits": 4}, "bits=8"),
        ({"arithmetic": "torchao", "bits": 4}, "8 bits"),
        ({"arithmetic": "fast"}, "torchao"),
        ({"layers": []}, "no layer is left"),
    ],
)
def test_refusals_say_what_to_do(options: dict, says: str):
    """Each argument that will not do is named with what would."""
    with pytest.raises(InputError, match=says):
        compression.quantize(networks.mlp(8, 8, 2), **options)


def test_torchao_says_that_it_leaves_convolutions():
    """A model of convolutions alone gets the other way named."""
    with pytest.raises(InputError, match="convolutions"):
        compression.quantize(nn.Sequential(nn.Conv2d(1, 2, 3)), arithmetic="torchao")


def test_no_integer_kernels_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    """A PyTorch without the kernels is a device without them: the refusal names the next best."""

    def gone(*_: object) -> None:
        raise RuntimeError("no engine")

    monkeypatch.setattr(_integer.Packed, "__call__", gone)
    with pytest.raises(DeviceError, match="arithmetic='torchao', or 'float'"):
        compression.quantize(networks.mlp(8, 8, 2), "per-channel", "dynamic", arithmetic="integer")


def test_a_layer_by_itself_is_finished_too():
    """Its inputs went from -1 to 3: a step of 4 / 255, of which 64 (63.75, rounded) lie below zero. What was trained goes on training."""
    aware = compression.quantize_aware(nn.Linear(2, 2), activations="static")
    with pytest.raises(InputError, match=r"^finish: no input reached the layer in training"):
        _finish.finish(aware)
    aware(torch.tensor([[-1.0, 3.0]]))
    done = _finish.finish(aware)
    assert isinstance(done, _modules.Quantized)
    assert (float(done.step), float(done.zero)) == (pytest.approx(4 / 255), 64)
    assert (aware.training, done.training) == (True, False)
    inner = _finish.finish(nn.Sequential(nn.ReLU(), compression.quantize_aware(nn.Linear(2, 2)).train()))
    assert [each.training for each in inner.modules()] == [False] * 3
    assert isinstance(inner[1], _modules.Quantized)


@pytest.mark.parametrize(("activations", "kind"), [(None, "weights"), ("dynamic", "inputs and weights")])
def test_torchao_is_asked_for_the_linear_layers_that_were_chosen(activations: str | None, kind: str, monkeypatch: pytest.MonkeyPatch):
    """Its second version of the weights' or of the inputs' and the weights' form (a stand-in for the library)."""
    asked: list[tuple[str, list[str]]] = []

    def quantize_(model: nn.Module, config: str, filter_fn: object) -> None:
        asked.append((config, [name for name, each in model.named_modules() if filter_fn(each, name)]))  # type: ignore[operator]

    library = SimpleNamespace(
        quantization=SimpleNamespace(
            Int8DynamicActivationInt8WeightConfig=lambda version: f"inputs and weights {version}",
            Int8WeightOnlyConfig=lambda version: f"weights {version}",
            quantize_=quantize_,
        )
    )
    monkeypatch.setitem(sys.modules, "torchao", library)
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Linear(2, 2), nn.Linear(2, 2)).train()
    done = _torchao.quantized(model, {"0": model[0], "2": model[2]}, _ranges.Scheme("per-channel", 8, activations, 8))
    assert asked == [(f"{kind} 2", ["2"])]
    assert done is model
    assert not done.training

    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(library.quantization, "quantize_", refuses)
    with pytest.raises(DeviceError, match=r"^quantize: torchao refused \(no such device\); expected a device it supports"):
        _torchao.quantized(model, {"2": model[2]}, PER_CHANNEL)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingLibraryError, match=r"^quantize: torchao is not installed; expected it\. Run .*pip install torchao"):
        _torchao.quantized(model, {"2": model[2]}, PER_CHANNEL)


@pytest.mark.parametrize(
    "scheme", [("per-tensor", 8, None), ("per-channel", 7, None), ("per-channel", 8, "static"), ("per-tensor", 4, "static")]
)
def test_what_torchao_was_not_tried_with_is_refused(scheme: tuple[str, int, str | None]):
    """One of the three is enough."""
    with pytest.raises(InputError, match="expected per-channel, 8 bits, and None or 'dynamic'"):
        _torchao.quantized(nn.Linear(2, 2), {"": nn.Linear(2, 2)}, _ranges.Scheme(*scheme, 8))


def test_a_library_is_silent_while_it_is_imported_and_no_longer():
    """Its warnings and its loggers' come back behind the block, after an error too; an error of its loggers passes all along."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    try:
        for logger, level in zip(loggers, (logging.INFO, logging.DEBUG), strict=True):
            logger.setLevel(level)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with _torchao.quiet():
                warnings.warn("inside", stacklevel=1)
                heeded = [[logger.isEnabledFor(level) for level in (logging.WARNING, logging.ERROR)] for logger in loggers]
            assert heeded == [[False, True]] * 2
            with pytest.raises(ZeroDivisionError), _torchao.quiet():
                raise ZeroDivisionError
            warnings.warn("outside", stacklevel=1)
        assert [str(each.message) for each in heard] == ["outside"]
        assert [logger.level for logger in loggers] == [logging.INFO, logging.DEBUG]
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
