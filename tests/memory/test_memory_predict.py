"""Predictions against real steps (an oracle of its own in benchmarks/), by hand, and with what cannot be predicted."""

import functools
import gc
import json
import logging
import pathlib
import random
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import memory, networks
from gpulab.errors import DeviceError, InputError, StoppedError
from gpulab.evidence import Badge
from gpulab.memory import Prediction, _predict, _sandbox, _step
from gpulab.memory._free import free_bytes_of
from gpulab.memory._step import FakeScaler
from gpulab.units import parse_bytes

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))
from _memory_cases import named_cases, random_case
from _memory_oracle import NotOnThisProcessorError, allocator_peak, live_peak
from _memory_unusual import unusual_cases

# Two layers and ten positions run the same operators as the benchmark's four and forty, which `make soak` tries too.
CASES = {case.name: case for case in named_cases(layers=2, positions=10)}
FULL = [pytest.param(case, marks=pytest.mark.soak, id=case.name) for case in named_cases()]
RANDOM = [random_case(seed) for seed in range(3000, 3006)]


def real(witness, *args, **kwargs):
    """Return what the witness sees in a real step; skip the test where this processor can't run that step."""
    try:
        return witness(*args, **kwargs)
    except NotOnThisProcessorError as error:
        pytest.skip(str(error))


def predicted(case):
    torch.manual_seed(0)
    return memory.predict(
        case.model(), *case.inputs(), loss=case.loss, optimizer=case.optimizer, precision=case.precision, checkpoint=case.checkpoint
    )


@functools.cache
def predicted_by_name(name):
    return predicted(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_peak_is_that_of_a_real_step(name):
    """Within 1 % of the live storage that an independent tracker sees in real CPU steps, the first step's too."""
    first, later, _ = real(live_peak, CASES[name], steps=2)
    p = predicted_by_name(name)
    assert p.peak_bytes == pytest.approx(later, rel=0.01)
    assert p.first_step_peak_bytes == pytest.approx(first, rel=0.01)
    assert sum(p.peak_by_category.values()) == p.peak_bytes


@pytest.mark.usefixtures("old_aside")  # the witness collects garbage first
@pytest.mark.parametrize("name", list(CASES)[::3])
def test_scratch_covers_the_allocator(name):
    """Peak and scratch together are never under what the CPU allocator really reached, and what is needed is above it."""
    total = real(allocator_peak, CASES[name])
    p = predicted_by_name(name)
    assert p.peak_bytes + p.scratch_bytes >= 0.995 * total
    assert not p.fits(total)
    assert p.needed_bytes() > total


@pytest.mark.parametrize("case", FULL)
def test_peak_of_deeper_models(case):
    """The same with the benchmark's own numbers of layers and positions, over three steps."""
    first, later, _ = real(live_peak, case, steps=3)
    p = predicted(case)
    assert p.peak_bytes == pytest.approx(later, rel=0.01)
    assert p.first_step_peak_bytes == pytest.approx(first, rel=0.01)
    assert p.peak_bytes + p.scratch_bytes >= 0.995 * real(allocator_peak, case)


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.name)
def test_random_architectures(case):
    """The same on models drawn at random, with random optimizers, precisions and checkpointing."""
    _, later, _ = real(live_peak, case, steps=2)
    assert predicted(case).peak_bytes == pytest.approx(later, rel=0.02)


@pytest.mark.parametrize("name", ["encoder and decoder", "spectral, complex weights", "embedding bag", "weight and spectral norm"])
def test_other_kinds_of_models(name):
    """Masks of nn.Transformer, complex weights, bags and parametrisations are followed like the rest."""
    case = next(case for case in unusual_cases() if case.name == name)
    assert predicted(case).peak_bytes == pytest.approx(real(live_peak, case, steps=2)[1], rel=0.02)


def test_a_linear_layer_by_hand():
    """One linear layer under Adam: parameters, gradients, two moments, counted by hand."""
    p = memory.predict(nn.Linear(1000, 1000, bias=False), torch.zeros(1, 1000), loss=torch.sum, optimizer="adam")
    parts = p.peak_by_category
    assert parts["parameters"] == parts["gradients"] == 4_000_000
    assert parts["optimizer"] == 8_000_000 + 4  # and the step counter
    assert p.parameter_count == 1_000_000
    assert p.peak_phase == "optimizer"


def test_result_round_trips_and_is_modelled():
    """The prediction survives JSON, and carries assumptions, source and known error."""
    p = memory.predict(networks.mlp(8, 8, 2), torch.zeros(4, 8), loss=torch.sum)
    assert Prediction.from_dict(json.loads(json.dumps(p.to_dict()))).to_dict() == p.to_dict()
    assert p.evidence.badge is Badge.MODELLED
    assert p.evidence.assumptions
    assert p.evidence.known_error
    assert max(p.timeline.total_bytes) == max(p.peak_bytes, p.first_step_peak_bytes)
    assert "peak" in p._repr_html_()


