"""Pruning: what is zero stays zero, what is removed was really unused, and refusals say what to do."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gpulab import compression, networks
from gpulab.compression import _channels, _prune, _targets
from gpulab.errors import InputError


def trained(model: nn.Module, x: torch.Tensor, steps: int = 3) -> nn.Module:
    """A few steps of Adam with weight decay, so that norms have seen data and weights have moved."""
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def images() -> torch.Tensor:
    """Images of the digits' size."""
    return torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def cnn(images: torch.Tensor) -> nn.Module:
    """A small network that has seen data."""
    torch.manual_seed(0)
    return trained(networks.cnn(width=8), images)


@pytest.mark.parametrize(("amount", "scope"), [(0.0, "global"), (0.37, "global"), (0.9, "global"), (0.5, "layer")])
def test_exactly_the_smallest_weights_become_zero(cnn: nn.Module, amount: float, scope: str):
    """The count is exact, and no weight that is left is smaller than one that went."""
    pruned = compression.prune(cnn, amount, scope=scope)
    pairs = [(a.weight.detach(), b.weight.detach()) for a, b in zip(*map(weighted, (cnn, pruned)), strict=True)]
    if scope == "global":
        pairs = [tuple(torch.cat([pair[k].flatten() for pair in pairs]) for k in (0, 1))]
    for before, after in pairs:
        gone = after == 0
        assert int(gone.sum()) == round(amount * before.numel())
        assert torch.equal(after[~gone], before[~gone])
        if 0 < int(gone.sum()) < gone.numel():
            assert before[gone].abs().max() <= before[~gone].abs().min()


def weighted(model: nn.Module) -> list[nn.Module]:
    """The linear and convolutional layers."""
    return [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]


def test_zeros_stay_zero_in_training_and_the_rest_learns(cnn: nn.Module, images: torch.Tensor):
    """Adam with weight decay moves what is left and nothing else; the model that was given stays as it was."""
    before = [p.detach().clone() for p in cnn.parameters()]
    pruned = compression.prune(cnn, 0.8)
    zeros = [layer.weight == 0 for layer in weighted(pruned)]
    start = [layer.weight.detach().clone() for layer in weighted(pruned)]
    trained(pruned, images)
    for layer, zero, old in zip(weighted(pruned), zeros, start, strict=True):
        assert bool((layer.weight[zero] == 0).all())
        assert bool((layer.weight[~zero] != old[~zero]).any())
    assert all(torch.equal(a, b) for a, b in zip(before, cnn.parameters(), strict=True))


def test_pruning_again_goes_on_from_there(cnn: nn.Module, images: torch.Tensor):
    """The second share counts the zeros of the first, which stay zero."""
    once = trained(compression.prune(cnn, 0.5), images)
    twice = compression.prune(once, 0.8)
    assert compression.sparsity(twice) == pytest.approx(0.8, abs=1e-3)
    for a, b in zip(weighted(once), weighted(twice), strict=True):
        assert bool((b.weight[a.weight == 0] == 0).all())
    assert compression.sparsity(once) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("again", [{"amount": 0.5}, {"amount": 0.5, "pattern": "2:4"}, {"amount": 0.3, "scope": "layer"}], ids=str)
def test_what_was_pruned_never_comes_back(cnn: nn.Module, again: dict):
    """A smaller share, or a pattern that keeps two of any four, finds nine of ten gone already."""
    once = compression.prune(cnn, 0.9)
    twice = compression.prune(once, **again)
    assert compression.sparsity(twice) >= compression.sparsity(once)
    for a, b in zip(weighted(once), weighted(twice), strict=True):
        assert bool((b.weight[a.weight == 0] == 0).all())


def test_weights_that_are_no_numbers_are_named(cnn: nn.Module):
    """Which of two is smaller, nobody can say of a nan."""
    with torch.no_grad():
        weighted(cnn)[1].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(InputError, match="not all finite numbers"):
        compression.prune(cnn, 0.5)


