"""FLOPs and bytes against numbers derived by hand, and against PyTorch's own counter where it counts."""

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpulab import workloads

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