def test_fits_counts_scratch_and_margin():
    """A capacity of exactly peak and scratch is not enough; one with the margin is; the machine's own is asked by name."""
    p = memory.predict(networks.mlp(), torch.zeros(64, 784), loss=torch.sum)
    assert not p.fits(p.peak_bytes + p.scratch_bytes)
    assert p.fits(p.needed_bytes())
    assert not p.fits(p.needed_bytes() - 1)
    assert p.fits(parse_bytes("1 TiB"))
    assert p.fits(np.int64(2**40))
    with pytest.raises(InputError, match="capacity"):
        p.fits(-1)
    with pytest.raises(DeviceError):
        p.fits("cuda:77")


def everything_of(model):
    return {name: (id(t), t.clone(), t.grad) for name, t in [*model.named_parameters(), *model.named_buffers()]}


@pytest.mark.parametrize("call", [memory.predict, memory.trace])
def test_the_caller_finds_all_as_it_was(call):
    """Parameters, buffers, gradients, attributes, random states and modes are untouched, even after a failure."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.LSTM(4 * 36, 8))
    model.remark = [1, {"a": torch.ones(2)}]
    x = torch.randn(2, 1, 8, 8, requires_grad=True)
    model(x)[0].sum().backward()
    gradient = x.grad.clone()
    before = everything_of(model)
    attributes = [dict(m.__dict__) for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()

    def loss(output):
        random.random(), np.random.rand()
        return output[0].sum()

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        call(model, x, loss=loss, optimizer="adam", precision="bfloat16", checkpoint=True)
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
    with pytest.raises(InputError):
        call(model, torch.zeros(1), loss=loss)
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        identity, value, grad = before[name]
        assert id(t) == identity
        assert torch.equal(t, value)
        assert t.grad is grad
    for module, kept in zip(model.modules(), attributes, strict=True):
        assert module.__dict__.keys() == kept.keys()
        assert all(module.__dict__[key] is kept[key] for key in kept)
    assert torch.equal(x.grad, gradient)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert not torch.is_autocast_enabled("cpu")


def test_a_loss_that_uses_the_model_leaves_its_gradients_alone():
    """A penalty on the model's own weights, and a second network in the loss, are followed and left alone."""
    model, teacher = nn.Linear(50, 50), nn.Linear(50, 50)
    memory.predict(
        model, torch.zeros(2, 50), loss=lambda out: (out - teacher(out)).square().sum() + sum(p.norm() for p in model.parameters())
    )
    assert all(p.grad is None for m in (model, teacher) for p in m.parameters())
    assert type(model.weight) is nn.Parameter
    assert torch.isfinite(model(torch.zeros(1, 50))).all()


def test_a_meta_model_a_factory_and_a_real_one_agree():
    """The same model on the meta device, from a factory and real gives the same prediction."""
    x = torch.zeros(2, 16, dtype=torch.int64)
    make = lambda: networks.transformer(100, 32, 4, 2, context=16, tied=True)  # noqa: E731
    with torch.device("meta"):
        on_meta = make()
    answers = {memory.predict(m, x, targets=x).peak_bytes for m in (on_meta, make, make())}
    assert len(answers) == 1


def test_a_billion_parameters_cost_nothing():
    """A 24-layer transformer with a billion parameters is predicted in a process that grows by less than 300 MB."""
    from memory_prediction import billion

    found = billion()
    assert found["parameters"] > 1e9
    assert found["above_imports"] < 300e6
    # Adam alone needs four copies of the parameters in float32.
    assert found["peak"] > 16 * found["parameters"]


def test_precisions_scale_as_they_must():
    """Pure bf16 halves parameters, gradients and moments; autocast keeps the parameters."""
    run = lambda precision: memory.predict(nn.Linear(512, 512), torch.zeros(8, 512), loss=torch.sum, precision=precision)  # noqa: E731
    full, mixed, pure = run("float32"), run("bfloat16"), run("pure-bfloat16")
    assert mixed.peak_by_category["parameters"] == full.peak_by_category["parameters"]
    assert 2 * pure.peak_by_category["parameters"] == full.peak_by_category["parameters"]
    assert run("float16").peak_bytes > 0


def test_checkpointing_saves_activations():
    """Recomputing a deep stack lowers the peak."""
    model, x = networks.mlp(64, 64, 64, depth=12), torch.zeros(4096, 64)
    stack = nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)])
    assert memory.predict(stack, x, loss=torch.sum, checkpoint=True).peak_bytes < memory.predict(stack, x, loss=torch.sum).peak_bytes
    assert "forward" not in stack[0].__dict__
    assert memory.predict(model, x, loss=torch.sum).peak_bytes > 0


class Branches(nn.Module):
    """Looks at a value."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):  # noqa: D102
        return self.a(x) if x.sum() > 0 else x


class Odd(nn.Module):
    """Complex numbers, views, in-place work, a zero-size tensor and something that is no tensor."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x, factor, nothing):  # noqa: D102
        y = self.a(x).clone()
        y[:, ::2].mul_(factor)
        spectrum = torch.fft.rfft(y)
        return spectrum.abs().square().mean() + nothing.sum() + y.transpose(0, 1).conj().real.sum()


