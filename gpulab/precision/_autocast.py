"""Autocast's policy: which operator runs in which type, as observed by a dispatch mode below
autocast, and compared with PyTorch's documentation.

Run as ``python -m gpulab.precision._autocast float16``, the module tries every operator on fake
CUDA tensors and prints its observations as JSON: PyTorch's own dispatcher decides, and no GPU is
needed. This runs in a process of its own, since a build of PyTorch without CUDA can abort the
process.

``CASES`` says how to call each operator: a function and the shapes of the numbers that it takes.
The function makes the other arguments itself: targets, masks, and the weights and statistics of
normalizations, which stay float32 in a model under autocast.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpulab import _validate, devices
from gpulab.errors import InputError, message_of, shown
from gpulab.evidence import Badge, Evidence
from gpulab.results import Result, Table

SOURCE = (
    "PyTorch documentation, torch.amp, Autocast Op Reference "
    "(https://docs.pytorch.org/docs/stable/amp.html), read November 2026"
)
POLICIES = ("lower", "float32", "widest", "inputs")
# The observation of one operator: its policy or None, the types in which it ran for float32 and for
# lower inputs, and why it was not observed.
Seen = tuple[str | None, str, str, str]
_PATIENCE_SECONDS = 120
WORDS = {
    "lower": "runs in the lower precision",
    "float32": "runs in float32",
    "widest": "runs in the widest type of its inputs",
    "inputs": "left alone: runs in the type of its inputs",
}


class AutocastRow(NamedTuple):
    """One operator under autocast.

    Attributes
    ----------
    operator : str
    policy : str or None
        Observed: "lower", "float32", "widest" or "inputs". None where it was not observed.
    documented : str
        The policy of PyTorch's lists.
    float32_runs_in, lower_runs_in : str
        The type that the operator computes in when its inputs are float32, and when they are of the
        lower precision; "" if not observed.
    note : str
        Why the operator was not observed, or "".
    """

    operator: str
    policy: str | None
    documented: str
    float32_runs_in: str = ""
    lower_runs_in: str = ""
    note: str = ""


@dataclass(frozen=True)
class AutocastPolicy(Result):
    """What autocast does with operators on a device, compared with PyTorch's documented lists.

    Attributes
    ----------
    kind : str
        Of the device, such as "cpu".
    dtype : str
        The lower precision.
    rows : tuple of AutocastRow
    evidence : Evidence
        MEASURED where the operators ran here; MODELLED where PyTorch's dispatcher was asked without
        a device, or only its documented lists can be shown.
    """

    kind: str
    dtype: str
    rows: tuple[AutocastRow, ...]
    evidence: Evidence

    @property
    def observed(self) -> bool:
        """Whether the policies were observed, rather than taken from the documentation."""
        return any(row.policy is not None for row in self.rows)

    def row(self, operator: str) -> AutocastRow:
        """Return one operator.

        Raises
        ------
        InputError
            If the operator is not among the rows.
        """
        known = {row.operator: row for row in self.rows}
        return known[_validate.word("AutocastPolicy.row", "operator", operator, known)]

    def operators(self, policy: str) -> tuple[str, ...]:
        """Return the operators of one policy. If any operator was observed, this is the observed
        policy, and operators that could not be tried are left out; otherwise it is the documented
        one.

        Raises
        ------
        InputError
            If there is no such policy.
        """
        wanted = _validate.word("AutocastPolicy.operators", "policy", policy, POLICIES)
        seen = self.observed
        return tuple(
            row.operator for row in self.rows if (row.policy if seen else row.documented) == wanted
        )

    def __repr__(self) -> str:
        how = (
            "as documented"
            if not self.observed
            else "observed"
            if self.evidence.badge is Badge.MEASURED
            else "as PyTorch dispatches"
        )
        counts = ", ".join(f"{len(self.operators(p))} {p}" for p in POLICIES)
        return f"<autocast to {self.dtype} on {self.kind}, {how}: {counts}>"

    def table(self) -> Table:
        """Return one row per policy, and one for each operator whose observed policy differs from
        the documented one, where PyTorch documents the kind of device.
        """
        rows = [
            (WORDS[policy], str(len(names)), ", ".join(names))
            for policy in POLICIES
            if (names := self.operators(policy))
        ]
        rows += [
            (
                f"not as documented: {row.operator}",
                "",
                f"{WORDS[row.policy]}; documented: {WORDS[row.documented]}",
            )
            for row in self.rows
            # PyTorch documents no lists for a device such as Apple's GPUs
            if _lists(self.kind) and row.policy is not None and row.policy != row.documented
        ]
        return (f"autocast to {self.dtype} on {self.kind}", "count", "operators"), rows


def autocast_policy(
    device: Any = None, dtype: str | None = None, operators: Iterable[str] | None = None
) -> AutocastPolicy:
    """Return what autocast does with about a hundred operators, as observed on the device and as
    PyTorch documents it.

    Each operator runs with float32 inputs, with inputs of the lower precision, and with both mixed.
    A dispatch mode below autocast sees which type the kernel is given.

    Parameters
    ----------
    device : str or Device, optional
        None takes this machine's best. On a machine without such a device, "cuda" asks PyTorch's
        dispatcher with fake tensors, in a process of its own (some seconds, once), and "xpu" gives
        the documented lists. Both are marked MODELLED.
    dtype : str, optional
        "bfloat16" or "float16"; None takes the device's usual one (bfloat16 on a CPU, float16
        elsewhere).
    operators : iterable of str, optional
        The operators to try; all of them by default.

    Returns
    -------
    AutocastPolicy

    Raises
    ------
    InputError
        If the dtype or an operator is not one of these.
    DeviceError
        If there is no such device, and no documented list for it either.

    Examples
    --------
    >>> p = autocast_policy("cpu", "bfloat16", ["linear", "cross_entropy", "relu"])
    >>> [(row.operator, row.policy) for row in p.rows]
    [('linear', 'lower'), ('cross_entropy', 'float32'), ('relu', 'inputs')]
    """
    kind, where = _place(device)
    usual = "bfloat16" if kind == "cpu" else "float16"  # autocast's own defaults
    wanted = usual if dtype is None else dtype
    chosen = _validate.word("autocast_policy", "dtype", wanted, ("bfloat16", "float16"))
    asked = (
        list(CASES)
        if operators is None
        else _validate.items("autocast_policy", "operators", operators)
    )
    unknown = [name for name in asked if not isinstance(name, str) or name not in CASES]
    if unknown:
        some = ", ".join(list(CASES)[:8])
        raise InputError(
            f"autocast_policy: operator {shown(unknown[0])} is unknown; expected one of "
            f"{len(CASES)} operators by PyTorch's name, such as {some}. Leave operators out for "
            "all of them."
        )
    names = tuple(str(name) for name in asked)
    if where is not None:
        seen, evidence = _on_device(names, where, chosen), Evidence.measured(where.name, samples=1)
    elif kind == "cuda" and (answered := _without_device(names, chosen)):
        seen, evidence = (
            answered,
            Evidence.modelled(
                "PyTorch's dispatcher chooses the same types for fake CUDA tensors as for tensors "
                "on a GPU; no kernel runs",
                f"{SOURCE}; PyTorch's dispatcher",
                "none known; the lists beside it are PyTorch's documented ones",
            ),
        )
    else:  # if the dispatcher cannot be asked, only the documented lists are available
        seen, evidence = {}, Evidence.modelled("PyTorch follows its documentation", SOURCE)
    unseen: Seen = (None, "", "", f"no {kind} device here")
    # without a CUDA device, transforms and linear algebra are not observed, and left out
    if operators is None and seen:
        names = tuple(name for name in names if name in seen)
    elif operators is None:
        names = tuple(name for listed in _lists(kind).values() for name in listed)
    rows = tuple(
        AutocastRow(name, policy, documented(kind, name), *rest)
        for name in names
        for policy, *rest in (seen.get(name, unseen),)
    )
    return AutocastPolicy(kind, chosen, rows, evidence)


def _on_device(names: Sequence[str], where: devices.Device, dtype: str) -> dict[str, Seen]:
    low = getattr(torch, dtype)

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.rand(shape, device="cpu").to(str(where), dtype)

    kept = torch.random.fork_rng(devices=[where.index or 0] if where.torch_type == "cuda" else [])
    with (
        kept,
        torch.inference_mode(False),  # in inference mode operators made of others arrive whole
        torch.no_grad(),
        torch.autocast(where.torch_type, dtype=low),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return {name: observe(name, make, low) for name in names}


@functools.cache
def _all_without_device(dtype: str) -> dict[str, Seen]:
    """Return the decisions of PyTorch's dispatcher for CUDA, on this machine without a CUDA device.

    Raises
    ------
    OSError, subprocess.TimeoutExpired, ValueError, IndexError
        If the dispatcher cannot be asked; the cache does not keep such a failure.
    """
    # -P, since a module beside the notebook may have the name of a standard one; the path is this
    # process's own, since gpulab may be importable only through it
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gpulab.precision._autocast", dtype],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if isinstance(p, str) and p)},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    seen: dict[str, Seen] = json.loads(done.stdout.splitlines()[-1])
    return seen


def _without_device(names: Sequence[str], dtype: str) -> dict[str, Seen]:
    """Return the dispatcher's decisions for these operators; empty where it cannot be asked."""
    try:
        every = _all_without_device(dtype)
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return {}
    return {name: every[name] for name in names if name in every}


