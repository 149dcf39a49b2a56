"""The traffic of operators: bytes and FLOPs against counts by hand, the catalogue's formulas and PyTorch's FLOP counter."""

from __future__ import annotations

import math
import types

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import gpulab as gl
from gpulab.errors import InputError
from gpulab.evidence import Badge, Evidence
from gpulab.memory import OperatorTraffic, Traffic, _counter

N = 4 * 1000  # bytes of a thousand float32


def _moved(fn, *args):
    t = gl.memory.traffic(fn, *args)
    return [(each.read_bytes, each.written_bytes, each.flops) for each in t.operators]


def test_each_operator_of_a_chain_reads_and_writes_once():
    """Three elementwise operators move six arrays; a fused pass would move two."""
    t = gl.memory.traffic(lambda x: torch.relu(x * 2 + 1), torch.ones(1000))
    assert [(each.read_bytes, each.written_bytes, each.flops) for each in t.operators] == [(N, N, 1000.0)] * 3
    assert (t.nbytes, t.compulsory_bytes, t.flops) == (6 * N, 2 * N, 3000.0)
    assert t.evidence.badge is Badge.MODELLED


def test_in_place_saves_memory_and_no_traffic():
    """An operator that writes over its argument has read it before."""
    assert _moved(lambda x: x.mul_(2).add_(1), torch.ones(1000)) == [(N, N, 1000.0)] * 2


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x, out: x.mul_(2).add_(1), 3 * N),  # x read and written; out is given, and nobody looks at it
        (lambda x, out: torch.add(x, 1, out=out), 2 * N),
        (lambda x, out: torch.add(x, 1, out=out).relu_(), 2 * N),  # what is read there again was made by the pass itself
        (lambda x, out: out.copy_(x).mul_(2), 2 * N),
        (lambda x, out: out.add_(x), 3 * N),
        (lambda x, out: (x.clone().add_(out), out), 3 * N),
    ],
    ids=["in place", "out", "out in place", "copy", "accumulate", "own copy"],
)
def test_a_fused_pass_in_place_reads_and_writes(fn, expected):
    """By hand: an array that is changed where it lies is read once and written once, one that is only written is written once."""
    assert gl.memory.traffic(fn, torch.ones(1000), torch.ones(1000)).compulsory_bytes == expected


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: torch.add(x, x), (N, N, 1000.0)),  # the same array twice is read once
        (lambda x: torch.add(x, torch.ones(()), alpha=3), (N + 4, N, 2000.0)),  # the scaling is a second operation
        (lambda x: x.sum(), (N, 4, 1000.0)),
        (lambda x: x.clone(), (N, N, 0.0)),
        (lambda x: x.fill_(1.0), (0, N, 0.0)),  # what was there is not looked at
        (lambda x: x.expand(8, 1000).sum(), (N, 4, 8000.0)),  # an expanded array is in memory once
        (lambda x: x.view(10, 100)[:, 0].clone(), (40, 40, 0.0)),  # a view is read where it looks
        (lambda x: x.double(), (N, 2 * N, 0.0)),
    ],
    ids=["twice", "alpha", "sum", "clone", "fill", "expand", "column", "double"],
)
def test_operators_by_hand(fn, expected):
    """Reads, writes and FLOPs of single operators, counted by hand."""
    found = [each for each in _moved(fn, torch.ones(1000)) if each != (0, 4, 0.0)]  # making the scalar is not asked here
    assert found == [expected]


def test_out_is_written_and_not_read():
    """An ``out=`` argument costs its writing only."""
    out = torch.empty(1000)
    assert _moved(lambda x: torch.mul(x, x, out=out), torch.ones(1000)) == [(N, N, 1000.0)]


def test_views_and_storages_move_nothing():
    """Transposing, slicing, reshaping and allocating touch no element."""
    assert _moved(lambda x: (x.view(10, 100).T[2:], torch.empty_like(x), x.detach()), torch.ones(1000)) == []


def test_a_lookup_reads_only_the_rows_asked_for():
    """Four rows of a large table: four indices of 8 bytes and four rows of 16 bytes read, the rows written."""
    table = torch.ones(1000, 4)
    assert _moved(lambda i: functional.embedding(i, table), torch.arange(4)) == [(32 + 64, 64, 0.0)]