def test_odd_tensors_work():
    """Complex dtypes, views, in-place operators, empty tensors and plain numbers pass."""
    p = memory.predict(Odd(), torch.ones(4, 8), 2.0, torch.zeros(0, 3))
    t = memory.trace(Odd(), torch.ones(4, 8), 2.0, torch.zeros(0, 3), optimizer="adam")
    assert p.peak_bytes == t.peak_bytes


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((nn.Linear(4, 4), torch.zeros(2, 5)), {"loss": torch.sum}, "forward"),
        ((nn.Linear(4, 4), torch.zeros(2, 4)), {}, "one element"),
        ((nn.Linear(4, 4), torch.zeros(2, 4)), {"loss": torch.sum, "precision": "int3"}, "precision"),
        ((nn.Linear(4, 4), torch.zeros(2, 4)), {"loss": torch.sum, "optimizer": "adman"}, "optimizer"),
        ((nn.Linear(4, 4), torch.zeros(2, 4)), {"loss": torch.sum, "optimizer": 3}, "optimizer"),
        ((nn.Linear(4, 4), torch.zeros(2, 4)), {"loss": torch.sum, "optimizer": torch.optim.SGD([torch.zeros(1)])}, "factory"),
        ((nn.Linear(4, 4), torch.zeros(2, 4)), {"loss": torch.sum, "optimizer": lambda p: torch.optim.SGD(p, lr=-1)}, "optimizer"),
        ((nn.Linear(4, 4).requires_grad_(False), torch.zeros(2, 4)), {"loss": torch.sum}, "gradient"),
        ((nn.LazyLinear(4), torch.zeros(2, 4)), {"loss": torch.sum}, "lazy"),
        ((nn.Linear(4, 4), torch.zeros(2, 4).to_sparse()), {"loss": torch.sum}, "dense"),
        ((Branches(), torch.zeros(2, 4)), {"loss": torch.sum}, "values"),
        ((3, torch.zeros(2, 4)), {}, "Module"),
        ((lambda: 3, torch.zeros(2, 4)), {}, "Module"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_one_sentence(arguments, options, word):
    """Each bad argument or model is refused in a sentence that names what is wrong."""
    with pytest.raises(InputError, match=word) as caught:
        memory.predict(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_cuda_rules_need_cuda():
    """On a machine without CUDA its rules are refused instead of aborting the process."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(DeviceError, match="fake"):
        memory.predict(nn.Linear(4, 4), torch.zeros(2, 4), loss=torch.sum, device="cuda")


def test_stop_and_interrupt_leave_the_model_whole():
    """A stop and an interrupt in mid-step end the prediction, and the model is real again."""
    model, calls = nn.Linear(4, 4), iter(range(1000))
    with pytest.raises(StoppedError):
        memory.predict(model, torch.zeros(2, 4), loss=torch.sum, stop=lambda: next(calls) > 3)

    def interrupted(output):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.predict(model, torch.zeros(2, 4), loss=interrupted)
    assert model(torch.ones(1, 4)).shape == (1, 4)
    seen = []
    memory.predict(model, torch.zeros(2, 4), loss=torch.sum, progress=lambda fraction, text: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_lstm_workspace_is_that_of_the_real_kernel():
    """The modelled workspace of oneDNN's LSTM equals the real one, for awkward sizes in both dtypes."""
    from gpulab.memory._kernels import rnn_workspace_bytes

    r = random.Random(0)
    for _ in range(12):
        positions, batch, inputs, hidden = (
            r.randint(1, 20),
            r.randint(1, 9),
            r.choice((1, 17, 64, 256, 300)),
            r.choice((1, 9, 64, 250, 256)),
        )
        gates = torch.zeros(4 * hidden)
        state = torch.zeros(1, batch, hidden)
        out = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(positions, batch, inputs), torch.zeros(4 * hidden, inputs), torch.zeros(4 * hidden, hidden), gates, gates,
            state, state, False, [], 2, hidden, 1, True, False, False, True,
        )  # fmt: skip
        assert out[3].numel() == rnn_workspace_bytes(positions, batch, inputs, hidden, 4)


@pytest.mark.gpu
def test_cuda_prediction_is_near_the_allocator():
    """On CUDA the peak is within 1 % of what PyTorch's allocator reports besides cuBLAS's workspaces, and the need is above all of it."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    gc.collect()  # what earlier tests of the run left behind is none of this step's, nor are the workspaces that they made
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    model, x = networks.transformer(1000, 256, 4, 4, context=128).cuda(), torch.randint(1000, (16, 128), device="cuda")
    p = memory.predict(model, x, targets=x, optimizer="adam")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        optimizer.zero_grad()
        model(x, x).backward()
        optimizer.step()
    real = torch.cuda.max_memory_allocated() - before
    del optimizer
    held = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()  # one for each thread that multiplies, the backward pass's too: 65 MiB together on an H200
    workspaces = held - torch.cuda.memory_allocated()
    assert p.peak_bytes == pytest.approx(real - workspaces, rel=0.01)
    assert p.needed_bytes("cuda") > real


def test_import_is_light():
    """Importing gpulab.memory loads no torch."""
    code = "import sys, gpulab.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["lr_scheduler", "swa_utils", "optimizer", "nothing"])
def test_what_is_no_optimizer_is_refused_by_name(name):
    """Modules and helpers of torch.optim are not offered, and asked for are refused in a sentence that lists optimizers only."""
    with pytest.raises(InputError, match="is unknown; expected one of") as refused:
        memory.predict(nn.Linear(4, 4), torch.zeros(2, 4), loss=torch.sum, optimizer=name)
    offered = str(refused.value).split("expected one of ")[1].split(", or a factory")[0].split(", ")
    assert {"adam", "adamw", "sgd", "sgd-momentum"} <= set(offered)
    made = [*torch.optim.Optimizer.__subclasses__(), *torch.optim.Adam.__subclasses__()]
    assert set(offered) - {"sgd-momentum"} <= {kind.__name__.lower() for kind in made}


def test_a_capacity_may_be_nothing_but_not_less():
    """0 bytes is a capacity like any other, into which no step fits."""
    assert free_bytes_of(0, "cuda") == (0, "cuda")
    free, kind = free_bytes_of("cpu", "cuda")  # a device speaks for itself
    assert (free > 0, kind) == (True, "cpu")
    with pytest.raises(InputError, match="-1 bytes; expected 0 or more"):
        free_bytes_of(-1, "cuda")


def test_the_stand_in_for_a_scaler_scales_and_takes_it_back():
    """By hand: the loss times 65,536, and a step of SGD by rate times gradient, as without a scale (PyTorch's GradScaler begins there)."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = FakeScaler("cpu")
    scaled = scaler.scale(3 * weight.sum())
    assert scaled.item() == 6.0 * 65536
    scaled.backward()
    assert float(weight.grad) == 3.0 * 65536
    scaler.step(optimizer)
    assert weight.item() == 2.0 - 0.5 * 3.0


def test_a_square_mask_counts_as_causal_while_predicting():
    """A fake mask has no values to look at; what the caller says goes first, and PyTorch's own question is back afterwards."""
    from torch.nn.modules import transformer

    own = transformer._detect_is_causal_mask
    with _predict._square_masks_causal():
        ask = transformer._detect_is_causal_mask
        square, wide, cube = torch.zeros(3, 3), torch.zeros(3, 4), torch.zeros(3, 3, 3)
        assert [ask(mask, None, 3) for mask in (square, wide, cube, None)] == [True, False, False, False]
        assert (ask(None, True), ask(square, False)) == (True, False)
    assert transformer._detect_is_causal_mask is own


def test_what_is_kept_between_steps_by_hand():
    """At the end of Adam's step: weight, gradient and two moments of 4 MB, the step counter, the loss and the input of 1,000."""
    p = memory.predict(nn.Linear(1000, 1000, bias=False), torch.zeros(1, 1000), loss=torch.sum, optimizer="adam")
    assert p.kept_bytes == 16_000_000 + 4 + 4 + 4000
    assert [t.category for t in p.peak_tensors[:4]].count("optimizer") == 2
    assert len(p.timeline.steps) == 2


@pytest.mark.parametrize(
    ("device", "there", "kind"),
    [(None, True, "cpu"), ("cpu", False, "cpu"), ("gpu", True, "cuda"), ("rocm", True, "cuda"), (torch.device("cuda", 1), True, "cuda")],
)
def test_whose_rules_are_followed(monkeypatch, device, there, kind):
    """The model's own device where none is named; every name of a CUDA device, where there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert _predict._device_type(nn.Linear(1, 1), device) == kind
    on_cuda = nn.Linear(1, 1)
    monkeypatch.setattr(on_cuda, "parameters", lambda: iter([types.SimpleNamespace(device=torch.device("cuda"))]))
    assert _predict._device_type(on_cuda, None) == ("cuda" if there else "cpu")
    for wrong in ("abacus", "meta", 5):
        with pytest.raises(DeviceError, match="cannot make fake tensors"):
            _predict._device_type(on_cuda, wrong)


def test_precisions_and_optimizers_by_name():
    """What is cast, what the parameters are kept in, whether the loss is scaled; a function without a name has one all the same."""
    assert dict(_step.PRECISIONS) == {
        "float32": (None, None, False), "bfloat16": ("bfloat16", None, False), "float16": ("float16", None, True),
        "pure-bfloat16": (None, "bfloat16", False), "pure-float16": (None, "float16", False),
    }  # fmt: skip
    weights = [nn.Parameter(torch.ones(1))]
    name, make = _step.optimizer_factory("predict", "sgd-momentum")
    assert (name, make(weights).param_groups[0]["momentum"]) == ("SGD with momentum", 0.9)
    name, make = _step.optimizer_factory("predict", "AdamW")
    assert (name, type(make(weights))) == ("AdamW", torch.optim.AdamW)
    assert _step.optimizer_factory("predict", None) == ("no optimizer", None)
    own = [torch.optim.SGD, lambda parameters: None, functools.partial(torch.optim.SGD, lr=1.0)]
    assert [_step.optimizer_factory("predict", one)[0] for one in own] == ["SGD", "own optimizer", "optimizer"]


def test_where_the_loss_is_found():
    """A mapping's or an object's own; one element with a history, or a sentence."""
    loss = torch.ones((), requires_grad=True)
    for value in (loss, {"loss": loss}, types.SimpleNamespace(loss=loss)):
        assert _step.loss_of("predict", value) is loss
    with pytest.raises(InputError, match="Unfreeze a layer"):
        _step.loss_of("predict", torch.ones(()))
    with pytest.raises(InputError, match=r"the loss is a tensor of shape \(2,\); expected"):
        _step.loss_of("predict", torch.ones(2, requires_grad=True))
    with pytest.raises(InputError, match="the loss is an int; expected"):
        _step.loss_of("predict", 3)
    with pytest.raises(InputError, match="the loss is a float; expected"):
        _step.loss_of("predict", 1.0)


def test_what_a_step_changed_is_put_back():
    """A forward of one's own on a child, and the hooks of all optimizers."""
    from torch.optim import optimizer as module

    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)]))
    own = model[0].forward
    model[0].forward = own
    before = len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)
    with _step.checkpointed(model):
        assert model[0].__dict__["forward"] is not own
        assert "forward" in model[1][0].__dict__
        assert "forward" not in model[1].__dict__
    assert model[0].__dict__["forward"] is own
    assert "forward" not in model[1][0].__dict__
    memory.predict(nn.Linear(2, 2), torch.ones(1, 2), loss=torch.sum)
    assert (len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)) == before


