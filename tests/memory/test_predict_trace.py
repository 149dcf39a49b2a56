"""A training step's memory, predicted and traced: against an account of real steps, and by hand."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpulab import memory, networks
from gpulab.errors import DeviceError, InputError, StoppedError
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from refusals import defaults, refusals, refused


class LiveStorages(TorchDispatchMode):
    """The bytes of all storages that were seen and are still alive: an account without gpulab."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.peak = {}, 0

    def see(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is gone."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.sizes[storage._cdata] = storage.nbytes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and update the peak of the bytes that are alive."""
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.see, (args, kwargs, result))
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


def real_peaks(model: nn.Module, x: Any, optimizer: Any, precision: str) -> list[int]:
    """Return the peak bytes alive in each of two real steps of an ordinary training loop."""
    if precision == "pure-bfloat16":
        model, x = model.bfloat16(), x.bfloat16()
    cast = precision in ("bfloat16", "float16")
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, enabled=precision == "float16")
    optimizer, mode, peaks = optimizer(model.parameters()), LiveStorages(), []
    for tensor in (*model.parameters(), *model.buffers(), x):
        mode.see(tensor)
    with mode:
        for _ in range(2):
            mode.peak = 0
            optimizer.zero_grad()
            with torch.autocast("cpu", getattr(torch, precision) if cast else None, enabled=cast):
                value = square(model(x))
            scaler.scale(value).backward()
            del value
            scaler.step(optimizer)
            scaler.update()
            peaks.append(mode.peak)
    return peaks


class Recomputed(nn.Sequential):
    """Children whose activations are computed again in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Checkpoint each child."""
        for child in self:
            x = checkpoint(child, x, use_reentrant=False)
        return x


def stack() -> list[nn.Module]:
    """Six blocks of a perceptron."""
    wide = lambda: nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))  # noqa: E731
    return [wide() for _ in range(6)]


def own(loss: Callable[..., torch.Tensor], *layers: nn.Module) -> nn.Module:
    """Return layers that give a loss computed from their output and their input."""
    model = nn.Sequential(*layers)
    model.register_forward_hook(lambda _, given, output: loss(output, *given))
    return model


IMAGES, TOKENS, ROWS = (
    torch.randn(4, 1, 8, 8), torch.randint(50, (3, 8)), torch.randn(200, 32),
)  # fmt: skip
Optimizer = Callable[[Any], torch.optim.Optimizer]
MOMENTUM: Optimizer = lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)  # noqa: E731
# Model, input, optimizer, precision. The rules of the prediction were made with other models.
CASES: dict[str, tuple[Any, torch.Tensor, Optimizer, str]] = {
    "images": (lambda: networks.resnext(width=16), IMAGES, torch.optim.AdamW, "float32"),
    "depthwise": (lambda: networks.mobilenet(width=8), IMAGES, MOMENTUM, "bfloat16"),
    "text": (lambda: networks.transformer(50, 32, 2, 2, context=8), TOKENS, MOMENTUM, "float32"),
    "layers": (lambda: nn.Sequential(*stack()), ROWS, torch.optim.RMSprop, "pure-bfloat16"),
    # gradients so large that they overflow at the scale with which PyTorch begins, but not unscaled
    "scaled": (lambda: nn.Sequential(*stack()), 12_000 * ROWS, torch.optim.Adam, "float16"),
    "recomputed": (lambda: Recomputed(*stack()), ROWS, torch.optim.Adam, "float32"),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True),
        torch.randn(3, 8, 32), torch.optim.NAdam, "float32",
    ),
    "autoencoder": (
        lambda: own(nn.functional.mse_loss, nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 32)),
        ROWS, torch.optim.RMSprop, "float32",
    ),
    "reconstruction": (
        lambda: own(nn.functional.binary_cross_entropy, nn.Linear(32, 32), nn.Sigmoid()),
        ROWS.sigmoid(), torch.optim.ASGD, "float32",
    ),
    "outliers": (
        lambda: own(nn.functional.smooth_l1_loss, *stack()),
        ROWS, torch.optim.Adafactor, "bfloat16",
    ),
    "rows that the loss holds": (
        lambda: own(lambda y, x: (y * ROWS.view(200, 32).T.T).square(), nn.Linear(32, 32)),
        ROWS + 1, torch.optim.Adam, "float32",
    ),
    "recurrent": (
        # 7 and 11 are among the primes that stand for a recurrent layer's sizes
        lambda: own(
            lambda y, x: y[0] @ torch.ones(48, 7 * 11), nn.GRU(32, 24, 2, bidirectional=True)
        ),
        torch.randn(9, 5, 32), torch.optim.Adam, "float32",
    ),
    "projected": (
        lambda: own(lambda y, x: y[0], nn.LSTM(32, 24, proj_size=8, batch_first=True)),
        torch.randn(9, 5, 32), torch.optim.SGD, "float32",
    ),
}  # fmt: skip