def test_finish_gives_plain_weights_and_the_same_outputs(cnn: nn.Module, images: torch.Tensor):
    """A finished copy has the module's own names and gives the same numbers; the masked one goes on working."""
    pruned = compression.prune(cnn, 0.7).eval()
    done = compression.finish(pruned)
    assert list(dict(done.named_parameters())).sort() == list(dict(cnn.named_parameters())).sort()
    assert torch.equal(done(images), pruned(images))
    assert compression.sparsity(pruned) == compression.sparsity(done) == pytest.approx(0.7, abs=1e-3)


def test_two_of_four_by_hand():
    """Two of each four neighbours stay, the largest; what is left over of a row is kept whole."""
    weight = torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.5, 0.1, 0.2, -0.3, 9.0]])
    assert _prune.two_of_four(weight).tolist() == [[0, 1, 1, 0, 1, 0, 0, 1, 1]]


def test_two_of_four_agrees_with_every_choice(cnn: nn.Module):
    """Of the six ways to keep two of four, the one with the largest sum of magnitudes is kept."""
    weight = torch.randn(6, 16, generator=torch.Generator().manual_seed(2))
    mask = _prune.two_of_four(weight).view(-1, 4)
    for group, kept in zip(weight.abs().view(-1, 4), mask, strict=True):
        best = max(sum(group[list(pair)].tolist()) for pair in itertools.combinations(range(4), 2))
        assert float((group * kept).sum()) == pytest.approx(best, rel=1e-6)
        assert int(kept.sum()) == 2


def silenced(model: nn.Module, chains: list[_channels.Chain], kept: dict[str, torch.Tensor]) -> nn.Module:
    """The big model with the removed channels set to zero where they are read."""

    def hook(keep: torch.Tensor, channels: int):
        def zero(_, inputs):
            x = inputs[0]
            each = x.shape[1] // channels if x.dim() == 2 else 1
            gate = torch.zeros(channels)
            gate[keep] = 1
            gate = gate.repeat_interleave(each) if x.dim() != 4 else gate.view(1, -1, 1, 1)
            return (x * gate,)

        return zero

    for chain in chains:
        channels = model.get_submodule(chain.producer).weight.shape[0]
        for name in chain.consumers:
            model.get_submodule(name).register_forward_pre_hook(hook(kept[chain.producer], channels))
    return model


@pytest.mark.parametrize("kind", ["cnn", "mlp", "resnext", "mobilenet", "transformer", "flattened"])
def test_removing_channels_equals_silencing_them(kind: str, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch):
    """The smaller model gives what the big one gives with those channels set to zero where they are read."""
    torch.manual_seed(0)
    x = torch.randint(0, 50, (3, 8)) if kind == "transformer" else images
    model = {
        "cnn": lambda: networks.cnn(width=8),
        "mlp": lambda: networks.mlp(64, 16, 10),
        "resnext": lambda: networks.resnext(width=16, groups=1),
        "mobilenet": lambda: networks.mobilenet(width=4),
        "transformer": lambda: networks.transformer(50, 16, 2, 2, context=8, tied=True),
        "flattened": lambda: nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 10)),
    }[kind]()
    model = trained(model, x) if kind != "transformer" else model.eval()
    kept: dict[str, torch.Tensor] = {}
    cut = _channels._cut_outputs
    names = {id(m): name for name, m in model.named_modules()}
    assert names
    small_names: dict[int, str] = {}
    original = _channels._shrink

    def watch(copied, chain, amount, multiple):
        small_names[id(copied.get_submodule(chain.producer))] = chain.producer
        original(copied, chain, amount, multiple)

    monkeypatch.setattr(_channels, "_shrink", watch)
    monkeypatch.setattr(
        _channels, "_cut_outputs", lambda layer, keep: (kept.setdefault(small_names.get(id(layer), "follower"), keep), cut(layer, keep))
    )
    small = compression.prune(model, 0.5, structured=True).eval()
    assert sum(p.numel() for p in small.parameters()) < 0.8 * sum(p.numel() for p in model.parameters())
    big = silenced(model, _channels.chains(model), kept)
    torch.testing.assert_close(small(x), big(x), atol=1e-5, rtol=1e-5)