def test_wrappers_are_looked_through_and_scripts_refused():
    """What torch.compile and nn.DataParallel wrap is the model; TorchScript has no Python to follow."""
    model = nn.Linear(2, 2)
    assert _sandbox.unwrapped("predict", nn.DataParallel(model)) is model
    wrapped = nn.Module()
    wrapped._orig_mod = model
    assert _sandbox.unwrapped("predict", wrapped) is model


def test_the_modules_that_a_loss_holds():
    """Its own, its partial's, its method's, its closure's, its defaults'; of a number none."""
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)

    def closed(x, second=other, *, third=one):
        return one(x)

    assert _sandbox.modules_in(one) == [one]
    assert _sandbox.modules_in(functools.partial(torch.sum, one, dim=other)) == [one, other]
    assert _sandbox.modules_in(one.forward) == [one]
    assert _sandbox.modules_in(closed) == [one, other, one]
    assert _sandbox.modules_in(3) == []


def test_a_device_that_says_nothing_of_its_memory_is_a_sentence(monkeypatch):
    """Apple's may not; a capacity is asked for."""
    from gpulab.memory import _free

    monkeypatch.setattr(_free.devices, "find", lambda device: types.SimpleNamespace(free_bytes=None, kind="mps"))
    with pytest.raises(DeviceError, match="does not say how much memory is free"):
        free_bytes_of("mps", "cpu")