def square(output: torch.Tensor) -> torch.Tensor:
    """Return the mean square as a loss."""
    return output.float().square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_the_peak_of_a_real_step(name: str) -> None:
    """Peaks are within 1 % of those of real steps, the first step too; a trace gives the same."""
    make, x, optimizer, precision = CASES[name]
    first, later = real_peaks(make(), x, optimizer, precision)
    options = {
        "loss": square,
        "optimizer": optimizer,
        "precision": precision,
        "device": "cpu",
    }
    recompute = name == "recomputed"
    model = nn.Sequential(*stack()) if recompute else make()
    found = memory.predict(model, x, checkpoint=recompute, **options)
    peaks, parts = (found.first_step_peak_bytes, found.peak_bytes), found.peak_by_category
    assert peaks == pytest.approx((first, later), rel=0.01)
    assert sum(parts.values()) == found.peak_bytes == max(found.timeline.total_bytes)
    assert memory.trace(model, x, checkpoint=recompute, **options).peak_by_category == parts
    assert recompute == (found.peak_bytes < 0.8 * memory.predict(model, x, **options).peak_bytes)
    both = [ask(model, x, checkpoint=True, **options) for ask in (memory.predict, memory.trace)]
    assert both[0].peak_by_category == both[1].peak_by_category


def test_a_linear_layer_by_hand() -> None:
    """A million weights with Adam: their gradient, two moments and a counter; an input and a loss.

    The loss is compiled only when it is called at the end, not by the prediction or the trace.
    There, seven targets are 28 bytes of inputs more.
    """
    layer, x, targets = nn.Linear(1000, 1000, bias=False), torch.zeros(1, 1000), torch.zeros(7)
    loss = torch.compile(lambda y, *targets: y.sum(), backend="eager", fullgraph=True)
    options = {"loss": loss, "optimizer": "adam", "device": "cpu"}
    found, traced = (
        memory.predict(layer, x, **options),
        memory.trace(layer, x, targets=targets, steps=3, **options),
    )
    parts, line = found.peak_by_category, traced.timeline
    assert (parts["parameters"], parts["gradients"], parts["optimizer"]) == (4e6, 4e6, 8e6 + 4)
    assert (parts["inputs"], found.parameter_count, found.peak_phase) == (4000, 1e6, "optimizer")
    assert (found.kept_bytes, traced.peak_by_category["inputs"], len(line.steps)) == (
        16_000_000 + 4 + 4 + 4000, 4028, 3
    )  # fmt: skip
    assert line.bytes_by_category["optimizer"][[0, line.steps[1]]].tolist() == [0, 8e6 + 4]
    assert min(curve.min() for curve in line.bytes_by_category.values()) == 0
    assert (traced.evidence.badge, found.evidence.badge, loss(x)) == ("MEASURED", "MODELLED", 0)


def test_a_factor_of_another_dtype_is_converted_first() -> None:
    """By hand: the weights, a row in and out, the factor in 2 bytes and in 4, and the product."""
    factor = torch.ones(1000, 1000, dtype=torch.bfloat16)
    model = own(lambda y, x: y * factor, nn.Linear(1000, 1000, bias=False))
    found = memory.predict(
        model, torch.zeros(1, 1000), loss=torch.sum, optimizer="sgd", device="cpu"
    )
    by_hand = 4e6 + 2 * 4000 + 2e6 + 4e6 + 4e6
    assert found.peak_bytes + found.scratch_bytes == pytest.approx(by_hand, abs=100)


def test_the_largest_batch_by_hand() -> None:
    """A million weights, and 4,000 bytes each of input and output per sample, fill the memory."""
    layer, options = nn.Linear(1000, 1000, bias=False), {"optimizer": "sgd", "loss": torch.sum}

    def largest(capacity: int, **more: Any) -> int:
        return memory.largest_batch(
            layer, lambda n: torch.zeros(n, 1000), memory=capacity, device="cpu", **options, **more
        )

    by_hand = ((5e8 - 2**28) / 1.25 - 4e6) / 8000  # a quarter and 256 MiB are the margin
    assert largest(5 * 10**8) == pytest.approx(by_hand, rel=1e-3)
    assert (largest(5 * 10**8, most=300), largest(2**28)) == (300, 0)