def test_the_channels_that_stay_are_the_largest_as_the_norm_scales_them():
    """A filter with a small weight of its batch norm goes before one with smaller weights of its own."""
    model = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 1, 1))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([3.0, 1.0, 2.0]).view(3, 1, 1, 1)
        model[1].weight[:] = torch.tensor([0.1, 1.0, 1.0])
    small = compression.prune(model, 1 / 3, structured=True)
    assert small[0].weight.flatten().tolist() == [1.0, 2.0]
    assert (small[0].out_channels, small[1].num_features, small[3].in_channels) == (2, 2, 2)


def test_what_a_channel_counts_by_hand():
    """Filters of 2, 1 and 3, scaled by 1, -4 and 0, over the root of a variance of 1, 3/4 and 2 and an epsilon of 1/4."""
    model = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.BatchNorm2d(3, eps=0.25), nn.ReLU(), nn.Conv2d(3, 1, 1))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([2.0, -1.0, 3.0]).view(3, 1, 1, 1)
        model[1].weight[:] = torch.tensor([1.0, -4.0, 0.0])
        model[1].running_var[:] = torch.tensor([1.0, 0.75, 2.0])
    (chain,) = _channels.chains(model)
    assert _channels._importance(model, chain).tolist() == pytest.approx([2 / 1.25**0.5, 4.0, 0.0])


def test_channels_are_kept_in_multiples(cnn: nn.Module):
    """With multiple=8 no layer keeps 3 of 8 channels."""
    small = compression.prune(cnn, 0.7, structured=True, multiple=8)
    assert {m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)} == {8}


def test_sums_of_branches_keep_their_channels():
    """What a residual connection adds up is left whole: only the inside of the blocks shrinks."""
    model = networks.mobilenet(width=8, stages=1)
    small = compression.prune(model, 0.5, structured=True)
    assert small.blocks[0].body[0].out_channels == 16  # of 32
    assert small.blocks[0].body[3].groups == 16
    assert small.blocks[0].body[6].out_channels == 8
    assert small.stem[0].out_channels == 8


class Mixing(nn.Module):
    """Its first layer's output is mixed by something unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return something that only this module knows."""
        return self.two(self.one(x).softmax(-1))


def test_what_mixes_channels_is_left_alone_and_said():
    """No channel can go before a softmax, and the refusal names the other way."""
    with pytest.raises(InputError, match="structured=False"):
        compression.prune(Mixing(), 0.5, structured=True)


def _named(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(*modules)


def _of_linear(last: nn.Module, *between: nn.Module) -> nn.Sequential:
    return _named(nn.Linear(4, 6), *between, last)


class Twice(nn.Module):
    """Two layers, of which one is used a second time, or lends its weight."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.one, self.two, self.how = nn.Linear(4, 4), nn.Linear(4, 4), how
        if how.startswith("tied"):
            self.other = nn.Linear(4, 4)
            self.other.weight = (self.one if how == "tied producer" else self.two).weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run what is to be followed."""
        x = self.one(self.one(x)) if self.how == "used producer" else self.one(x)
        x = self.two(torch.relu(x))
        return self.two(x) if self.how == "used consumer" else x


def _tied_images() -> nn.Sequential:
    one, other = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)
    other.weight = one.weight
    return _named(nn.Conv2d(3, 6, 1), one, nn.ReLU(), other)