@pytest.mark.parametrize(
    ("name", "n"),
    [("add", 1000), ("exp", 1000), ("gelu", 1000), ("sum", 1000), ("softmax", 8), ("matmul", 64), ("conv2d", 1), ("attention", 32)],
)
def test_agrees_with_the_catalogue(name, n):
    """Bytes and FLOPs of catalogue entries that are one operator follow the catalogue's formulas (a sum of n has n - 1 additions)."""
    work = gl.workloads.get(name)(n=n)
    t = gl.memory.traffic(work.run, *work.inputs("cpu"))
    assert t.flops == pytest.approx(work.flops, rel=0.002)
    small = (
        work.inputs("cpu")[0].numel() // work.inputs("cpu")[0].shape[-1] * 4
    )  # attention also keeps a number a row for the backward pass
    assert work.nbytes <= t.nbytes <= work.nbytes + (small if name == "attention" else 0)


def test_matrix_products_of_a_training_step_agree_with_pytorchs_counter():
    """The products of forward and backward together are what torch.utils.flop_counter finds."""
    model, x = gl.networks.mlp(64, 32, 10), torch.ones(16, 64)
    t = gl.memory.traffic(lambda: model(x).sum().backward())
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    products = sum(each.flops for each in t.operators if each.name.startswith(("aten.mm", "aten.addmm")))
    assert products == counter.get_total_flops() > 0


def test_attentions_backward_agrees_with_pytorchs_formula():
    """Five products: what PyTorch counts for the attention kernels of GPUs, at unequal lengths."""
    q, k = torch.ones(2, 3, 8, 16, requires_grad=True), torch.ones(2, 3, 20, 16)
    t = gl.memory.traffic(lambda: functional.scaled_dot_product_attention(q, k, k).sum().backward())
    found = [each.flops for each in t.operators if "attention" in each.name or each.name.startswith("aten.bmm")]
    forward = 2 * 2 * 3 * 8 * 20 * 16 * 2
    assert sum(found) == forward * 3.5


def test_operators_under_a_roofline():
    """Under a ridge of 14 FLOP a byte a square product is bound by arithmetic, an addition by memory, an uncounted one by neither."""
    roof = gl.models.roofline("H200")
    a = torch.ones(256, 256)
    t = gl.memory.traffic(lambda: torch.linalg.inv((a @ a) + torch.eye(256)))
    bound = [each.name for each in t.memory_bound(roof)]
    assert "aten.add.Tensor" in bound
    assert not any("mm" in name or "inv" in name for name in bound)
    assert any("inv" in name for name in t.uncounted)
    assert "not counted" in t.caption()


def test_equal_operators_share_a_row_in_a_long_table():
    """More than a dozen operators are shown a kind a row, with the sum in the last."""
    t = gl.memory.traffic(lambda x: [x := x + 1 for _ in range(20)][-1], torch.ones(1000))
    rows = t.table()[1]
    assert [row[0] for row in rows] == ["20 x aten.add.Tensor", "together"]


