"""Pruning, sparse layers and shared values: zeros stay zero, removing equals zeroing."""

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from gpulab import compression, networks
from gpulab.errors import InputError
from made_training import trained
from torch import nn

from refusals import refused

IMAGES = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def weights(model: nn.Module) -> list[torch.Tensor]:
    """The weights of linear and convolutional layers."""
    return [m.weight.detach() for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]


@pytest.mark.parametrize("amount", [0.0, 0.37, 0.9])
def test_exactly_the_smallest_weights_become_zero(amount: float) -> None:
    """The number of zeros is exact; training moves only the rest; a second pruning keeps them."""
    cnn = trained(networks.cnn(width=8), IMAGES)
    before = [weight.clone() for weight in weights(cnn)]
    pruned = compression.prune(cnn, amount)
    old, new = (torch.cat([w.flatten() for w in weights(each)]) for each in (cnn, pruned))
    gone = new == 0
    assert (int(gone.sum()), torch.equal(new[~gone], old[~gone])) == (
        round(amount * old.numel()),
        True,
    )
    assert amount == 0 or old[gone].abs().max() <= old[~gone].abs().min()
    start = [weight.clone() for weight in weights(pruned)]
    again = [{"amount": 0.95}, {"amount": 0.3}, {"amount": 0.5, "pattern": "2:4"}]
    later = [trained(pruned, IMAGES), *(compression.prune(pruned, **options) for options in again)]
    for model, least in zip(later, (amount, 0.95, 0.3, 0.5), strict=True):
        zeros = torch.cat([weight.flatten() == 0 for weight in weights(model)])
        assert zeros.double().mean() >= max(least, amount) - 1e-3
        assert all(bool((b[a == 0] == 0).all()) for a, b in zip(start, weights(model), strict=True))
    assert all(map(torch.equal, before, weights(cnn)))
    assert not torch.equal(start[0], weights(pruned)[0])


def test_two_of_four_agrees_with_every_choice() -> None:
    """The two kept of each four have the largest sum of all six pairs; a row's rest is kept."""
    layer = nn.Linear(18, 6)
    kept = compression.prune(nn.Sequential(layer), pattern="2:4")[0].weight.detach()
    assert torch.equal(kept[:, 16:], layer.weight[:, 16:])
    fours = [weight[:, :16].abs().reshape(-1, 4) for weight in (layer.weight, kept)]
    for group, left in zip(*fours, strict=True):
        best = max(sum(group[list(two)].tolist()) for two in itertools.combinations(range(4), 2))
        assert (float(left.sum()), int(left.count_nonzero())) == (pytest.approx(best), 2)


MODELS = {
    "cnn": lambda: networks.cnn(width=8),
    "mlp": lambda: networks.mlp(64, 16, 10),
    "resnext": lambda: networks.resnext(width=16, groups=1),
    "mobilenet": lambda: networks.mobilenet(width=4),
    "flattened": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 10)
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_removing_channels_equals_silencing_them(kind: str) -> None:
    """The model without the removed channels computes what the full one does with them zeroed."""
    model = trained(MODELS[kind](), IMAGES)
    small = compression.prune(model, 0.5, structured=True).eval()
    assert compression.size_on_disk(small) < 0.8 * compression.size_on_disk(model)
    # In the full model, zero the weights that read the removed channels: the outputs then agree.
    with torch.no_grad():
        for big, little in zip(model.modules(), small.modules(), strict=True):
            if isinstance(big, nn.Linear) or (isinstance(big, nn.Conv2d) and big.groups == 1):
                silence(big.weight, little.weight)
    torch.testing.assert_close(small(IMAGES), model(IMAGES), atol=1e-5, rtol=1e-5)


def silence(big: torch.Tensor, little: torch.Tensor) -> None:
    """Zero the weights of a layer for each input that its smaller form no longer has."""
    row = int(little.abs().flatten(1).sum(1).argmax())
    rows, wanted = big[..., None].flatten(2), little[..., None].flatten(2)[row]
    kept = (rows[:, :, None] == wanted).all(-1).any(-1).any(0)
    big[:, ~kept] = 0