def _place(device: Any) -> tuple[str, devices.Device | None]:
    """Return the kind of device and the device itself, or None where only a documented list is
    available.
    """
    if (
        isinstance(device, str)
        and device in LISTS
        and device not in {d.kind for d in devices.available()}
    ):
        return device, None
    where = devices.find(device)
    return where.kind, where


# Device kind -> policy -> operators, as one text, by the documentation's own names; an operator on
# no list runs in the type of its inputs.
LISTS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "lower": "__matmul__ addbmm addmm addmv addr baddbmm bmm multi_dot conv1d conv2d "
        "conv3d conv_transpose1d conv_transpose2d conv_transpose3d GRUCell linear "
        "LSTMCell matmul mm mv prelu RNNCell",
        "float32": "__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin "
        "binary_cross_entropy_with_logits cosh cosine_embedding_loss cdist "
        "cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 "
        "group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log_softmax "
        "log10 log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss "
        "multi_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod "
        "reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin "
        "softplus sum renorm tan triplet_margin_loss",
        "widest": "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add "
        "tensordot",
    },
    "xpu": {
        "lower": "addbmm addmm addmv addr baddbmm bmm multi_dot conv1d conv2d conv3d "
        "conv_transpose1d conv_transpose2d conv_transpose3d GRUCell linear LSTMCell "
        "matmul mm mv RNNCell",
        "float32": "__pow__ __rdiv__ __rpow__ __rtruediv__ binary_cross_entropy_with_logits "
        "cosine_embedding_loss cosine_similarity cumsum dist exp group_norm "
        "hinge_embedding_loss kl_div l1_loss layer_norm log log_softmax "
        "margin_ranking_loss nll_loss normalize poisson_nll_loss pow reciprocal rsqrt "
        "soft_margin_loss softmax softmin sum triplet_margin_loss",
        "widest": "bilinear cross grid_sample index_put scatter_add tensordot",
    },
    "cpu": {
        "lower": "conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm addbmm linear matmul "
        "_convolution conv_tbc mkldnn_rnn_layer conv_transpose1d conv_transpose2d "
        "conv_transpose3d prelu scaled_dot_product_attention "
        "_native_multi_head_attention",
        "float32": "avg_pool3d binary_cross_entropy grid_sampler grid_sampler_2d "
        "_grid_sampler_2d_cpu_fallback grid_sampler_3d polar prod quantile "
        "nanquantile stft cdist trace view_as_complex cholesky_inverse cholesky_solve "
        "inverse lu_solve orgqr ormqr pinverse max_pool3d max_unpool2d max_unpool3d "
        "adaptive_avg_pool3d reflection_pad1d reflection_pad2d replication_pad1d "
        "replication_pad2d replication_pad3d mse_loss cosine_embedding_loss nll_loss "
        "nll_loss2d hinge_embedding_loss poisson_nll_loss cross_entropy_loss l1_loss "
        "huber_loss margin_ranking_loss soft_margin_loss triplet_margin_loss "
        "multi_margin_loss ctc_loss kl_div multilabel_margin_loss "
        "binary_cross_entropy_with_logits fft_fft fft_ifft fft_fft2 fft_ifft2 "
        "fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn "
        "fft_irfftn fft_hfft fft_ihfft linalg_cond linalg_matrix_rank linalg_solve "
        "linalg_cholesky linalg_svdvals linalg_eigvals linalg_eigvalsh linalg_inv "
        "linalg_householder_product linalg_tensorinv linalg_tensorsolve "
        "fake_quantize_per_tensor_affine geqrf _lu_with_info qr svd triangular_solve "
        "fractional_max_pool2d fractional_max_pool3d adaptive_max_pool3d "
        "multilabel_margin_loss_forward linalg_qr linalg_cholesky_ex linalg_svd "
        "linalg_eig linalg_eigh linalg_lstsq linalg_inv_ex",
        "widest": "cat stack index_copy",
    },
}
# Operators that the lists have under another name.
SAME = {
    "cross_entropy": "cross_entropy_loss",
    "grid_sample": "grid_sampler",
    "svd": "linalg_svd",
    "qr": "linalg_qr",
    "inverse": "linalg_inv",
    "pinverse": "linalg_pinv",
}