def test_a_largest_batch_fits_and_one_more_does_not() -> None:
    """With targets and in lower precision, where memory is not linear in the batch size."""
    model, options = networks.cnn(channels=3), {"loss": nn.functional.cross_entropy}

    def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(n, 3, 32, 32), torch.zeros(n, dtype=torch.long)

    found = memory.largest_batch(
        model, batch, memory=10**9, precision="bfloat16", device="cpu", **options
    )
    fits = []
    for size in (found, found + 1):
        images, labels = batch(size)
        options |= {"targets": labels, "precision": "bfloat16", "device": "cpu"}
        fits.append(memory.predict(model, images, **options).fits(10**9))
    assert fits == [True, False]


def test_what_is_needed_is_more_than_the_peak() -> None:
    """The margin is a quarter plus 256 MiB on a CPU, 15 % plus 768 MiB on an accelerator."""
    found = memory.predict(networks.mlp(), torch.zeros(64, 784), loss=torch.sum, device="cpu")
    both = found.peak_bytes + found.scratch_bytes
    needed = [found.needed_bytes(), found.needed_bytes("cuda")]
    assert needed == pytest.approx([1.25 * both + 2**28, 1.15 * both + 3 * 2**28], abs=1)
    sizes = (both, f"{needed[0] - 1} B", needed[0], "24 GB", "T4", "cpu")
    assert [found.fits(size) for size in sizes] == [False, False, True, True, True, True]
    refused(DeviceError, found.fits, "H100").match("'H100 SXM', 'H100 PCIe'")


PREDICTED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mlp": (lambda: networks.mlp(64, 32, 10), torch.zeros(16, 64), {"optimizer": "sgd"}),
    "cnn": (lambda: networks.cnn(width=8), torch.zeros(8, 1, 8, 8), {"precision": "bfloat16"}),
    "text": (
        lambda: networks.transformer(100, 32, 4, 2, context=16, tied=True),
        torch.zeros(2, 16, dtype=torch.int64), {"checkpoint": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions_of_fixed_models(name: str, approved: Any) -> None:
    """A model, the same on the meta device and a function that builds it give one prediction."""
    make, x, options = PREDICTED[name]
    options = {**options, "loss": torch.sum, "device": "cpu"}
    with torch.device("meta"):
        on_meta = make()
    found, *others = (memory.predict(model, x, **options) for model in (make(), on_meta, make))
    assert {one.peak_bytes for one in others} == {found.peak_bytes}
    facts = [found.label, found.optimizer, found.precision, found.parameter_count]
    facts += [dict(found.peak_by_category), found.first_step_peak_bytes, found.kept_bytes]
    facts += [(t.category, t.nbytes, t.shape, t.dtype) for t in found.peak_tensors[:4]]
    assert "".join(f"{fact}\n" for fact in facts) == approved


class Noting(nn.Module):
    """Layers with averages, dropout and a list that notes each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.seen = ["made"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Note the call, and compute."""
        self.seen.append("called")
        return self.layers(x)


@pytest.mark.parametrize("follow", [memory.predict, memory.trace])
def test_the_caller_finds_all_as_it_was(follow: Any) -> None:
    """Weights, averages, gradients, attributes, generator and modes stay, after a failure too."""
    model, x, seen = Noting(), torch.randn(3, 4, requires_grad=True), []
    model(x).sum().backward()
    state = [(t, t.clone(), t.grad) for t in (*model.parameters(), *model.buffers())]
    gradient, generator = x.grad.clone(), torch.get_rng_state()
    options = {"loss": torch.sum, "optimizer": "adam", "checkpoint": True, "device": "cpu"}
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.set_detect_anomaly(True),
    ):
        follow(model, x, progress=lambda *step: seen.append(step[0]), **options)
        assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == (False, True)
    refused(InputError, follow, model, torch.zeros(1), **options)
    refused(StoppedError, follow, model, x, stop=lambda: True, **options)
    assert all(t.grad is grad and torch.equal(t, value) for t, value, grad in state)
    assert all(map(torch.equal, (x.grad, torch.get_rng_state()), (gradient, generator)))
    assert (model.seen, seen == sorted(seen), seen[-1]) == (["made", "called"], True, 1.0)


def test_a_function_with_its_own_step_is_traced() -> None:
    """Phases, gradients and state are recognized; views count once; a stop keeps a part."""
    model, x, calls = nn.Linear(100, 100), torch.zeros(5, 100), iter(range(99))
    optimizer = MOMENTUM(model.parameters())
    step = lambda x: (model(x).sum().backward(), optimizer.step())  # noqa: E731
    line = memory.trace(step, x, device="cpu").timeline
    assert set(line.phases) == {"forward", "backward", "optimizer"}
    assert [line.bytes_by_category[part][-1] for part in ("gradients", "optimizer")] == [40_400] * 2
    views = memory.trace(lambda x: x.view(10, 50)[:1] + 1, x, device="cpu")
    part = memory.trace(step, x, stop=lambda: next(calls) > 3, device="cpu")
    assert (views.peak_bytes, [note.code for note in part.notes]) == (2000 + 200, ["stopped"])
    refused(ZeroDivisionError, memory.trace, lambda: 1 / 0, device="cpu")


class Branches(nn.Linear):
    """A layer whose computation depends on a value of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer only if the input's sum is positive."""
        return super().forward(x) if x.sum() > 0 else x


LAYER, X = nn.Linear(4, 4), torch.zeros(2, 4)
SUM = {"loss": torch.sum, "device": "cpu"}
REFUSED = [
    (memory.predict, (LAYER, torch.zeros(2, 5)), SUM),
    (memory.predict, (LAYER, X), {}), (memory.largest_batch, (LAYER, 3), SUM),
    (memory.largest_batch, (LAYER, lambda n: X[:n]), SUM | {"memory": 2**30}),
    *[(memory.predict, (LAYER, X), {**SUM, **options}) for options in (
        {"precision": "int3"}, {"optimizer": 3}, {"optimizer": lambda p: 5}, {"device": "abacus"},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=-1)}, {"checkpoint": "yes"},
        {"optimizer": torch.optim.SGD([torch.zeros(1)])},
    )],
    (memory.predict, (nn.Linear(4, 4).requires_grad_(False), X), SUM),
    (memory.predict, (nn.LazyLinear(4), X), SUM), (memory.predict, (LAYER, X.to_sparse()), SUM),
    (memory.predict, (Branches(4, 4), X), SUM), (memory.predict, (3, X), {}),
    (memory.predict, (lambda: 3, X), {}), (memory.trace, (3,), {}),
    (memory.trace, (LAYER, X), {**SUM, "steps": 0}),
    (memory.trace, (LAYER, X), {**SUM, "steps": 1001}),
    (memory.trace, (nn.Linear(4, 4, device="meta"), X), SUM),
    (memory.trace, (abs, X), {"optimizer": "adam"}),
    *[(memory.limit, (size, "cpu"), {}) for size in (0, -1, "much", float("nan"), None)],
    (memory.snapshot, ("cpu",), {"names": [1]}), (memory.traffic, (3, X), {}),
    (memory.traffic, (lambda x: x @ x, X), {}),
]  # fmt: skip


