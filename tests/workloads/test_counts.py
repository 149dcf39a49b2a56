"""FLOPs and bytes against numbers derived by hand, and against PyTorch's own counter where it counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpulab import workloads
from gpulab.workloads import _convolution, _dense, _elementwise, _irregular, _rows, _training

FILES = (_convolution, _dense, _elementwise, _irregular, _rows, _training)
# Each row was worked out by hand from the operation's definition; the comment shows how.
BY_HAND = [
    # 3x3 matrices: 9 entries, each 3 products and 3 additions = 54; 27 entries of 4 bytes.
    ("matmul", 3, "float32", {}, 54, 108),
    # Batch 2, 4 features in and out: 2*4 entries, each 4 multiply-adds and a bias = 64 + 8; x 8, W 16, b 4, y 8 entries.
    ("linear", 2, "float32", {"features": 4}, 72, 144),
    # Five sums; 15 doubles.
    ("add", 5, "float64", {}, 5, 120),
    ("exp", 5, "float16", {}, 5, 20),
    # x/2, x/sqrt2, erf, +1, product.
    ("gelu", 10, "bfloat16", {}, 50, 40),
    # Five numbers need four additions; six numbers pass the memory.
    ("sum", 5, "float32", {}, 4, 24),
    # 2 rows of 4: eight elements, five operations each.
    ("softmax", 2, "float32", {"width": 4}, 40, 64),
    # Seven operations for each of 8 elements; 8 in, 8 out, 4 weights, 4 biases.
    ("layer_norm", 2, "float32", {"width": 4}, 56, 96),
    # 8 points: 5 * 8 * 3; 8 complex numbers of 8 bytes in and out.
    ("fft", 8, "float32", {}, 120, 128),
    # 2/3 * 27 + 2 * 9; 9 + 3 + 3 doubles.
    ("solve", 3, "float64", {}, 36, 120),
    ("sort", 7, "float32", {}, 0, 56),
    # One 2x2 image, 2 channels: 4 pixels * 2 outputs * (2 channels * 9) multiply-adds = 288; 8 + 8 values, 36 weights.
    ("conv2d", 1, "float32", {"channels": 2, "side": 2}, 288, 208),
    # In 2 groups of 2 channels: 4 pixels * 4 outputs * (2 * 9) multiply-adds = 576; 16 + 16 values, 72 weights.
    ("grouped_conv2d", 1, "float32", {"channels": 4, "side": 2, "groups": 2}, 576, 416),
    # Each of 4 channels by itself: 4 pixels * 4 outputs * 9 multiply-adds = 288; 16 + 16 values, 36 weights.
    ("depthwise_conv2d", 1, "float32", {"channels": 4, "side": 2}, 288, 272),
    # One head, 3 positions of width 2: two products of 3*3*2 multiply-adds = 72; four arrays of 6.
    ("attention", 3, "float32", {"batch": 1, "heads": 1, "head_width": 2}, 72, 96),
    # A table of one row is read once however often it is asked for: 3 indices, 1 row read, 3 written, 4 values each.
    ("embedding_gather", 3, "float32", {"vocabulary": 1, "width": 4}, 0, 88),
]


@pytest.mark.parametrize(("name", "n", "dtype", "params", "flops", "nbytes"), BY_HAND, ids=[row[0] for row in BY_HAND])
def test_counts_by_hand(name, n, dtype, params, flops, nbytes):
    """FLOPs and bytes of a small case are those that paper and pencil give."""
    w = workloads.get(name)(n=n, dtype=dtype, **params)
    assert w.flops == pytest.approx(flops)
    assert w.nbytes == pytest.approx(nbytes)
    assert w.working_set_bytes == pytest.approx(nbytes)


def test_every_workload_is_counted_outside_of_its_file():
    """By hand or by PyTorch, whichever file it stands in; and each file has entered its own into the catalogue."""
    counted = {row[0] for row in (*BY_HAND, *COUNTED)}
    for module in FILES:
        own = {name for name in workloads.names() if workloads.get(name).function.__module__ == module.__name__}
        assert own
        assert own <= counted
    assert {workloads.get(name).function.__module__ for name in workloads.names()} == {module.__name__ for module in FILES}


def test_gather_of_many_rows_reads_the_table_once():
    """With far more draws than rows, the whole table is read: 1000 draws from 10 rows miss none."""
    w = workloads.get("embedding_gather")(n=1000, vocabulary=10, width=4)
    assert w.nbytes == pytest.approx(1000 * 8 + (10 + 1000) * 16, rel=1e-9)


def test_gather_of_few_rows_reads_each_once():
    """Two draws from a million rows touch two rows (less a chance of a millionth)."""
    w = workloads.get("embedding_gather")(n=2, vocabulary=1_000_000, width=4)
    assert w.nbytes == pytest.approx(2 * 8 + 4 * 16, rel=1e-5)


# Bias additions are not counted by PyTorch's counter.
COUNTED = [
    ("matmul", 12, {}, 0),
    ("linear", 3, {"features": 16}, 3 * 16),
    ("conv2d", 2, {"channels": 8, "side": 6}, 0),
    ("grouped_conv2d", 2, {"channels": 8, "side": 6, "groups": 4}, 0),
    ("depthwise_conv2d", 2, {"channels": 8, "side": 6}, 0),
    ("attention", 16, {"batch": 2, "heads": 2, "head_width": 8}, 0),
    ("cnn_training_step", 3, {"side": 8, "width": 4}, 0),
    ("transformer_training_step", 2, {"width": 16, "layers": 2}, 0),
]


@pytest.mark.parametrize(("name", "n", "params", "uncounted"), COUNTED, ids=[row[0] for row in COUNTED])
def test_flops_agree_with_pytorchs_counter(name, n, params, uncounted):
    """The formula gives exactly what FlopCounterMode counts while the work runs."""
    w = workloads.get(name)(n=n, **params)
    inputs = w.inputs("cpu")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        w.run(*inputs)
    assert w.flops == counter.get_total_flops() + uncounted


@pytest.mark.parametrize(
    ("name", "params"), [("cnn_training_step", {"side": 8, "width": 4}), ("transformer_training_step", {"width": 16, "layers": 2})]
)
def test_training_bytes_by_the_model_itself(name, params):
    """A step reads the batch and reads and writes weights and two moments: six times the parameters that the model really has."""
    w = workloads.get(name)(n=2, **params)
    step, x, y = w.inputs("cpu")
    parameters = sum(p.nbytes for p in step.model.parameters())
    assert w.nbytes == 6 * parameters + x.nbytes + y.nbytes


@pytest.mark.parametrize(
    "name", [n for n in workloads.names() if not n.endswith("training_step") and n not in ("embedding_gather", "sort")]
)
def test_bytes_by_the_arrays_themselves(name):
    """Compulsory traffic is the size of the arrays that go in and come out."""
    w = workloads.get(name)(n=8)
    inputs = w.inputs("cpu")
    assert w.nbytes == sum(x.nbytes for x in inputs) + w.run(*inputs).nbytes


@pytest.mark.parametrize("name", workloads.names())
def test_counts_follow_the_dtype(name):
    """In half the bytes an element, the same FLOPs."""
    spec = workloads.get(name)
    single, double = spec(n=4, dtype="float32"), spec(n=4, dtype="float64")
    assert single.flops == double.flops
    assert single.nbytes < double.nbytes <= 2 * single.nbytes


# Bytes of memory, worked out by hand; each comment says what is held beside inputs and result.
MEMORY = [
    # The system's matrix, its factors, and once more for the library: 3 * 9 doubles.
    ("solve", 3, "float64", {}, 216),
    # 8 complex numbers of 8 bytes in and out, and as much again to work in.
    ("fft", 8, "float32", {}, 256),
    # 7 values in and out and their places (int64); sorting works in as much again as it gives.
    ("sort", 7, "float32", {}, 7 * (8 + 8) + 7 * (8 + 8)),
    ("sort", 7, "bfloat16", {}, 7 * (4 + 8) + 7 * (4 + 8)),
    # 3 indices; 5 rows of the table, however few are asked for, and 3 of the result.
    ("embedding_gather", 3, "float32", {"vocabulary": 5, "width": 4}, 24 + 8 * 16),
    # Four arrays of 6, and the 3 x 3 scores twice: before and after the softmax.
    ("attention", 3, "float32", {"batch": 1, "heads": 1, "head_width": 2}, (24 + 18) * 4),
    ("attention", 3, "float32", {"batch": 2, "heads": 5, "head_width": 2}, 10 * (24 + 18) * 4),
    # Images of 8 values in and out and 36 weights; nine values for each pixel and channel of an image, twice.
    ("conv2d", 1, "float32", {"channels": 2, "side": 2}, (8 + 8 + 36 + 2 * 72) * 4),
    # The patches of 16 images at a time.
    ("conv2d", 20, "float32", {"channels": 2, "side": 2}, (160 + 160 + 36 + 2 * 16 * 72) * 4),
    # Convolutions 3 -> 2, 2 -> 2, 2 -> 4, 4 -> 4 of nine weights (306), norms of two for each channel (24), a head of 4 x 10 and 10:
    # 380, four times; 2 images of 48 values with an int64; outputs of 32, 32, 16, 16 values kept for convolution and norm, 2.5 times.
    ("cnn_training_step", 2, "float32", {"side": 4, "width": 2}, 4 * 380 * 4 + 2 * (48 * 4 + 8) + 2.5 * 2 * 192 * 4),
    # 2 x 1000 + 128 rows of 4 and a layer of 12 * 16 + 13 * 4 and a last norm of 8: 8764, four times; for each of 2 * 128 tokens 20 widths
    # and four rows of 1000 scores, and a quarter more.
    ("transformer_training_step", 2, "float32", {"width": 4, "layers": 1}, 4 * 8764 * 4 + 1.25 * 256 * (80 + 4000) * 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "n", "dtype", "params", "nbytes"), MEMORY)
def test_memory_by_hand(name, n, dtype, params, nbytes):
    """What is held at once, with what the operators keep or work in."""
    assert workloads.get(name)(n=n, dtype=dtype, **params).memory_bytes == pytest.approx(nbytes, rel=1e-12)


# The shapes that go into the work, and the largest whole number that may be among them.
SHAPES = {
    "matmul": (5, {}, [(5, 5), (5, 5)]),
    "linear": (5, {"features": 3}, [(5, 3), (3, 3), (3,)]),
    "attention": (5, {"batch": 2, "heads": 3, "head_width": 4}, [(2, 3, 5, 4)] * 3),
    "solve": (5, {}, [(5, 5), (5,)]),
    "add": (5, {}, [(5,), (5,)]),
    "exp": (5, {}, [(5,)]),
    "gelu": (5, {}, [(5,)]),
    "sum": (5, {}, [(5,)]),
    "softmax": (5, {"width": 3}, [(5, 3)]),
    "layer_norm": (5, {"width": 3}, [(5, 3), (3,), (3,)]),
    "fft": (5, {}, [(5, 2)]),
    "sort": (5, {}, [(5,)]),
    "embedding_gather": (5, {"vocabulary": 3, "width": 4}, [(5,), (3, 4)]),
    "conv2d": (5, {"channels": 4, "side": 6}, [(5, 4, 6, 6), (4, 4, 3, 3)]),
    "grouped_conv2d": (5, {"channels": 4, "side": 6, "groups": 2}, [(5, 4, 6, 6), (4, 2, 3, 3)]),
    "depthwise_conv2d": (5, {"channels": 4, "side": 6}, [(5, 4, 6, 6), (4, 1, 3, 3)]),
    # Colour images of ten classes; tokens of a vocabulary of 1,000, 128 in a sequence.
    "cnn_training_step": (5, {"side": 8, "width": 2}, [(5, 3, 8, 8), (5,)]),
    "transformer_training_step": (5, {"width": 8, "layers": 1}, [(5, 128), (5, 128)]),
}


@pytest.mark.parametrize("name", workloads.names())
def test_shapes_of_the_inputs(name):
    """Each input has the shape that the counts speak of."""
    n, params, shapes = SHAPES[name]
    inputs = workloads.get(name)(n=n, **params).inputs("cpu")
    assert [tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)] == shapes
    if name.endswith("training_step"):
        below = 10 if name.startswith("cnn") else 1000
        assert 0 <= int(inputs[2].min()) <= int(inputs[2].max()) < below
        assert next(reversed([*inputs[0].model.parameters()])).shape[0] == below


def test_size_of_the_values():
    """Values are standard normal, weights shrink by the square root of what is summed, scales are positive, a system is dominated."""
    a, b = workloads.get("matmul")(n=200).inputs("cpu")
    assert (float(a.std()), float(b.std())) == pytest.approx((1, 1), rel=0.02)
    assert float(workloads.get("linear")(n=1, features=100).inputs("cpu")[1].std()) == pytest.approx(0.1, rel=0.03)
    # 48 channels in 3 groups: sums of 16 * 9 products.
    assert float(workloads.get("grouped_conv2d")(n=1, channels=48, groups=3).inputs("cpu")[1].std()) == pytest.approx(1 / 12, rel=0.03)
    assert float(workloads.get("sum")(n=1000).inputs("cpu")[0].min()) >= 0
    assert float(workloads.get("layer_norm")(n=1).inputs("cpu")[1].min()) >= 0
    matrix = workloads.get("solve")(n=400, dtype="float64").inputs("cpu")[0]
    assert float(matrix.diagonal().mean()) == pytest.approx(4 * 20, rel=0.01)
    assert float(torch.linalg.cond(matrix)) == pytest.approx(2.05, abs=0.1)