def _lists(kind: str) -> dict[str, list[str]]:
    """Return policy -> operators as documented for a kind of device; empty for one such as Apple's
    GPUs, which the documentation leaves out.
    """
    listed = LISTS.get("cuda" if kind == "rocm" else kind, {})
    return {policy: names.split() for policy, names in listed.items()}


def documented(kind: str, operator: str) -> str:
    """Return the policy that the documentation states for an operator on a kind of device; "inputs"
    where it is on no list.
    """
    names = {operator, SAME.get(operator, operator)}
    return next(
        (policy for policy, listed in _lists(kind).items() if names & set(listed)), "inputs"
    )


Kernel = tuple[list[str], list[str]]  # input types, output types
# Operators whose kernel depends on the GPU, and the note that says so.
_NEEDS_A_GPU = {"scaled_dot_product_attention": "which kernel it takes depends on the GPU"}


def observe(
    name: str, make: Callable[[tuple[int, ...], torch.dtype], torch.Tensor], low: torch.dtype
) -> Seen:
    """Return the policy of one operator, with inputs made by ``make``; autocast must be on."""
    function, shapes = CASES[name]

    def run(*dtypes: torch.dtype) -> list[Kernel]:
        inputs = list(map(make, shapes, dtypes))
        seen = KernelTypes()
        with seen:
            function(*inputs)
        return seen.kernels

    try:
        high, lower = run(*[torch.float32] * len(shapes)), run(*[low] * len(shapes))
    except Exception as error:
        # an operator that this device or this release cannot run: its row says why
        return None, "", "", f"{type(error).__name__}: {message_of(error)}"
    if not (high and lower):
        return None, "", "", "no kernel that takes floating-point numbers was seen"
    mixed: list[Kernel] = []
    if len(shapes) > 1:
        # Many operators that autocast leaves alone refuse inputs of two types: then autocast did
        # not convert them to one.
        with contextlib.suppress(RuntimeError):
            mixed = run(low, *[torch.float32] * (len(shapes) - 1))
    # a float32 operator may compute in float64 inside, as quantile does since PyTorch 2.15
    first = next((t for t in map(_runs_in, high) if t not in ("float32", "float64")), "float32")
    second = "float32" if "float32" in map(_runs_in, lower) else _runs_in(lower[0])
    if first != "float32":
        policy = "lower"
    elif second == "float32":
        policy = "float32"
    else:
        policy = "widest" if mixed and set(mixed[0][0]) == {"float32"} else "inputs"
    return policy, first, second, ""


