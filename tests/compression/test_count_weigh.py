"""Counting and weighing: FLOPs by hand and beside PyTorch's counter, times with an injected clock, reasons that follow from facts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpulab import compression, networks
from gpulab.compression import _count, _integer, _modules, _ranges, _reasons, _weigh
from gpulab.compression.results import Reason, Weighing
from gpulab.errors import InputError
from gpulab.evidence import Note


def test_flops_by_hand():
    """Two for each weight at each position of the output; groups divide the weights; a stored zero counts, one that is not does not."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, groups=4), nn.Conv2d(8, 8, 1), nn.Flatten())
    model.append(nn.Linear(8 * 3 * 3, 5))
    x = torch.zeros(2, 3, 10, 10)  # then 5x5, 3x3, 3x3 positions
    cost = compression.count(model, x)
    by_hand = [2 * 25 * 8 * 3 * 9, 2 * 9 * 8 * 2 * 9, 2 * 9 * 8 * 8, 2 * 72 * 5]
    assert [layer.flops for layer in cost.layers] == [2 * each for each in by_hand]
    assert cost.flops_per_item == sum(by_hand)
    assert [layer.kind for layer in cost.layers] == ["convolution", "4 groups", "convolution", "linear"]
    assert [layer.parameters for layer in cost.layers] == [8 * 27 + 8, 8 * 18 + 8, 8 * 8 + 8, 72 * 5 + 5]
    pruned = compression.prune(model, 0.5)
    assert compression.count(pruned, x).flops == cost.flops
    left = {name: int(m.weight.count_nonzero()) for name, m in pruned.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    sparse = {layer.name: layer for layer in compression.count(compression.to_sparse(pruned), x).layers}
    assert sparse["4"].flops == 2 * 2 * left["4"]
    assert sparse["0"].flops == 2 * 2 * 25 * left["0"]
    assert sparse["1"].flops == 2 * by_hand[1]  # grouped: it stays dense


@pytest.mark.parametrize("kind", ["cnn", "resnext", "mobilenet", "mlp", "transformer", "quantised"])
def test_flops_agree_with_pytorchs_counter(kind: str):
    """PyTorch's FlopCounterMode, with attention that it can see, counts the same."""
    model, x = {
        "cnn": lambda: (networks.cnn(width=8), torch.zeros(3, 1, 9, 9)),
        "resnext": lambda: (networks.resnext(width=16), torch.zeros(3, 1, 8, 8)),
        "mobilenet": lambda: (networks.mobilenet(width=4), torch.zeros(3, 1, 8, 8)),
        "mlp": lambda: (networks.mlp(64, 32, 10), torch.zeros(5, 64)),
        "transformer": lambda: (networks.transformer(50, 16, 2, 2, context=8), torch.zeros(3, 8, dtype=torch.int64)),
        "quantised": lambda: (compression.quantize(networks.cnn(width=8)), torch.zeros(3, 1, 9, 9)),
    }[kind]()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as theirs, torch.no_grad():
        model.eval()(x)
    assert compression.count(model, x).flops == theirs.get_total_flops()


@pytest.mark.parametrize(
    ("layer", "read"),
    [
        (nn.LSTM(8, 16, 2, batch_first=True), 4 * 16 * (8 + 16) + 4 * 16 * (16 + 16)),
        (nn.LSTM(8, 16, bidirectional=True, proj_size=6, batch_first=True), 2 * (4 * 16 * (8 + 6) + 6 * 16)),
        (nn.GRU(8, 16, batch_first=True), 3 * 16 * (8 + 16)),
        (nn.RNN(8, 16, batch_first=True), 16 * (8 + 16)),
    ],
)
def test_a_recurrent_layer_reads_each_matrix_once_a_position(layer: nn.Module, read: int):
    """By hand, with items of 5 positions; packed, only the positions that are there count."""
    weights = sum(p.numel() for p in layer.parameters())
    cost = compression.count(nn.Sequential(layer), torch.zeros(3, 5, 8))
    assert [(each.kind, each.parameters, each.flops) for each in cost.layers] == [("recurrent", weights, 2 * 3 * 5 * read)]
    assert (cost.other_flops, cost.parameters) == (0, weights)

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(nn.utils.rnn.pack_padded_sequence(x, [5, 2, 1], batch_first=True))[0].data

    assert compression.count(Packed(), torch.zeros(3, 5, 8)).flops == 2 * (5 + 2 + 1) * read


def test_a_layer_used_twice_counts_twice():
    """Its parameters count once, its work as often as it runs."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    cost = compression.count(Twice(), torch.zeros(1, 4))
    assert (cost.flops, cost.parameters) == (64, 16)


def test_a_layer_that_fails_and_is_done_without_hides_no_product_behind_it():
    """A model that tries one layer, catches its error and takes a plain product instead: that product counts, the layer does not."""

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.layer(x)
            except RuntimeError:
                return x @ torch.ones(3, 4)

    cost = compression.count(Tries(), torch.ones(2, 3))
    assert (cost.layers, cost.other_flops) == ((), 2 * 2 * 3 * 4)


def test_counting_leaves_the_model_as_it_was():
    """No hook stays, and a model that raises is a sentence."""
    model = networks.mlp(8, 8, 2).train()
    compression.count(model, torch.zeros(2, 8))
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(InputError, match=r"Try model\(x\) first"):
        compression.count(model, torch.zeros(2, 9))


class Clock:
    """Seconds that pass only when a model runs: so much a call, and so much an item."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time now."""
        self.now += 1e-9
        return self.now


class Slow(nn.Module):
    """A layer whose call takes the seconds that it was given."""

    def __init__(self, clock: Clock, start: float, each: float) -> None:
        super().__init__()
        self.layer, self.cost = nn.Linear(8, 4, bias=False), (start, each)
        self.clock = [clock]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Let the time pass."""
        self.clock[0].now += self.cost[0] + self.cost[1] * len(x)
        return self.layer(x)

    def __deepcopy__(self, memo: dict) -> Slow:
        """Share the clock."""
        new = Slow(self.clock[0], *self.cost)
        new.layer.load_state_dict(self.layer.state_dict())
        return new


def test_times_are_those_of_the_clock():
    """With 1 ms a call and 10 us an item, 100 items take 2 ms and one takes 1.01 ms; the speed-up is to the first, measured in turns."""
    clock = Clock()
    models = {"first": Slow(clock, 1e-3, 1e-5), "second": Slow(clock, 1e-3, 0.0)}
    w = compression.weigh(models, inputs=torch.zeros(100, 8), clock=clock, deadline=0.2)
    assert w["first"].median_seconds == pytest.approx(2e-3, rel=1e-3)
    assert w["first"].single_seconds == pytest.approx(1.01e-3, rel=1e-3)
    assert w["second"].speedup == pytest.approx(2.0, rel=1e-3)
    assert w["first"].speedup is None
    assert w["second"].faster == "faster"
    assert w["first"].flops_per_item == 2 * 32
    assert Weighing.from_dict(w.to_dict()) == w


def test_a_weighed_row_by_hand():
    """Of 8 x 4 weights half are zero; an integer layer stores 32 codes; CSR stores 16 values, none of them zero; progress rises to 1."""
    plain, seen = nn.Sequential(nn.Linear(8, 4, bias=False)), []
    with torch.no_grad():
        plain[0].weight.copy_(torch.linspace(0.1, 0.3, 32).view(4, 8))  # far from zero: none is rounded to it
    pruned = compression.prune(plain, 0.5)
    models = {"plain": plain, "pruned": pruned, "csr": compression.to_sparse(pruned), "integers": compression.quantize(plain)}
    w = compression.weigh(models, inputs=torch.zeros(3, 8), deadline=0.01, progress=lambda fraction, text: seen.append(fraction))
    stored = {each.label: (each.parameters, each.zeros, each.forms) for each in w.models}
    assert stored == {
        "plain": (32, 0, ()), "pruned": (32, 16, ("dense zeros",)), "csr": (16, 0, ("csr",)), "integers": (32, 0, ("integers in float",)),
    }  # fmt: skip
    assert [each.flops_per_item for each in w.models] == [64, 64, 32, 64]
    assert all(each.file_bytes == compression.size_on_disk(models[each.label]) for each in w.models)
    # One product: a weight of 32 and three items of 8 are read, three items of 4 written, 4 bytes each.
    assert (w["plain"].operators, w["plain"].moved_bytes, w.batch, w.task) == (1, 4 * (32 + 24 + 12), 3, "")
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.02, 1.0)


@pytest.mark.parametrize(
    ("layer", "inputs", "flops", "parameters"),
    [
        # Items of 5 positions: four gates of 16 that read 8 inputs and 16 states; two biases a gate.
        (nn.LSTM(8, 16, batch_first=True), torch.zeros(3, 5, 8), 2 * 5 * 4 * 16 * (8 + 16), 4 * 16 * (8 + 16 + 2)),
        (nn.Embedding(10, 4), torch.tensor([[1, 2], [3, 4]]), 0, 40),
        (nn.LayerNorm(8), torch.zeros(2, 8), 0, 16),
    ],
    ids=["recurrent", "table", "norm"],
)
def test_a_model_without_layers_to_compress_is_weighed_too(layer: nn.Module, inputs: torch.Tensor, flops: float, parameters: int):
    """No layer is left to prune, and yet it has a size, a time and parameters; that none of its weights is zero is no form of storing."""
    found = compression.weigh(layer, inputs=inputs, deadline=0.01)["the model"]
    assert (found.flops_per_item, found.parameters, found.zeros, found.forms, found.reasons) == (flops, parameters, 0, (), ())
    assert found.median_seconds > 0
    assert found.file_bytes == compression.size_on_disk(layer)
    with pytest.raises(
        InputError, match=r"^sparsity: the model has no linear or convolutional layer; expected at least one\. Pass the whole"
    ):
        compression.sparsity(layer)


def test_several_seeds_are_one_row():
    """The models of one label are one recipe: the largest file counts, and each has an accuracy of its own."""
    pytest.importorskip("sklearn")
    several = [networks.mlp(64, 8, 10), compression.quantize(networks.mlp(64, 8, 10))]
    w = compression.weigh({"mlp": several}, "digits-mlp", deadline=0.02)
    assert w["mlp"].file_bytes == compression.size_on_disk(several[0])
    assert len(w["mlp"].accuracies) == 2
    assert w["mlp"].accuracies[0].count == 500


def test_a_model_of_nans_is_named():
    """It answers one digit in ten right, as chance would; the note says that its loss is no number."""
    whole, broken = networks.mlp(64, 8, 10), networks.mlp(64, 8, 10)
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    w = compression.weigh({"whole": whole, "broken": broken}, "digits-mlp", deadline=0.01)
    assert [note.sentence for note in w.notes if note.code == "diverged"] == [
        "broken: the loss on the test is infinite or nan, so what it answers is chance. Train it again."
    ]


def facts(**changes: object) -> _reasons.Facts:
    """A model of 1 GFLOP that takes 10 ms."""
    plain = _reasons.Facts("x", 64, (), 0.0, 1e9, 10, 10**7, 1e-2, 1e-3, None, None)
    return dataclasses.replace(plain, **changes)


def reasons(best: float | None = 4e9, **changes: object) -> tuple[Reason, ...]:
    """The reasons for a model against the plain one, on a memory of 4 GB/s."""
    return _reasons.reasons(facts(), facts(**changes), lambda nbytes: best)


def codes(**changes: object) -> list[str]:
    """Their codes."""
    return [each.code for each in reasons(**changes)]


def test_reasons_follow_from_the_facts():
    """Each form that saves no time is named where the time was not saved, and only there."""
    same: dict = {"speedup": 1.0, "speedup_low": 0.98}
    assert codes() == []
    assert codes(forms=("dense zeros",), zero_share=0.9, **same) == ["dense zeros"]
    assert codes(forms=("dense zeros",), speedup=2.0, speedup_low=1.9) == []
    assert codes(forms=("shared",), **same) == ["unpacked"]
    assert codes(forms=("integers in float",), **same) == ["converted"]
    assert codes(forms=("csr",), flops=1e8, speedup=0.5, speedup_low=0.4) == ["indices"]
    assert codes(flops=1e8, seconds=5e-3, single_seconds=4e-3, speedup=2.0, speedup_low=1.9) == ["starting"]
    assert codes(flops=1e8, seconds=5e-3, speedup=2.0, speedup_low=1.9) == ["memory"]
    disturbed = codes(flops=1e8, seconds=5e-3, single_seconds=0.3, speedup=2.0, speedup_low=1.9)
    assert disturbed == ["memory"], "one item that took longer than the batch was disturbed: it says nothing on starting"
    assert codes(flops=1e8, seconds=1e-3, speedup=10.0, speedup_low=9.0) == []
    assert codes(operators=40, speedup=0.5, speedup_low=0.4) == ["elsewhere"]


def test_sentences_say_what_the_numbers_say():
    """90 % zeros: the sentence has the share; a FLOP count that fell has both ratios and the rates by hand."""
    zero = reasons(forms=("dense zeros",), zero_share=0.9, speedup=1.0, speedup_low=0.9)
    assert "90%" in zero[0].sentence
    moved = reasons(2e9, flops=1e8, seconds=5e-3, moved_bytes=5 * 10**6, speedup=2.0, speedup_low=1.9)[0].sentence
    assert "1/10" in moved
    assert "1/2," not in moved
    assert "20.0 GFLOP/s where the first reached 100 GFLOP/s" in moved
    assert "20 FLOP for each byte that they move, not 100, and move 1.00 GB/s where" in moved
    assert "2.00 GB/s at best: memory" in moved


def test_work_that_did_not_fall_is_put_in_words():
    """By hand: 1 GFLOP in 20 ms are 50 GFLOP/s against 100; operators are told only where there are more; 2 GFLOP are twice."""
    same: dict = {"seconds": 2e-2, "speedup": 0.5, "speedup_low": 0.4}
    (more,), (equal,), (unknown,) = (reasons(operators=count, **same) for count in (40, 10, None))
    assert more.sentence.startswith("It does about as many FLOPs in 40 operators, not 10: it reaches 50.0 GFLOP/s where the first")
    assert equal.sentence.startswith("It does about as many FLOPs: it reaches")
    assert unknown.sentence == equal.sentence
    (twice,) = reasons(**{**same, "flops": 2e9})
    assert twice.sentence.startswith("It does 2 times the FLOPs: it reaches 100 GFLOP/s where the first reached 100 GFLOP/s.")


def test_memory_is_blamed_only_near_its_best_rate():
    """5 MB in 5 ms are 1 GB/s: no cause of anything where a copy runs at 30 GB/s, and one where 3.2 GB/s is all there is."""
    fell: dict = {"flops": 2.5e8, "moved_bytes": 5_000_000, "seconds": 5e-3, "speedup": 2.0, "speedup_low": 1.9}  # 1 GB/s
    assert codes(best=3.2e9, **fell) == ["memory"]
    assert codes(best=3.4e9, **fell) == ["rate"]  # 30 % of it are 1.02 GB/s
    assert codes(best=None, **fell) == ["rate"]
    (small,) = reasons(30e9, **fell)
    assert "memory" not in small.sentence
    assert "Smaller products often reach a lower rate" in small.sentence
    (slow,) = reasons(30e9, operators=40, moved_bytes=10**8, seconds=1.0, speedup=0.01, speedup_low=0.009)
    assert (slow.code, "memory" in slow.sentence) == ("elsewhere", False)


def test_without_an_interval_no_cause_is_stated():
    """A ratio of two moments shows no loss that could have a cause."""
    for fact in ({"forms": ("dense zeros",), "zero_share": 0.9}, {"flops": 1e8}, {"operators": 40}):
        assert codes(speedup=0.9, speedup_low=None, **fact) == []


def test_the_memorys_rate_is_asked_only_where_it_decides(monkeypatch: pytest.MonkeyPatch):
    """Models of equal work never cost a measurement of the memory."""
    asked: list[str] = []
    monkeypatch.setattr(_weigh.devices, "ceilings", lambda device, **_: asked.append(str(device)))
    same = networks.mlp(8, 8, 2)
    compression.weigh({"one": same, "two": same}, inputs=torch.zeros(4, 8), deadline=0.02)
    assert asked == []


def test_a_time_of_starting_operators_is_said_and_never_as_a_share_above_one():
    """On a fast GPU 64 items take as long as one: zeros and fewer FLOPs change nothing, and a gain whose interval holds 1 is none."""
    same: dict = {"seconds": 4e-4, "single_seconds": 4.2e-4, "operators": 15, "speedup": 1.004, "speedup_low": 0.99}
    (zeros,) = reasons(forms=("dense zeros",), zero_share=0.9, **same)
    (fewer,) = reasons(flops=2.5e8, **same)
    for each in (zeros, fewer):
        assert "64 items take 400 us and a single one 420 us" in each.sentence
        assert "starting 15 operators" in each.sentence
    assert "Its FLOPs fell to 1/4, its time did not" in fewer.sentence


def test_missing_instructions_are_named_only_where_they_miss(monkeypatch: pytest.MonkeyPatch):
    """An int8 model that is not faster blames the VNNI that PyTorch does not report (torch.cpu asks for AVX-512's alone), and only then."""
    same: dict = {"forms": ("integers",), "speedup": 1.0, "speedup_low": 0.98}
    monkeypatch.setattr(_integer, "activation_bits", lambda: 7)
    assert codes(**same) == ["rounding", "no instructions"]
    assert "PyTorch reports no AVX-512 VNNI" in reasons(**same)[-1].sentence
    monkeypatch.setattr(_integer, "activation_bits", lambda: 8)
    assert codes(**same) == ["rounding"]


@pytest.mark.parametrize(
    ("models", "options", "says"),
    [
        ({}, {"inputs": torch.zeros(1, 8)}, "no models"),
        ({"a": []}, {"inputs": torch.zeros(1, 8)}, "at least one"),
        ({1: networks.mlp(8, 8, 2)}, {"inputs": torch.zeros(1, 8)}, "text"),
        ("model", {"inputs": torch.zeros(1, 8)}, "Module"),
        (networks.mlp(8, 8, 2), {}, "neither a task nor inputs"),
        (networks.mlp(8, 8, 2), {"inputs": 3}, "a tensor of items"),
        (networks.mlp(8, 8, 2), {"inputs": torch.zeros(1, 9)}, "expected it to run"),
    ],
)
def test_refusals_say_what_to_do(models: object, options: dict, says: str):
    """What cannot be weighed is named with what can."""
    with pytest.raises(InputError, match=says):
        compression.weigh(models, **options)


def test_products_outside_of_layers_by_hand():
    """(2, 3) by (3, 4) is 2 * 8 * 3; attention of 3 queries of 8 to 5 keys and values of 4 in 2 heads is 2 * 48 * 5 and 2 * 6 * 5 * 4."""

    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Each way to write a product once, and attention by place and by name."""
            x = self.layer(x)
            w, q, k, v = torch.ones(3, 4), torch.ones(1, 2, 3, 8), torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 4)
            for product in (x @ w, torch.matmul(x, w), torch.mm(x, w), torch.bmm(x[None], w[None])):
                x = x + product.sum()
            nn.functional.scaled_dot_product_attention(q, k, v)
            nn.functional.scaled_dot_product_attention(q, value=v, key=k)
            nn.functional.scaled_dot_product_attention(q, k, v, torch.zeros(3, 5), 0.0)  # a mask and more by place count nothing
            return x

    cost = compression.count(Products(), torch.ones(2, 3), label="products")
    assert cost.other_flops == 4 * 48 + 3 * (480 + 240)
    assert cost.table() == (
        ("products", "kind", "parameters", "FLOP an item"),
        [
            ("layer", "linear", "12", "18.0 FLOP"), ("other products", "attention and the like", "0", "1.18 kFLOP"),
            ("all", "1 layer", "12", "1.19 kFLOP"),
        ],
    )  # fmt: skip
    assert repr(cost) == "<products: 12 parameters, 1.19 kFLOP an item (MODELLED)>"
    assert compression.count(nn.Identity(), torch.tensor(1.0)).batch == 1
    assert len(compression.count(nn.Sequential(nn.Linear(3, 3)), torch.ones(2, 3)).table()[1]) == 2


def test_products_inside_of_pytorchs_own_functions_by_hand():
    """Its attention layer, of 10 items of 16 in 2 heads of 8: 48 and 16 outputs for each, then 2 x 2 heads of 5 x 5 x 8, twice."""

    class Itself(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """To itself."""
            found: torch.Tensor = self.attention(x, x, x)[0]
            return found

    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Two products of (2, 4) by (4, 8)."""
            weight = torch.ones(8, 4)
            return nn.functional.linear(x, weight) + torch.einsum("bi,oi->bo", x, weight)

    attention = 2 * 10 * 16 * (48 + 16) + 2 * 2 * (2 * 2 * 5 * 5 * 8)
    assert compression.count(Itself(), torch.ones(2, 5, 16)).flops == attention
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    assert compression.count(encoder, torch.ones(2, 5, 16)).flops == attention + 2 * 2 * 10 * 16 * 32
    assert compression.count(nn.Conv1d(3, 4, 3), torch.ones(2, 3, 16)).flops == 2 * 2 * 14 * 4 * 9
    assert compression.count(Plain(), torch.ones(2, 4)).flops == 2 * (2 * 2 * 4 * 8)


def test_kinds_and_parameters_of_what_took_a_layers_place():
    """Eight filters of one channel; integers, CSR with 16 of 32 weights, and integer kernels; biases count."""
    plain = nn.Sequential(nn.Conv2d(8, 8, 1, groups=8), nn.Flatten(), nn.Linear(8, 4))
    half = compression.prune(plain, 0.5, layers=["2"])
    x = torch.ones(2, 8, 1, 1)
    kinds = {
        "plain": plain, "integers": compression.quantize(plain), "csr": compression.to_sparse(half, layers=["2"]),
    }  # fmt: skip
    found = {name: [(layer.kind, layer.parameters) for layer in compression.count(model, x).layers] for name, model in kinds.items()}
    assert found == {
        "plain": [("depthwise", 16), ("linear", 36)], "integers": [("depthwise, integers", 16), ("linear, integers", 36)],
        "csr": [("depthwise", 16), ("linear, CSR", 20)],
    }  # fmt: skip
    assert _count._kind(_modules.Integer(nn.Linear(8, 4), _ranges.Scheme("per-channel", 8, "dynamic", 8))) == "linear, int8"
    assert repr(kinds["integers"][0]) == "Quantized(convolution, weight (8, 1, 1, 1))"
    assert repr(kinds["csr"][2]) == "Sparse(linear, weight (4, 8))"


def test_zeros_beside_csr_are_stored():
    """A grouped convolution stays dense when the others become CSR, so its zeros are stored; those of a CSR layer are not."""
    model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2, bias=False), nn.Flatten(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)[:3] = 0.0  # 6 of 8
        model[2].weight.fill_(1.0)[0] = 0.0  # 4 of 8
    found = compression.weigh({"dense": model, "csr": compression.to_sparse(model)}, inputs=torch.ones(2, 4, 1, 1), deadline=0.02)
    assert [(each.parameters, each.zeros) for each in found.models] == [(16, 10), (12, 6)]


def test_how_a_model_is_stored_is_told():
    """By its layers: what a library keeps for itself by the weight's class; zeros from 5 % on, and not where a format leaves them out."""

    class SemiStructured(torch.Tensor):
        """As PyTorch's class of 2:4 weights is called."""

    class Packed(torch.Tensor):
        """Another library's."""

    def held(kind: type) -> nn.Module:
        model = nn.Sequential(nn.Linear(10, 10))
        model[0].weight = nn.Parameter(torch.zeros(10, 10).as_subclass(kind))
        return model

    def zeros(count: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(10, 10))
        with torch.no_grad():
            model[0].weight.fill_(1.0).view(-1)[:count] = 0.0
        return model

    assert [_reasons.forms(model, model) for model in (held(SemiStructured), held(Packed))] == [("2:4",), ("torchao",)]
    assert [_reasons.forms(model, model) for model in (zeros(4), zeros(6))] == [(), ("dense zeros",)]
    shared = compression.share_weights(zeros(4), 2)
    assert _reasons.forms(shared, compression.finish(shared)) == ("shared",)


def test_reasons_of_libraries_and_of_starting_many():
    """That library has its own; without a count of operators none is told; one that does no arithmetic has no ratio."""
    same: dict = {"speedup": 1.0, "speedup_low": 0.98}
    (one,) = reasons(forms=("torchao",), **same)
    assert one.sentence == "Run operator by operator, torchao converts before each product; it is written for torch.compile and GPUs."
    (one,) = reasons(flops=1e8, seconds=5e-3, single_seconds=4e-3, operators=None, speedup=2.0, speedup_low=1.9)
    assert one.sentence == (
        "Its FLOPs fell to 1/10, its time to 1/2: 64 items take 5.00 ms and a single one 4.00 ms: "
        "most of that is the time of starting operators, not of arithmetic."
    )
    (one,) = reasons(flops=0.0, **same)
    assert one.code == "elsewhere"


def test_each_kind_of_note_is_told_once():
    """With all the models that it concerns; that calls are short is nothing to tell here."""
    busy, short = Note("contended", "busy."), Note("too-short", "short.")
    rows = [SimpleNamespace(name=name, measurement=SimpleNamespace(notes=notes)) for name, notes in (("a", (busy, short)), ("b", (busy,)))]
    assert [(note.code, note.sentence) for note in _weigh._notes_of(rows)] == [("contended", "a, b: busy.")]


def test_what_cannot_be_looked_at_has_no_traffic(monkeypatch: pytest.MonkeyPatch):
    """A library's own tensors have no storage to count; a model without tensors is on the CPU."""

    def fails(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(_weigh.memory, "traffic", fails)
    assert _weigh._traffic(lambda x: None, torch.ones(1)) == (None, None)
    assert str(_weigh._where(nn.Identity())) == "cpu"