def filters(first: list[float], second: nn.Module, reads: int = 3) -> nn.Sequential:
    """Return filters of one weight each, the layer after them, and a layer that reads it."""
    model = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), second, nn.Conv2d(reads, 1, 1))
    model[0].weight.data[:] = torch.tensor(first).view(3, 1, 1, 1)
    return model


def test_the_channels_that_stay_are_the_largest_as_what_follows_scales_them() -> None:
    """Channels are ranked by their weight times the scale that the next layer gives them.

    By hand: a batch norm scales by 1, -4, 0 over the roots of 5/4, 1, 9/4 (variance plus epsilon),
    a depthwise filter by 0.1, -1, 1.
    """
    norm, depth = nn.BatchNorm2d(3, eps=0.25), nn.Conv2d(3, 3, 1, groups=3, bias=False)
    norm.weight.data[:] = torch.tensor([1.0, -4.0, 0.0])
    norm.running_var[:] = torch.tensor([1.0, 0.75, 2.0])
    depth.weight.data[:] = torch.tensor([0.1, -1.0, 1.0]).view(3, 1, 1, 1)
    left = [
        compression.prune(filters([2.0, -1.0, 3.0], norm), 0.34, structured=True),  # 1.8, 4, 0
        compression.prune(filters([3.0, 1.0, 2.0], depth), 0.34, structured=True),  # 0.3, 1, 2
    ]
    assert (
        [one[0].weight.flatten().tolist() for one in left],
        left[0][1].num_features,
        left[1][1].groups,
        left[1][2].in_channels,
    ) == ([[2.0, -1.0], [1.0, 2.0]], 2, 2, 2)


class Between(nn.Module):
    """Two layers and a function between them."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.one, self.two, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the first layer, the function and the second layer."""
        return self.two(self.function(self.one(x)))


CONV, LAST, SAME, TIED = nn.Conv2d(3, 6, 1), nn.Linear(6, 2), nn.Linear(4, 4), Between(torch.relu)
TIED.other = nn.Linear(4, 4)
TIED.other.weight = TIED.one.weight
# Models, and how many channels of their first layer remain when half are pruned; None: refused.
CHAINS = {
    "function": (Between(torch.relu), 2), "mixed": (Between(lambda x: x.softmax(-1)), None),
    "twice": (nn.Sequential(SAME, SAME, nn.ReLU(), nn.Linear(4, 4)), None), "tied": (TIED, None),
    "norm": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), LAST), 3),
    "softmax": (nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1), LAST), None),
    "layer norm": (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), LAST), None),
    "image": (nn.Sequential(CONV, nn.MaxPool2d(2), nn.Conv2d(6, 2, 1)), 3),
    "depthwise": (nn.Sequential(CONV, nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 2, 1)), 3),
    "groups": (nn.Sequential(CONV, nn.Conv2d(6, 6, 3, groups=3), nn.Conv2d(6, 2, 1)), None),
    "flattened": (nn.Sequential(CONV, nn.Flatten(), nn.ReLU(), nn.Linear(24, 2)), 3),
    "columns": (nn.Sequential(CONV, nn.ReLU(), LAST), None),  # reads the last dimension
    "no reader": (nn.Sequential(nn.Linear(4, 6), nn.ReLU()), None),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHAINS)
def test_channels_go_only_where_all_that_reads_them_is_known(kind: str) -> None:
    """Shared layers or weights, layers that mix channels and unknown readers are refused."""
    model, left = CHAINS[kind]
    if left is None:
        refused(InputError, compression.prune, model, structured=True).match("structured=False")
    else:
        made = compression.prune(model, structured=True)
        assert len(next(made.parameters())) == left