def _runs_in(kernel: Kernel) -> str:
    """Return the type in which a kernel computes: the wider of the types of its first input and
    first output, since a softmax may read a narrow type and return a wide one.
    """
    given, gave = kernel
    types = [given[0], *gave[:1]]
    return "float32" if "float32" in types else types[0]


def _fake(low: torch.dtype) -> dict[str, Seen]:
    # torch.autocast("cuda") switches itself off without a GPU; these two settings do not.
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", low)

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

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


# Operators that compute nothing: storage, views and casts.
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
        "_to_copy",
    }
)


class KernelTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keep the floating-point types of the inputs and outputs of each operator that computes. The
    mode works below autocast, so it sees the types after autocast's casts.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note its types."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, gave = _types((args, kwargs)), _types(result)
        if given and not (func.namespace == "prim" or func.is_view or name in _IDLE):
            self.kernels.append((given, gave))
        return result


def _types(tree: Any) -> list[str]:
    """Return the floating-point types of the tensors in a tree; for a complex tensor, the type of
    its parts.
    """
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
    return torch.ones(count, dtype=torch.float32, device=x.device)


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
    # Operators that networks use between products.
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
        lambda a, b: functional.margin_ranking_loss(a, b, _ones(a, 4)),
        ((4,), (4,)),
    ),
    "cosine_embedding_loss": (
        lambda a, b: functional.cosine_embedding_loss(a, b, _ones(a, 4)),
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