@pytest.mark.parametrize(
    ("layout", "nbytes"),
    [
        (torch.sparse_coo, 4 * 1000 + 8 * 2 * 1000),  # values in float32; a row and a column in int64 for each
        (torch.sparse_csr, 4 * 1000 + 8 * 1000 + 8 * 1001),  # a column for each; where each row begins, and the end
        (torch.sparse_csc, 4 * 1000 + 8 * 1000 + 8 * 1001),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta")
def test_a_sparse_matrix_is_read_with_its_indices(layout, nbytes):
    """A thousand ones on a diagonal, times a vector, by hand: the matrix, the vector and the result."""
    matrix = torch.eye(1000).to_sparse(layout=layout)
    t = gl.memory.traffic(torch.mv, matrix, torch.ones(1000))
    assert t.operators[-1].read_bytes == nbytes + N
    assert t.operators[-1].written_bytes == N


@pytest.mark.parametrize(("operators", "rows"), [(11, 11), (12, 12), (13, 1)])
def test_a_dozen_operators_still_have_a_row_each(operators, rows):
    """The table keeps to a dozen rows and their sum."""

    def halved(x):
        for _ in range(operators):
            x = x * 0.5
        return x

    t = gl.memory.traffic(halved, torch.ones(10))
    assert len(t.operators) == operators
    assert len(t.table()[1]) == rows + 1


def test_a_compiled_function_is_counted_as_it_was_written():
    """torch.compile's wrapper is looked through, so nothing is compiled to count."""
    fn = torch.compile(lambda x: x * 2 + 1)
    assert gl.memory.traffic(fn, torch.ones(1000)).nbytes == 4 * N


@pytest.mark.parametrize(("fn", "says"), [(3, "cannot be called"), (lambda x: x @ x, "raised"), (lambda: 1, "raised")])
def test_what_cannot_run_is_one_sentence(fn, says):
    """No function, wrong shapes, wrong number of arguments."""
    with pytest.raises(InputError, match=says):
        gl.memory.traffic(fn, torch.ones(3, 2))


def test_what_goes_in_and_comes_out_of_a_module():
    """Three rows of eight and a weight of 32 in, three of four out; what is given back as it was is no output."""
    t = gl.memory.traffic(torch.nn.Linear(8, 4, bias=False), torch.ones(3, 8))
    assert (t.input_bytes, t.output_bytes, t.label) == (4 * (24 + 32), 48, "Linear")
    same = gl.memory.traffic(lambda x: (x, x + 1), torch.ones(10), label="both")
    assert (same.input_bytes, same.output_bytes, same.label) == (40, 40, "both")


def test_a_table_of_traffic_by_hand():
    """Bytes, FLOPs where somebody counts them, and their ratio; the sum leaves out what nobody counts."""
    operators = OperatorTraffic("mul", 3000, 1000, 2000.0), OperatorTraffic("sort", 1000, 0, None), OperatorTraffic("nothing", 0, 0, 5.0)
    t = Traffic("it", operators, 100, 50, Evidence.modelled("a", "b"))
    assert t.table() == (
        ("operator", "reads", "writes", "FLOP", "FLOP a byte"),
        [
            ("mul", "2.93 KiB", "1000 B", "2000", "0.5"), ("sort", "1000 B", "0 B", "not counted", ""), ("nothing", "0 B", "0 B", "5", ""),
            ("together", "3.91 KiB", "1000 B", "2005", "0.401"),
        ],
    )  # fmt: skip
    assert repr(t) == "<it: 3 operators, reads 3.91 KiB, writes 1000 B, 2e+03 FLOP (MODELLED)>"
    assert (t.read_bytes, t.written_bytes, t.nbytes, t.compulsory_bytes, t.uncounted) == (4000, 1000, 5000, 150, ("sort",))
    assert t.caption().endswith(" · FLOPs not counted: sort")
    assert Traffic("it", operators[2:], 0, 0, t.evidence).intensity_flops_per_byte == math.inf
    assert Traffic("it", (), 0, 0, t.evidence).table()[1] == [("together", "0 B", "0 B", "0", "")]
    roof = types.SimpleNamespace(ridge_flops_per_byte=lambda arithmetic: {"float32": 0.5, "tf32": 0.6}[arithmetic])
    assert t.memory_bound(roof) == ()  # on the ridge itself neither holds it back
    assert t.memory_bound(roof, "tf32") == operators[:1]


X = torch.ones(1000)
IMAGES = torch.ones(10, 4, 25)


@pytest.mark.parametrize(
    ("fn", "each"),
    [
        (lambda: torch.addcmul(X, X, X), 3),  # a + v * b * c
        (lambda: torch.addcdiv(X, X, X), 3),
        (lambda: torch.lerp(X, X, 0.5), 3),  # a + w * (b - a)
        (lambda: torch.sigmoid(X), 3),  # exp, one more, the reciprocal
        (lambda: functional.silu(X), 4),  # and the product
        (lambda: functional.softplus(X), 4),
        (lambda: functional.gelu(X), 5),
        (lambda: X.clamp(0, 1), 2),  # against both ends
        (lambda: functional.hardtanh(X), 2),
        (lambda: torch.where(X.bool(), X, X), 1),
        (lambda: torch.sub(X, X), 1),
        (lambda: torch.sub(X, X, alpha=2), 2),
        (lambda: X.add_(X, alpha=2), 2),
        (X.exp, 1),
        (X.mean, 1),
        (X.amax, 1),
        (X.amin, 1),
        (X.max, 1),
        (X.min, 1),
        (X.prod, 1),
        (X.argmax, 1),
        (lambda: X.cumsum(0), 1),
        (X.var, 3),  # less the mean, squared, added
        (lambda: torch.var_mean(X), 3),
        (lambda: torch.linalg.vector_norm(X), 2),  # squared, added
        (lambda: torch.dot(X, X), 2),
        (lambda: functional.softmax(X, 0), 5),  # as the catalogue has it
        (lambda: functional.log_softmax(X, 0), 5),
        (lambda: functional.layer_norm(X, (1000,)), 7),  # as the catalogue has it
        (lambda: functional.batch_norm(IMAGES, None, None, training=True), 7),
        (lambda: torch.cat([X, X]), 0),
        (X.sort, 0),
        (lambda: X.clone().zero_(), 0),
    ],
)
def test_the_arithmetic_of_an_element(fn, each):
    """FLOPs of a thousand elements, by the operator's own definition or by the catalogue's convention."""
    assert gl.memory.traffic(fn).flops == each * 1000


@pytest.mark.parametrize(("name", "each"), [("gelu", 8), ("relu", 1)])
def test_the_arithmetic_of_an_elements_derivative(name, each):
    """Of a thousand elements: one product behind a ReLU; eight operations for GELU's, whose derivative has two terms and an exponential."""
    x = torch.ones(1000, requires_grad=True)
    t = gl.memory.traffic(lambda: getattr(functional, name)(x).backward(torch.ones(1000)))
    backward = [one.flops for one in t.operators if "backward" in one.name]
    assert backward == [each * 1000.0]


def test_attentions_products_have_widths_of_their_own():
    """Forward: keys by queries, then values by weights. Backward: three products as wide as the queries, two as wide as the values."""
    q, k, v = torch.ones(2, 3, 8, 16), torch.ones(2, 3, 20, 16), torch.ones(2, 3, 20, 5)
    pairs = 2 * 2 * 3 * 8 * 20  # a product and a sum for each query and key of 2 x 3 heads
    assert _counter._attention_flops("_scaled_dot_product_flash_attention", (q, k, v)) == pairs * (16 + 5)
    backward = _counter._attention_flops("_scaled_dot_product_flash_attention_backward", (v, q, k, v))
    assert backward == pairs * (3 * 16 + 2 * 5)


def test_windows_that_overlap_are_in_memory_once():
    """Eight windows of three on ten numbers: 24 elements are seen, 40 bytes are there; of nothing, nothing is read."""
    assert _moved(lambda x: x[:10].clone().as_strided((8, 3), (1, 1)).clone(), X)[1] == (40, 96, 0.0)
    assert list(_counter.distinct([torch.ones(0, 3), torch.ones(3, 0), "text", 5]).values()) == [0, 0]
    assert list(_counter.distinct([X, X, X[:5], X.view(10, 100)]).values()) == [N, 20, N]


def test_a_sum_of_nobodys_is_unknown():
    """A sort of one's own has no count; the whole counts the rest."""
    t = gl.memory.traffic(lambda: (torch.linalg.inv(torch.eye(3)), X + 1))
    assert {one.name: one.flops for one in t.operators if "inv" in one.name or "add" in one.name} == {
        "aten.linalg_inv_ex.default": None, "aten.add.Tensor": 1000.0,
    }  # fmt: skip


def test_what_an_operator_changes_and_does_not_give_back_is_written():
    """An optimizer's update of many tensors at once returns none of them: both are read and written where they lie."""
    t = gl.memory.traffic(lambda x, y: torch._foreach_add_([x, y], 1.0), torch.ones(1000), torch.ones(500))
    assert [(each.read_bytes, each.written_bytes) for each in t.operators] == [(N + N // 2, N + N // 2)]
    assert t.compulsory_bytes == 3 * N


def test_two_sparse_matrices_are_two():
    """Each has three values of 4 bytes, and a row and a column of 8 bytes for each; the same one twice is one."""
    one, other = torch.eye(3).to_sparse(), torch.eye(3).to_sparse()
    assert list(_counter.distinct([one, other, one]).values()) == [12 + 48, 12 + 48]
