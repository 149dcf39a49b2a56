"""Run one operator under autocast with three kinds of inputs, and infer its policy.

Run as ``python -m gpulab.precision._observe float16``, it tries every operator on fake CUDA tensors
and prints what it saw as JSON: PyTorch's own dispatcher decides, and no GPU is needed. That happens
in a process of its own, since a build without CUDA can abort there. Imported only inside functions:
it needs torch.

``CASES`` says how to call each operator: a function and the shapes of the numbers that it takes.
What is not a number of the network (targets, masks, and the weights and statistics of
normalizations, which stay float32 in a model under autocast) is made inside.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpulab.errors import message_of

Maker = Callable[[Sequence[tuple[int, ...]], Sequence[torch.dtype]], list[torch.Tensor]]
# What was seen of one operator: policy or None, what float32 and lower inputs ran in, and why it
# was not seen.
Seen = tuple[str | None, str, str, str]
Kernel = tuple[str, list[str], list[str]]  # name, types given, types it gave
# Which kernel this takes depends on the GPU at hand.
_NEEDS_A_GPU = {"scaled_dot_product_attention": "which kernel it takes depends on the GPU"}


def observe(name: str, make: Maker, low: torch.dtype) -> Seen:
    """Return the policy of one operator; autocast is on already."""
    function, shapes = CASES[name]

    def run(*dtypes: torch.dtype) -> list[Kernel]:
        inputs = make(shapes, dtypes)
        with KernelTypes() as seen:
            function(*inputs)
        return [(name, given, gave) for name, given, gave in seen.kernels]

    try:
        high, lower = run(*[torch.float32] * len(shapes)), run(*[low] * len(shapes))
    except Exception as error:
        # an operator that this device or this release cannot run: said in its row
        return None, "", "", f"{type(error).__name__}: {message_of(error)}"
    if not (high and lower):
        return None, "", "", "no kernel that takes floating-point numbers was seen"
    mixed: list[Kernel] = []
    if len(shapes) > 1:
        # Many operators that autocast leaves alone refuse inputs of two types: then nobody made
        # them equal.
        with contextlib.suppress(RuntimeError):
            mixed = run(low, *[torch.float32] * (len(shapes) - 1))
    first = next((t for t in map(_runs_in, high) if t != "float32"), "float32")
    second = "float32" if "float32" in map(_runs_in, lower) else _runs_in(lower[0])
    if first != "float32":
        policy = "lower"
    elif second == "float32":
        policy = "float32"
    else:
        policy = "widest" if mixed and set(mixed[0][1]) == {"float32"} else "inputs"
    return policy, first, second, ""


def _runs_in(kernel: Kernel) -> str:
    """Return the type that a kernel computes in: the wider of its first input and first output, for
    a softmax may take one and give two.
    """
    _, given, gave = kernel
    types = [given[0], *gave[:1]]
    return "float32" if "float32" in types else types[0]


def _fake(low: torch.dtype) -> dict[str, Seen]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    # torch.autocast("cuda") switches itself off without a GPU; the switches below it do not.
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", low)

    def make(
        shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]
    ) -> list[torch.Tensor]:
        return [
            torch.empty(shape, dtype=dtype, device="cuda")
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]

    # Without gradients: with them, a build without CUDA aborts the process.
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        asked = [
            name
            for name in CASES
            if not name.startswith(("fft_", "linalg_")) or name == "linalg_vecdot"
        ]
        return {
            name: (None, "", "", _NEEDS_A_GPU[name])
            if name in _NEEDS_A_GPU
            else observe(name, make, low)
            for name in asked
        }


# Operators that compute nothing: storage and views.
_IDLE = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "detach",
        "_unsafe_view",
        "ones",
        "zeros",
        "lift_fresh",
        "arange",
    }
)
CASTS = frozenset({"_to_copy"})


class KernelTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep for each operator its name and the floating types that it was given and gave; below
    autocast, so casts are seen too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.every: list[tuple[str, list[str], list[str]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note its types."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, gave = _types((args, kwargs)), _types(result)
        idle = (
            func.namespace == "prim"
            or func.is_view
            or name in _IDLE
            or (name in CASTS and given == gave)
        )
        if given and not idle:
            self.every.append((name, given, gave))
        return result

    @property
    def kernels(self) -> list[tuple[str, list[str], list[str]]]:
        """Without the casts."""
        return [each for each in self.every if each[0] not in CASTS]


def _types(tree: Any) -> list[str]:
    """Return the types of the numbers in a tree; a complex one by that of its parts."""
    tensors = [
        x
        for x in tree_leaves(tree)
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    ]
    return [str(x.dtype.to_real()).removeprefix("torch.") for x in tensors]


Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
_SQUARE = (4, 4)
_BATCH = (3, 4, 4)
_IMAGES, _VOLUMES = (2, 3, 8, 8), (2, 3, 6, 6, 6)


def _classes(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[0], device=x.device) % x.shape[1]


def _ones(x: torch.Tensor, count: int) -> torch.Tensor:
    return torch.ones(count, device=x.device)


def _signs(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(x.shape[0], device=x.device) % 2 == 0, 1.0, -1.0)


CASES: Mapping[str, Case] = {
    # Products.
    "matmul": (torch.matmul, (_SQUARE, _SQUARE)),
    "mm": (torch.mm, (_SQUARE, _SQUARE)),
    "bmm": (torch.bmm, (_BATCH, _BATCH)),
    "mv": (torch.mv, (_SQUARE, (4,))),
    "linear": (functional.linear, (_SQUARE, _SQUARE, (4,))),
    "addmm": (torch.addmm, (_SQUARE, _SQUARE, _SQUARE)),
    "addmv": (torch.addmv, ((4,), _SQUARE, (4,))),
    "addr": (torch.addr, (_SQUARE, (4,), (4,))),
    "addbmm": (torch.addbmm, (_SQUARE, _BATCH, _BATCH)),
    "baddbmm": (torch.baddbmm, (_BATCH, _BATCH, _BATCH)),
    "multi_dot": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), (_SQUARE, _SQUARE, _SQUARE)),
    "conv1d": (functional.conv1d, ((2, 3, 8), (4, 3, 3))),
    "conv2d": (functional.conv2d, (_IMAGES, (4, 3, 3, 3))),
    "conv3d": (functional.conv3d, (_VOLUMES, (4, 3, 3, 3, 3))),
    "conv_transpose1d": (functional.conv_transpose1d, ((2, 3, 8), (3, 4, 3))),
    "conv_transpose2d": (functional.conv_transpose2d, (_IMAGES, (3, 4, 3, 3))),
    "conv_transpose3d": (functional.conv_transpose3d, (_VOLUMES, (3, 4, 3, 3, 3))),
    "conv_tbc": (torch.conv_tbc, ((8, 2, 3), (3, 3, 4), (4,))),
    "linalg_vecdot": (torch.linalg.vecdot, (_SQUARE, _SQUARE)),
    "prelu": (functional.prelu, (_SQUARE, (1,))),
    "scaled_dot_product_attention": (
        functional.scaled_dot_product_attention,
        ((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)),
    ),
    "dot": (torch.dot, ((4,), (4,))),
    "bilinear": (functional.bilinear, (_SQUARE, _SQUARE, (3, 4, 4))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), (_SQUARE, _SQUARE)),
    # What networks do between products.
    "relu": (functional.relu, (_SQUARE,)),
    "gelu": (functional.gelu, (_SQUARE,)),
    "silu": (functional.silu, (_SQUARE,)),
    "sigmoid": (torch.sigmoid, (_SQUARE,)),
    "tanh": (torch.tanh, (_SQUARE,)),
    "softplus": (functional.softplus, (_SQUARE,)),
    "softmax": (lambda x: functional.softmax(x, -1), (_SQUARE,)),
    "log_softmax": (lambda x: functional.log_softmax(x, -1), (_SQUARE,)),
    "softmin": (lambda x: functional.softmin(x, -1), (_SQUARE,)),
    "layer_norm": (lambda x: functional.layer_norm(x, (4,), _ones(x, 4), _ones(x, 4)), (_SQUARE,)),
    "group_norm": (lambda x: functional.group_norm(x, 3, _ones(x, 3), _ones(x, 3)), (_IMAGES,)),
    "batch_norm": (
        lambda x: functional.batch_norm(
            x, _ones(x, 3), _ones(x, 3), _ones(x, 3), _ones(x, 3), True
        ),
        (_IMAGES,),
    ),
    "dropout": (lambda x: functional.dropout(x, 0.5, True), (_SQUARE,)),
    "embedding": (lambda w: functional.embedding(torch.arange(3, device=w.device), w), (_SQUARE,)),
    "add": (torch.add, (_SQUARE, _SQUARE)),
    "mul": (torch.mul, (_SQUARE, _SQUARE)),
    "div": (torch.div, (_SQUARE, _SQUARE)),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), (_IMAGES,)),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2), (_IMAGES,)),
    "adaptive_avg_pool2d": (lambda x: functional.adaptive_avg_pool2d(x, 1), (_IMAGES,)),
    "max_pool3d": (lambda x: functional.max_pool3d(x, 2), (_VOLUMES,)),
    "avg_pool3d": (lambda x: functional.avg_pool3d(x, 2), (_VOLUMES,)),
    "adaptive_avg_pool3d": (lambda x: functional.adaptive_avg_pool3d(x, 2), (_VOLUMES,)),
    "adaptive_max_pool3d": (lambda x: functional.adaptive_max_pool3d(x, 2), (_VOLUMES,)),
    "reflection_pad2d": (lambda x: functional.pad(x, (1, 1, 1, 1), "reflect"), (_IMAGES,)),
    "replication_pad2d": (lambda x: functional.pad(x, (1, 1, 1, 1), "replicate"), (_IMAGES,)),
    "grid_sample": (
        lambda x, g: functional.grid_sample(x, g, align_corners=False),
        (_IMAGES, (2, 4, 4, 2)),
    ),
    # Elementwise functions and reductions.
    "exp": (torch.exp, (_SQUARE,)),
    "expm1": (torch.expm1, (_SQUARE,)),
    "log": (torch.log, (_SQUARE,)),
    "log10": (torch.log10, (_SQUARE,)),
    "log1p": (torch.log1p, (_SQUARE,)),
    "log2": (torch.log2, (_SQUARE,)),
    "pow": (lambda x: torch.pow(x, 3), (_SQUARE,)),
    "reciprocal": (torch.reciprocal, (_SQUARE,)),
    "rsqrt": (torch.rsqrt, (_SQUARE,)),
    "sqrt": (torch.sqrt, (_SQUARE,)),
    "acos": (torch.acos, (_SQUARE,)),
    "asin": (torch.asin, (_SQUARE,)),
    "cosh": (torch.cosh, (_SQUARE,)),
    "sinh": (torch.sinh, (_SQUARE,)),
    "tan": (torch.tan, (_SQUARE,)),
    "erfinv": (torch.erfinv, (_SQUARE,)),
    "sum": (lambda x: x.sum(-1), (_SQUARE,)),
    "mean": (lambda x: x.mean(-1), (_SQUARE,)),
    "prod": (lambda x: x.prod(-1), (_SQUARE,)),
    "cumsum": (lambda x: x.cumsum(-1), (_SQUARE,)),
    "cumprod": (lambda x: x.cumprod(-1), (_SQUARE,)),
    "norm": (torch.norm, (_SQUARE,)),
    "normalize": (functional.normalize, (_SQUARE,)),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), (_SQUARE,)),
    "dist": (torch.dist, (_SQUARE, _SQUARE)),
    "cdist": (torch.cdist, (_SQUARE, _SQUARE)),
    "pdist": (functional.pdist, (_SQUARE,)),
    "cosine_similarity": (functional.cosine_similarity, (_SQUARE, _SQUARE)),
    "trace": (torch.trace, (_SQUARE,)),
    "quantile": (lambda x: torch.quantile(x, 0.5), (_SQUARE,)),
    "nanquantile": (lambda x: torch.nanquantile(x, 0.5), (_SQUARE,)),
    # Losses.
    "cross_entropy": (lambda x: functional.cross_entropy(x, _classes(x)), (_SQUARE,)),
    "nll_loss": (lambda x: functional.nll_loss(x, _classes(x)), (_SQUARE,)),
    "mse_loss": (functional.mse_loss, (_SQUARE, _SQUARE)),
    "l1_loss": (functional.l1_loss, (_SQUARE, _SQUARE)),
    "smooth_l1_loss": (functional.smooth_l1_loss, (_SQUARE, _SQUARE)),
    "huber_loss": (functional.huber_loss, (_SQUARE, _SQUARE)),
    "kl_div": (lambda a, b: functional.kl_div(a, b, reduction="batchmean"), (_SQUARE, _SQUARE)),
    "poisson_nll_loss": (functional.poisson_nll_loss, (_SQUARE, _SQUARE)),
    "binary_cross_entropy_with_logits": (
        functional.binary_cross_entropy_with_logits,
        (_SQUARE, _SQUARE),
    ),
    "soft_margin_loss": (functional.soft_margin_loss, (_SQUARE, _SQUARE)),
    "hinge_embedding_loss": (functional.hinge_embedding_loss, (_SQUARE, _SQUARE)),
    "multi_margin_loss": (lambda x: functional.multi_margin_loss(x, _classes(x)), (_SQUARE,)),
    "multilabel_margin_loss": (
        lambda x: functional.multilabel_margin_loss(x, _classes(x).expand(4, 4).contiguous()),
        (_SQUARE,),
    ),
    "margin_ranking_loss": (
        lambda a, b: functional.margin_ranking_loss(a, b, _signs(a)),
        ((4,), (4,)),
    ),
    "cosine_embedding_loss": (
        lambda a, b: functional.cosine_embedding_loss(a, b, _signs(a)),
        (_SQUARE, _SQUARE),
    ),
    "triplet_margin_loss": (functional.triplet_margin_loss, (_SQUARE, _SQUARE, _SQUARE)),
    # Several inputs that must agree.
    "cat": (lambda a, b: torch.cat([a, b]), (_SQUARE, _SQUARE)),
    "stack": (lambda a, b: torch.stack([a, b]), (_SQUARE, _SQUARE)),
    "index_copy": (
        lambda a, b: a.index_copy(0, torch.tensor([0], device=a.device), b),
        (_SQUARE, (1, 4)),
    ),
    "addcmul": (torch.addcmul, (_SQUARE, _SQUARE, _SQUARE)),
    "addcdiv": (torch.addcdiv, (_SQUARE, _SQUARE, _SQUARE)),
    "atan2": (torch.atan2, (_SQUARE, _SQUARE)),
    "cross": (lambda a, b: torch.cross(a, b, dim=1), ((4, 3), (4, 3))),
    "index_put": (
        lambda a, b: a.index_put((torch.tensor([0], device=a.device),), b),
        (_SQUARE, (1, 4)),
    ),
    "scatter_add": (
        lambda a, b: a.scatter_add(0, torch.zeros(1, 4, dtype=torch.int64, device=a.device), b),
        (_SQUARE, (1, 4)),
    ),
    # Transforms and linear algebra, which have no narrow kernels.
    "fft_fft": (torch.fft.fft, (_SQUARE,)),
    "fft_rfft": (torch.fft.rfft, (_SQUARE,)),
    "fft_fft2": (torch.fft.fft2, (_SQUARE,)),
    "linalg_inv": (torch.linalg.inv, (_SQUARE,)),
    "linalg_solve": (torch.linalg.solve, (_SQUARE, _SQUARE)),
    "linalg_svd": (torch.linalg.svd, (_SQUARE,)),
    "linalg_qr": (torch.linalg.qr, (_SQUARE,)),
    "linalg_eigh": (torch.linalg.eigh, (_SQUARE,)),
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(_fake(getattr(torch, sys.argv[1]))))
