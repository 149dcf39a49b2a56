"""How to call each operator that autocast's policy is tried on: a function and the shapes of the
numbers that it takes.

Imported only inside functions: the table names torch's functions. What is not a number of the
network (targets, masks, and the weights and statistics of normalizations, which stay float32 in a
model under autocast) is made inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

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