@pytest.mark.pins
def test_refusals_and_defaults(approved: Any) -> None:
    """Errors for invalid models, arguments and sizes, and the defaults of each call."""
    refused(InputError, memory.predict, LAYER, X, **SUM | {"optimizer": "lr_scheduler"}).match(
        "sgd-momentum"
    )
    refused(DeviceError, memory.snapshot, "cpu:5")
    assert refusals(REFUSED) + defaults(memory) == approved


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: networks.transformer(1000, 256, 4, 4, context=128), torch.ones(16, 128).long()),
        # the blocks' partial sums of a bias's gradient are 33 MB, twice the matrix
        (
            lambda: nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)),
            torch.ones(8192, 512),
        ),
    ],
)
def test_cuda_prediction_is_near_the_allocator(make: Any, x: Any) -> None:
    """Within 2 % of the real peak without cuBLAS's workspaces; the stated need is above it."""
    model, x = make().cuda(), x.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    square(model(x)).backward()  # makes the workspaces
    model.zero_grad()
    before = torch.cuda.memory_allocated() - x.nbytes - sum(p.nbytes for p in model.parameters())
    found = memory.predict(model, x, loss=square, optimizer="adam")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        optimizer.zero_grad()
        square(model(x)).backward()
        optimizer.step()
    real = torch.cuda.max_memory_allocated() - before
    assert found.peak_bytes + found.scratch_bytes == pytest.approx(real, rel=0.02)
    assert found.needed_bytes("cuda") > real


@pytest.mark.gpu
def test_what_only_cudnn_knows_is_refused() -> None:
    """A recurrent layer on a GPU has a workspace that no rule predicts; use memory.trace."""
    layer, x = nn.LSTM(4, 4).cuda(), torch.ones(2, 3, 4).cuda()
    refused(InputError, memory.predict, layer, x, loss=lambda y: y[0].sum()).match("memory.trace")