@pytest.mark.parametrize("amount", [0.0, 0.95])
def test_csr_gives_the_same_numbers(amount: float) -> None:
    """Strided, dilated and linear layers match the dense ones, on sequences and in float64 too."""
    strided = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False)
    model = nn.Sequential(strided, nn.Conv2d(6, 5, 3, dilation=2), nn.Flatten(), nn.Linear(45, 7))
    x, y = torch.randn(4, 2, 14, 14), torch.randn(2, 5, 8)
    pruned = compression.prune(model, amount)
    sparse, rows = map(compression.to_sparse, (pruned, nn.Sequential(layer := nn.Linear(8, 3))))
    near, expected = {"atol": 1e-5, "rtol": 1e-5}, (pruned(x), layer(y))
    torch.testing.assert_close((sparse(x), rows(y)), expected, **near)
    kept = sum(parameters for _, parameters, _ in compression.count(sparse, x).layers.values())
    assert kept == 693 - round(amount * 693) + 5 + 7
    torch.testing.assert_close(sparse.double()(x.double()), expected[0].double(), **near)
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 1))
    assert isinstance(compression.to_sparse(grouped)[0], nn.Conv2d)


@pytest.mark.parametrize("clusters", [2, 5, 16])
def test_a_codebook_is_as_good_as_scikit_learns(clusters: int) -> None:
    """From the same start the squared error is scikit-learn's; each weight gets its nearest."""
    cluster = pytest.importorskip("sklearn.cluster")
    layer = nn.Linear(400, 1, bias=False)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(clusters))
    shared = compression.share_weights(nn.Sequential(layer), clusters)[0].weight.detach()
    values, book = layer.weight.detach().flatten(), shared.unique()
    start = torch.linspace(float(values.min()), float(values.max()), clusters).numpy()[:, None]
    means = cluster.KMeans(clusters, init=start, n_init=1, max_iter=200, tol=0)
    theirs = means.fit(values.numpy()[:, None])
    assert (
        float((values - shared).square().sum()),
        torch.equal((values - shared[0]).abs(), (values[:, None] - book).abs().min(1).values),
    ) == (pytest.approx(theirs.inertia_, rel=1e-4), True)


STATIC = {"activations": "static", "calibration": torch.ones(2, 8)}
# How a copy is made, and whether it can be trained.
COPIES: dict[str, tuple[Any, bool]] = {
    "prune": (compression.prune, True),
    "channels": (functools.partial(compression.prune, structured=True), True),
    "share": (functools.partial(compression.share_weights, clusters=3), True),
    "aware": (functools.partial(compression.quantize_aware, bits=3), True),
    "quantize": (compression.quantize, False),
    "static": (functools.partial(compression.quantize, **STATIC), False),
    "csr": (compression.to_sparse, False),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_keeps_what_is_skipped_what_is_frozen_and_its_mode(
    kind: str, training: bool
) -> None:
    """Skipped layers stay, frozen ones stay frozen, and the caller's model does not change. Only a
    copy that can be trained has the model's mode.
    """
    (make, trains), model = COPIES[kind], networks.mlp(8, 8, 8).train(training)
    model.layers[3].requires_grad_(False)
    before, made = copy.deepcopy(model), make(model, skip=["layers.1"])
    torch.testing.assert_close(dict(model.state_dict()), dict(before.state_dict()), rtol=0, atol=0)
    skipped, frozen, free = (made.layers[k] for k in (1, 3, 5))
    assert repr(skipped) == repr(before.layers[1]) != repr(frozen)
    assert (
        [any(p.requires_grad for p in layer.parameters()) for layer in (skipped, frozen, free)],
        {each.training for each in made.layers},
        {each.training for each in model.modules()},
    ) == ([True, False, trains], {training and trains}, {training})


def test_a_shared_value_learns_from_all_that_share_it() -> None:
    """A shared value moves by the sum of its gradients; ties and few values stay as they are."""
    plain, x = nn.Sequential(nn.Linear(6, 4, bias=False)), torch.randn(5, 6)
    shared = compression.share_weights(plain, 3)
    before = plain[0].weight.data[:] = shared[0].weight.detach().clone()
    for model in (plain, shared):
        model(x).square().sum().backward()
    torch.optim.SGD(shared.parameters(), 0.1).step()
    for value in before.unique():
        step = 0.1 * plain[0].weight.grad[before == value].sum()
        torch.testing.assert_close(shared[0].weight[before == value].unique(), (value - step)[None])
    tied = compression.share_weights(networks.transformer(20, 16, 2, 1, context=8, tied=True), 4)
    assert torch.equal(compression.share_weights(plain, 24)[0].weight, plain[0].weight)
    assert tied.head.weight is tied.tokens.weight