IMAGE = nn.Conv2d(3, 6, 1)
CHAINS = {
    "plain": (_of_linear(nn.Linear(6, 2), nn.ReLU(), nn.Dropout()), [("0", [], ["3"])]),
    "norm": (_of_linear(nn.Linear(6, 2), nn.BatchNorm1d(6)), [("0", ["1"], ["2"])]),
    "softmax": (_of_linear(nn.Linear(6, 2), nn.Softmax(-1)), []),
    "layer norm": (_of_linear(nn.Linear(6, 2), nn.LayerNorm(6)), []),
    "pooled features": (_of_linear(nn.Linear(6, 2), nn.AdaptiveAvgPool2d(1)), []),
    "image": (_named(IMAGE, nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.Conv2d(6, 2, 1)), [("0", ["1"], ["3"])]),
    "depthwise": (_named(IMAGE, nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 2, 1)), [("0", ["1"], ["2"])]),
    "groups": (_named(IMAGE, nn.Conv2d(6, 6, 3, groups=3), nn.Conv2d(6, 2, 1)), []),
    "depthwise multiplied": (_named(IMAGE, nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(12, 2, 1)), []),
    "one channel": (_named(nn.Conv2d(3, 1, 1), nn.Conv2d(1, 1, 1), nn.Conv2d(1, 2, 1)), [("0", [], ["1"]), ("1", [], ["2"])]),
    "flattened": (_named(IMAGE, nn.Flatten(), nn.ReLU(), nn.Linear(24, 2)), [("0", [], ["3"])]),
    "flattened beside the channels": (_named(IMAGE, nn.Flatten(2), nn.Linear(36, 2)), []),
    "columns": (_named(IMAGE, nn.ReLU(), nn.Linear(6, 2)), []),  # a linear layer of images reads their last dimension
    "norm behind a flattened image": (_named(IMAGE, nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 2)), []),
    "nothing reads it": (_named(nn.Linear(4, 6), nn.ReLU()), []),
    "used producer": (Twice("used producer"), []),
    "used consumer": (Twice("used consumer"), []),
    "tied producer": (Twice("tied producer"), []),
    "tied consumer": (Twice("tied consumer"), []),
    "tied images": (_tied_images(), []),
    "used once": (Twice("used once"), [("one", [], ["two"])]),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_channels_go_only_where_all_that_reads_them_is_known(kind: str):
    """By hand: which layer can lose channels, what filters them on the way, and what reads them; a shared weight or layer keeps its own."""
    model, expected = CHAINS[kind]
    assert [(chain.producer, chain.followers, chain.consumers) for chain in _channels.chains(model)] == expected


def test_a_filter_behind_scales_what_its_channel_counts():
    """By hand: filters of sizes 3, 1, 2 behind which depthwise ones of 0.1, 1, 1 stand count 0.3, 1, 2."""
    model = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Conv2d(3, 1, 1))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([3.0, 1.0, 2.0]).view(3, 1, 1, 1)
        model[1].weight[:] = torch.tensor([0.1, -1.0, 1.0]).view(3, 1, 1, 1)
    small = compression.prune(model, 1 / 3, structured=True)
    assert small[0].weight.flatten().tolist() == [1.0, 2.0]
    assert (small[1].groups, small[1].in_channels, small[2].in_channels) == (2, 2, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"amount": 1.0}, "up to, but not, 1"),
        ({"amount": float("nan")}, "share"),
        ({"scope": "all"}, "global"),
        ({"pattern": "1:2"}, "2:4"),
        ({"pattern": "2:4", "amount": 0.3}, "two of four"),
        ({"pattern": "2:4", "structured": True}, "one of the two"),
        ({"layers": ["nothing"]}, "features.0"),
        ({"skip": ["features.0", "features.3", "features.7", "features.10", "head.2"]}, "no layer is left"),
        ({"structured": True, "multiple": 0}, "multiple"),
    ],
)
def test_refusals_say_what_to_do(cnn: nn.Module, options: dict, says: str):
    """Each argument that will not do is named with what would."""
    with pytest.raises(InputError, match=says):
        compression.prune(cnn, **options)


def test_masks_and_removal_do_not_mix(cnn: nn.Module):
    """Channels are removed first: a mask would lose its place."""
    with pytest.raises(InputError, match="channels first"):
        compression.prune(compression.prune(cnn, 0.5), 0.5, structured=True)
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        compression.prune("cnn", 0.5)


def test_a_layer_whose_weight_is_made_of_others_is_pruned_by_what_they_make(images: torch.Tensor):
    """Weight normalisation has a length and a direction: half of their product is zero; finished it is plain, and the original stays."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 8)))
    before = model(images)
    pruned = compression.prune(model, 0.5)
    assert compression.sparsity(pruned) == 0.5
    done = compression.finish(pruned)
    assert type(done[1].weight) is nn.Parameter
    torch.testing.assert_close(done(images), pruned(images))
    torch.testing.assert_close(model(images), before)


class Packed(torch.Tensor):
    """A library's own kind of weight."""