def test_scratch_by_hand():
    """What is converted, repacked and unfolded inside operators, from the rules' own words; 64 KiB of small buffers go with each."""
    from gpulab.memory import _kernels

    small, threads = 64 * 1024, torch.get_num_threads()
    single, half, whole = torch.ones(10, 6), torch.ones(10, 6, dtype=torch.float16), torch.ones(10, 6, dtype=torch.int64)
    assert _kernels._pointwise((single, single), [single]) == 0
    assert _kernels._pointwise((half, whole), [single]) == 2 * 60 * 4  # both become float32
    assert _kernels._pointwise((single,), [torch.ones(10, 6).double()]) == 60 * 8
    assert _kernels._pointwise((single,), []) == 0
    assert _kernels._reduction((half, single), []) == 60 * 4 + small  # a float32 copy of the half
    assert _kernels._product((half, [half]), [single]) == 2 * 2 * 60 * 4 + small
    assert _kernels._whole((half,), [single]) == 60 * 2 + 60 * 4 + 60 * 4 + small
    assert _kernels._inputs((half,), [single]) == 60 * 2 + 60 * 4 + small
    assert _kernels._rows((half, torch.ones(9)), []) == 8 * 9 * threads + 60 * 4 + small  # the longest row
    image, weight = torch.ones(2, 3, 4, 4), torch.ones(5, 3, 3, 3)
    # Channels are padded to 16: 3 and 5 to 16 each, of the weight both, which is there twice.
    blocked = 2 * 16 * 16 + 2 * 16 * 4 + 2 * 16 * 16 * 9
    assert _kernels._convolution((image, weight, None, 1), [torch.ones(2, 5, 2, 2)]) == blocked * 4 + small
    doubled = [each.double() for each in (image, weight, torch.ones(2, 5, 2, 2))]  # no oneDNN: the images' columns are unfolded
    assert _kernels._convolution((doubled[0], doubled[1], None, 1), [doubled[2]]) == blocked * 8 + 96 * 9 * 2 * 8 + small
    assert _kernels._row(256, 4) == 256 + 16  # no multiple of 4 KiB
    assert [_kernels._row(n, 4) for n in (1, 16, 17)] == [16, 16, 32]


@pytest.mark.parametrize("begun", [True, False])
def test_the_generators_of_gpus_that_are_in_use_are_put_back(monkeypatch, begun):
    """A prediction draws numbers; CUDA is not begun for their sake, which would take memory and time."""
    put_back = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["of the first", "of the second"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put_back.append)
    with pytest.raises(KeyError), _sandbox.generators_kept():
        raise KeyError
    assert put_back == ([["of the first", "of the second"]] if begun else [])