def test_which_layers_are_compressed():
    """Linear and convolutional ones whose weight is theirs alone: no tied one, no library's, no table, no norm."""
    tied, packed = nn.Linear(4, 6), nn.Linear(4, 4)
    model = nn.ModuleDict({
        "table": nn.Embedding(6, 4), "tied": tied, "packed": packed, "plain": nn.Linear(4, 4), "image": nn.Conv2d(1, 1, 1),
        "line": nn.Conv1d(1, 1, 1), "norm": nn.LayerNorm(4), "inner": nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
    })  # fmt: skip
    tied.weight = model["table"].weight
    packed.weight = nn.Parameter(torch.zeros(4, 4).as_subclass(Packed))
    assert list(_targets.layers(model)) == ["plain", "image", "inner.1"]
    assert _targets.layers(model)["inner.1"] is model["inner"][1]
    assert list(_targets.chosen("prune", model, None)) == ["plain", "image", "inner.1"]
    assert list(_targets.chosen("prune", model, ["inner.1", "plain"], ["plain"])) == ["inner.1"]
    assert list(_targets.chosen("prune", model, None, ["image"])) == ["plain", "inner.1"]
    for names, skip, wrong in ((["tied"], (), "tied"), (None, ["norm"], "norm"), ([3], (), "3")):
        with pytest.raises(InputError, match=rf"^prune: there is no layer '?{wrong}'? to compress; expected some of plain, image, inner.1"):
            _targets.chosen("prune", model, names, skip)
    with pytest.raises(InputError, match=r"there is no layer 'a' to compress; expected some of \(none\)"):
        _targets.chosen("prune", nn.ReLU(), ["a"])


def test_the_parameter_behind_a_weight_and_a_plain_weight_again():
    """A mask's original, the first of weight normalisation's two; the copy becomes plain and the original keeps what it had."""
    layer = nn.Linear(2, 2)
    assert _targets.weight_of(layer) is layer.weight
    masked = compression.prune(nn.Sequential(layer), 0.5)[0]
    assert _targets.weight_of(masked) is masked.parametrizations.weight.original
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert _targets.weight_of(normed) is normed.parametrizations.weight.original0
    copied = _targets.duplicate("prune", masked)
    _targets.plain(copied)
    assert type(copied.weight) is nn.Parameter
    assert torch.equal(copied.weight, masked.weight)
    assert nn.utils.parametrize.is_parametrized(masked, "weight")


def test_a_module_takes_the_place_of_another():
    """By its name, however deep; without a name it is the model."""
    model, new = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), nn.ReLU())), nn.Tanh()
    assert _targets.replace(model, "1.0", new) is model
    assert [type(each) for each in model.modules()][1:] == [nn.ReLU, nn.Sequential, nn.Tanh, nn.ReLU]
    assert _targets.replace(model, "0", new) is model
    assert model[0] is new
    assert _targets.replace(model, "", new) is new


def test_shares_and_whole_numbers_have_ends():
    """0 is a share and 1 is none; both ends of a range are in it, and the message names them."""
    assert [_targets.share("prune", "amount", value) for value in (0, 0.0, 0.999)] == [0.0, 0.0, 0.999]
    assert [_targets.whole("f", "n", value, 2, 8) for value in (2, 8)] == [2, 8]
    for wrong in (-0.001, 1, 1.0, float("nan"), "half"):
        with pytest.raises(InputError, match=r"^prune: amount=.*; expected a share from 0 up to, but not, 1. Pass for example amount=0.5"):
            _targets.share("prune", "amount", wrong)
    for wrong in (1, 9, 2.5, "3"):
        with pytest.raises(InputError, match=r"^f: n=.*; expected a whole number from 2 to 8. Pass for example n=2"):
            _targets.whole("f", "n", wrong, 2, 8)