def test_two_casts_around_a_prediction_are_off_in_it_and_on_again():
    """Autocast keeps its casts until the outermost ends: inside none is open, afterwards as many as before."""

    def open_casts():
        found = torch.autocast_increment_nesting() - 1
        torch.autocast_decrement_nesting()
        return found

    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
        before = open_casts()
        with _sandbox.autocast_off("cpu"):
            assert (open_casts(), torch.is_autocast_enabled("cpu")) == (0, False)
        assert (open_casts(), torch.is_autocast_enabled("cpu")) == (before, True)
    assert open_casts() == 0


def test_only_a_predictions_own_failures_are_kept_from_the_log(monkeypatch):
    """PyTorch logs the traceback of an operator that fails on fakes: not of this thread, and only for so long."""
    logger, heard = logging.getLogger("torch._subclasses.fake_tensor"), []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    monkeypatch.setattr(logger, "handlers", [handler])  # PyTorch's loggers pass nothing on to the root, where an older pytest listens
    with _predict._fake_errors_unlogged():
        logger.error("of the prediction")
        other = threading.Thread(target=logger.error, args=("of another thread",))
        other.start()
        other.join()
    logger.error("afterwards")
    assert heard == ["of another thread", "afterwards"]


def test_scratch_of_attention_and_recurrences_by_hand():
    """A tile of 256 x 512 scores a thread; gates padded to rows of 64 bytes; halves repacked in float32."""
    from gpulab.memory import _kernels

    small, threads = 64 * 1024, torch.get_num_threads()
    q, k, v, mask = torch.ones(1, 2, 3, 8), torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 8), torch.ones(3, 5)
    tile, rows = 256 * 512 * 8 + 512 * 8 * 16, (2 * 3 + 2 * 5 + 2 * 5) * 8
    assert _kernels._attention((q, k, v, mask), []) == tile * threads + rows + small
    halves = [each.bfloat16() for each in (q, k, v)]
    assert _kernels._attention(halves, []) == tile * threads + rows + 2 * 4 * (48 + 80 + 80) + small
    # Three positions of two items, five inputs, 4 x 4 gates: a row of 16 numbers is 64 bytes already.
    x, weight, out, workspace = torch.ones(3, 2, 5), torch.ones(16, 5), torch.ones(7), torch.ones(100, dtype=torch.uint8)
    assert _kernels._recurrent((x, weight), [out, workspace]) == 2 * (3 * 2 * 16 * 4) + 2 * 4 * (30 + 80 + 7) + 16 * 4096 + small


def test_scratch_of_groups_and_of_a_convolutions_gradient_by_hand():
    """Each group's channels are padded to 16; the gradient lays the image out twice, the weight's accumulator is float32."""
    from gpulab.memory import _kernels

    small = 64 * 1024
    image, weight, out = torch.ones(2, 6, 4, 4), torch.ones(40, 3, 3, 3), torch.ones(2, 40, 2, 2)
    images, weights = 2 * 16 * 16 + 2 * 48 * 4, 2 * (2 * 32 * 16 * 9)  # 6 -> 16, 40 -> 48; 20 a group -> 32, 3 -> 16
    assert _kernels._convolution((image, weight, None, 2), [out]) == (images + weights) * 4 + small
    halves = [each.half() for each in (image, weight, out)]
    assert _kernels._convolution((halves[0], halves[1], None, 2), [halves[2]]) == (images + weights) * 6 + small
    twice = images + 2 * 16 * 16
    assert _kernels._convolution_backward((out, image, weight, 2, [True] * 3), []) == (twice + weights) * 4 + small
    first, second = torch.ones(10, 6, dtype=torch.float16), torch.ones(9, dtype=torch.float16)
    assert _kernels._rows((first, second), []) == 8 * 9 * torch.get_num_threads() + 4 * 60 + small  # of the norms only x is converted


def test_each_operator_has_a_rule_for_its_scratch():
    """None of its own for what makes, copies or only looks; element by element, or a copy of everything where nothing is known."""
    from gpulab.memory import _kernels

    aten, x = torch.ops.aten, torch.ones(10, 6)
    half = x.half()
    assert _kernels.scratch_bytes(aten.clone.default, (x,), [x]) == 0
    assert _kernels.scratch_bytes(aten.view.default, (x, [60]), [x]) == 0  # a view
    assert _kernels.scratch_bytes(aten.mul.Tensor, (half, half), [x]) == 2 * 60 * 4
    assert _kernels.scratch_bytes(aten.sum.default, (half,), [x]) == 60 * 4 + 64 * 1024
    assert _kernels.scratch_bytes(aten.linalg_inv_ex.default, (x,), [x]) == 2 * 60 * 4 + 64 * 1024
    assert {name: _kernels._RULES[f"aten::{name}"] for name in ("mm", "native_batch_norm", "convolution", "mkldnn_rnn_layer")} == {
        "mm": _kernels._product, "native_batch_norm": _kernels._inputs, "convolution": _kernels._convolution,
        "mkldnn_rnn_layer": _kernels._recurrent,
    }  # fmt: skip


def test_a_half_norms_statistics_are_those_of_the_real_kernel():
    """With a weight in float32 they are float32 on a CPU, with a half one as they were; gradients have their input's format."""
    from gpulab.memory import _kernels

    aten, half, bf16 = torch.ops.aten, torch.float16, torch.bfloat16
    weight, images = torch.ones(6), torch.ones(2, 6, 4, dtype=bf16)
    x = torch.ones(2, 6, dtype=bf16)
    layer = lambda w: (aten.native_layer_norm.default, (x, [6], w, w, 1e-5))  # noqa: E731
    group = lambda w: (aten.native_group_norm.default, (images, w, w, 2, 6, 4, 3, 1e-5))  # noqa: E731
    batch = lambda w: (aten.native_batch_norm.default, (images, w, w, None, None, True, 0.1, 1e-5))  # noqa: E731
    for norm in (layer, group, batch):
        for mixed in (weight, weight.bfloat16()):
            func, arguments = norm(mixed)
            real = func(*arguments)
            told = _kernels.mend(func, arguments, (real[0], real[1].bfloat16(), real[2].bfloat16()))
            assert [t.dtype for t in told] == [t.dtype for t in real]
        func, arguments = norm(None)
        assert _kernels.mend(func, arguments, (x, x, x)) == (x, x, x)
    func, (_, *rest) = layer(weight)
    single = x.float()
    assert _kernels.mend(func, (single, *rest), (single, x, x)) == (single, x, x)  # nothing is mixed
    gradients = _kernels.mend(aten.native_layer_norm_backward.default, (single, x, [6]), (single, single, None))
    assert (gradients[0].dtype, gradients[1].dtype, gradients[2]) == (bf16, torch.float32, None)
    nothing = (None, single, single)
    assert _kernels.mend(aten.native_layer_norm_backward.default, (single, x.to(half), [6]), nothing) is nothing
    assert _kernels.mend(aten.add.Tensor, (x, x), x) is x


def test_the_stand_in_for_a_scaler_holds_what_pytorchs_holds():
    """The scale, and how many steps went well, as ``GradScaler`` begins them."""
    real, fake = torch.amp.GradScaler("cpu"), FakeScaler("cpu")
    real._lazy_init_scale_growth_tracker(torch.device("cpu"))
    for one, other in ((fake.scale_value, real._scale), (fake.growth, real._growth_tracker)):
        assert (one.dtype, one.shape, one.item()) == (other.dtype, other.shape, other.item())


def test_a_steps_gradients_are_gradients_without_an_optimizer():
    """They are released when the next step begins: at the end of the first they are there, and at the first event of the second gone."""
    t = memory.trace(nn.Linear(1000, 1000), torch.ones(1, 1000), loss=torch.sum, device="cpu")
    second = t.timeline.steps[1]
    gradients = t.timeline.bytes_by_category["gradients"]
    assert (gradients[second - 1], gradients[second], gradients[-1]) == (4_004_000, 0, 4_004_000)


def test_a_step_takes_what_it_was_given():
    """Targets go to the loss, or to the model where that returns the loss; the casts of a precision are on in both and off behind."""
    seen = []

    class Model(nn.Linear):
        def forward(self, x, *targets):
            seen.append((len(targets), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            out = super().forward(x)
            return {"loss": (out - targets[0]).sum()} if targets else out

    def loss(out, *targets):
        seen.append((len(targets), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return out.sum() + sum(target.sum() for target in targets)

    x, y = torch.ones(3, 2), torch.ones(3, 2)
    for targets, own, precision in ((None, loss, "bfloat16"), (y, loss, "float16"), (y, None, "float32"), (None, loss, "pure-bfloat16")):
        made = _step.Step("trace", Model(2, 2), inputs=(x,), targets=targets, loss=own, precision=precision, device="cpu")
        assert made._forward().numel() == 1
        assert not torch.is_autocast_enabled("cpu")
    bf16, f16 = torch.bfloat16, torch.float16
    assert seen[:4] == [(0, True, bf16), (0, True, bf16), (0, True, f16), (1, True, f16)]
    assert [one[:2] for one in seen[4:]] == [(1, False), (0, False), (0, False)]


def test_what_makes_no_optimizer_is_refused():
    """It takes a step and it releases gradients: with one of the two it is none, and the tracker is told when it was made."""
    made = _step.Step("predict", nn.Linear(2, 2), inputs=(), targets=None, loss=None, precision="float16", device="cpu")
    half = types.SimpleNamespace(step=lambda: None)
    other = types.SimpleNamespace(zero_grad=lambda: None)
    for wrong in (half, other, None):
        with pytest.raises(InputError, match=r"expected an optimizer with step\(\) and zero_grad\(\)"):
            made.prepare(types.SimpleNamespace(), lambda parameters, wrong=wrong: wrong, "a scaler")
    tracker, during = types.SimpleNamespace(in_optimizer=False), []
    made.prepare(tracker, lambda parameters: during.append(tracker.in_optimizer) or torch.optim.SGD(parameters, lr=0.1), "a scaler")
    assert (during, tracker.in_optimizer, made.scaler) == ([True], False, "a scaler")
    plain = _step.Step("predict", nn.Linear(2, 2), inputs=(), targets=None, loss=None, precision="bfloat16", device="cpu")
    plain.prepare(tracker, lambda parameters: torch.optim.SGD(parameters, lr=0.1), "a scaler")
    assert plain.scaler is None
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    given = []
    part = _step.Step("predict", frozen, inputs=(), targets=None, loss=None, precision="float32", device="cpu")
    part.prepare(tracker, lambda parameters: given.extend(parameters) or torch.optim.SGD(parameters, lr=0.1), None)
    assert len(given) == 1
    assert given[0] is frozen.weight


def test_what_a_checkpoint_keeps_of_the_generator_is_counted(monkeypatch):
    """A Mersenne twister's 5,120 bytes for each of six layers, outside any operator; calls are counted over both steps."""
    from gpulab.memory import _kernels

    monkeypatch.setattr(_kernels, "scratch_bytes", lambda func, arguments, outputs: 0)
    stack = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    x = torch.zeros(2, 8)
    assert memory.predict(stack, x, loss=torch.sum).scratch_bytes == 0
    p = memory.predict(stack, x, loss=torch.sum, checkpoint=True)
    assert (p.scratch_bytes, p.checkpoint) == (6 * 5120, True)
    assert torch.get_rng_state().numel() <= 5120


def test_a_predictions_progress_by_hand():
    """A third each for making, the first and the second step."""
    seen = []
    memory.predict(nn.Linear(2, 2), torch.zeros(1, 2), loss=torch.sum, progress=lambda *step: seen.append(step))
    assert seen == [
        (0.0, "making fake tensors"), (pytest.approx(1 / 3), "following step 1"), (pytest.approx(2 / 3), "following step 2"), (1.0, "done"),
    ]  # fmt: skip


@pytest.mark.parametrize("call", [memory.predict, memory.trace])
def test_fifty_tensors_of_the_peak_are_told(call):
    """Of sixty layers' hundred and twenty parameters and as many gradients the fifty largest, which are weights and their gradients."""
    stack = nn.Sequential(*[nn.Linear(4, 4) for _ in range(60)])
    found = call(stack, torch.zeros(1, 4), loss=torch.sum, optimizer="sgd").peak_tensors
    assert [t.nbytes for t in found] == [64] * 50


def test_a_stand_in_looks_as_its_original_and_lies_elsewhere():
    """Shape, strides, place in the storage, class, what it carries; tied tensors stay tied, views of one storage share one."""
    lender = _sandbox.Lender("trace", lambda tensor: tensor.untyped_storage().clone(), None)
    whole = torch.arange(12.0).view(3, 4)
    part, turned = whole[1:, 1], whole.T
    lent = [lender.tensor(t) for t in (whole, part, turned, whole)]
    assert lent[0] is lent[3]
    for one, original in zip(lent, (whole, part, turned), strict=False):
        assert torch.equal(one, original)
        assert (one.stride(), one.storage_offset(), one.requires_grad) == (original.stride(), original.storage_offset(), False)
        assert one.untyped_storage().data_ptr() == lent[0].untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    for odd in (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag):
        stand_in = lender.tensor(odd)
        assert torch.equal(stand_in, odd)
        assert (stand_in.is_conj(), stand_in.is_neg()) == (odd.is_conj(), odd.is_neg())
    frozen, leaf = nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2, requires_grad=True)
    frozen.mark = "own"
    stand_in = lender.tensor(frozen)
    assert (type(stand_in), stand_in.requires_grad, stand_in.mark) == (nn.Parameter, False, "own")
    assert lender.tensor(leaf).requires_grad
    half = _sandbox.Lender("trace", lambda tensor: tensor.untyped_storage().clone(), "cpu", torch.float16)
    assert [half.tensor(t).dtype for t in (torch.ones(1), torch.ones(1, dtype=torch.int64))] == [torch.float16, torch.int64]


def test_what_a_model_was_compiled_to_is_not_called_with_stand_ins():
    """``module.compile()`` keeps a compiled call, which would run on tensors that are not the caller's; afterwards it is there again."""
    model, called = nn.Linear(2, 2), []
    model._compiled_call_impl = lambda *given: called.append(given)
    kept = model._compiled_call_impl
    memory.trace(model, torch.ones(1, 2), loss=torch.sum, device="cpu")
    assert called == []
    assert model._compiled_call_impl is kept


def test_what_holds_itself_has_no_end():
    """A list within itself, beside the inputs, is refused in one sentence."""
    endless: list = []
    endless.append(endless)
    with pytest.raises(InputError, match="holds itself, so it has no end"):
        memory.predict(nn.Linear(2, 2), torch.ones(1, 2), endless, loss=torch.sum)


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        ("forward", ValueError(), "trace: forward raised ValueError: no message; expected a step that runs."),
        ("loss", OSError("disk"), "trace: loss raised OSError: disk; expected a step that runs. Try it by hand on a small batch"),
    ],
)
def test_what_a_model_raised_is_told(part, error, says):
    """With its own words, or that it had none."""
    assert _step.explain("trace", part, error).startswith(says)


def test_what_depends_on_values_is_told_with_its_operator():
    """By the operator that asked, or by the error's own words."""

    class DataDependentOutputException(Exception):
        pass

    error = DataDependentOutputException("why")
    assert _step.explain("predict", "loss", error).startswith("predict: in loss, why depends on the values of a tensor")
    error.func = "aten.item"
    assert _step.explain("predict", "loss", error).startswith("predict: in loss, aten.item depends on the values of a tensor")
