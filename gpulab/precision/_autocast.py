"""What autocast really does: which operator runs in which type, seen by a dispatch mode below it
and compared with what PyTorch's documentation says.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab import _given, devices
from gpulab.devices import Device
from gpulab.errors import InputError, shown
from gpulab.evidence import Badge, Evidence
from gpulab.precision._formats import several
from gpulab.results import Result

SOURCE = (
    "PyTorch documentation, torch.amp, Autocast Op Reference "
    "(https://docs.pytorch.org/docs/stable/amp.html), read November 2026"
)
POLICIES = ("lower", "float32", "widest", "inputs")
DTYPES = ("bfloat16", "float16")
# Policy or None, what float32 and lower inputs ran in, and why it was not seen: what ``_observe``
# gives.
Seen = tuple[str | None, str, str, str]
_FAKE = "PyTorch's own dispatcher decides, asked with fake CUDA tensors: no GPU, no kernel runs"
_FAKE_ERROR = "none known; the lists beside it are PyTorch's documented ones"
_PATIENCE_SECONDS = 120
WORDS = {
    "lower": "runs in the lower precision",
    "float32": "runs in float32",
    "widest": "runs in the widest of its inputs",
    "inputs": "left alone: the type of its inputs",
}


@dataclass(frozen=True)
class AutocastRow(Result):
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
        Why it was not observed, or "".
    """

    operator: str
    policy: str | None
    documented: str
    float32_runs_in: str = ""
    lower_runs_in: str = ""
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether the lists agree with the observation; None where nothing was observed."""
        return None if self.policy is None else self.policy == self.documented


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
        """Whether this was seen, rather than read in the documentation."""
        return any(row.policy is not None for row in self.rows)

    def row(self, operator: str) -> AutocastRow:
        """Return one operator.

        Raises
        ------
        InputError
            If it is not among these.
        """
        known = {row.operator: row for row in self.rows}
        return known[_given.word("AutocastPolicy.row", "operator", operator, known)]

    def operators(self, policy: str) -> tuple[str, ...]:
        """Return the operators of one policy: as observed, without those that could not be tried;
        as documented where none was.

        Raises
        ------
        InputError
            If there is no such policy.
        """
        wanted = _given.word("AutocastPolicy.operators", "policy", policy, POLICIES)
        seen = self.observed
        return tuple(
            row.operator for row in self.rows if (row.policy if seen else row.documented) == wanted
        )

    @property
    def disagreements(self) -> tuple[AutocastRow, ...]:
        """The operators with which the lists disagree."""
        return tuple(row for row in self.rows if row.agrees is False)

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

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a policy, and one for each operator on which the lists say something
        else.
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
                f"{WORDS[row.policy or 'inputs']}; the list: {WORDS[row.documented]}",
            )
            for row in self.disagreements
        ]
        unseen = [row.operator for row in self.rows if row.note]
        if unseen and self.observed:
            rows.append(("could not be tried here", str(len(unseen)), ", ".join(unseen)))
        return (f"autocast to {self.dtype} on {self.kind}", "operators", "which"), rows


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
        None is this machine's best. "cuda" where there is none asks PyTorch's dispatcher with fake
        tensors, in a process of its own (some seconds, once); "xpu" then gives the documented
        lists. Both are marked MODELLED.
    dtype : str, optional
        "bfloat16" or "float16"; None is the device's usual one (bfloat16 on a CPU, float16
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
    >>> [(row.operator, row.policy, row.agrees) for row in p.rows]
    [('linear', 'lower', True), ('cross_entropy', 'float32', True), ('relu', 'inputs', True)]
    """
    kind, where = _place(device)
    usual = "bfloat16" if kind == "cpu" else "float16"  # as autocast takes by itself
    chosen = _given.word("autocast_policy", "dtype", usual if dtype is None else dtype, DTYPES)
    from gpulab.precision._observe import CASES

    asked = list(CASES) if operators is None else several("autocast_policy", "operators", operators)
    unknown = [name for name in asked if not isinstance(name, str) or name not in CASES]
    if unknown:
        some = ", ".join(list(CASES)[:8])
        raise InputError(
            f"autocast_policy: operator {shown(unknown[0])} is unknown; expected PyTorch's name of "
            f"one of {len(CASES)}, such as {some}. Leave operators out for all of them."
        )
    names = tuple(str(name) for name in asked)
    if where is not None:
        seen, evidence = _on_device(names, where, chosen), Evidence.measured(where.name, samples=1)
    elif kind == "cuda" and (answered := _without_device(names, chosen)):
        seen, evidence = (
            answered,
            Evidence.modelled(_FAKE, f"{SOURCE}; PyTorch's dispatcher", _FAKE_ERROR),
        )
    else:  # where the dispatcher cannot be asked now, its lists are all there is
        seen, evidence = {}, Evidence.modelled("PyTorch follows its documentation", SOURCE)
    unseen: Seen = (None, "", "", f"no {kind} device here")
    # of CUDA's operators, transforms and linear algebra are not asked without a device
    if operators is None and seen:
        names = tuple(name for name in names if name in seen)
    rows = [_row(name, documented(kind, name), seen.get(name, unseen)) for name in names]
    if not seen and operators is None:
        rows = [_row(name, documented(kind, name), unseen) for name in every_operator(kind)]
    return AutocastPolicy(kind, chosen, tuple(rows), evidence)


def _row(name: str, listed: str, seen: Seen) -> AutocastRow:
    policy, first, second, note = seen
    return AutocastRow(name, policy, listed, first, second, note)


def _on_device(names: Sequence[str], where: Device, dtype: str) -> dict[str, Seen]:
    import torch

    from gpulab.precision._observe import observe

    low, generator = getattr(torch, dtype), torch.Generator().manual_seed(0)

    def make(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> list[Any]:
        drawn = [torch.rand(shape, generator=generator).mul_(0.5).add_(0.25) for shape in shapes]
        return [x.to(str(where)).to(dtype) for x, dtype in zip(drawn, dtypes, strict=True)]

    kept = torch.random.fork_rng(devices=[where.index or 0] if where.torch_type == "cuda" else [])
    with (
        kept,
        torch.no_grad(),
        torch.autocast(where.torch_type, dtype=low),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return {name: observe(name, make, low) for name in names}


@functools.cache
def _all_without_device(dtype: str) -> dict[str, Seen]:
    """Return what PyTorch's dispatcher decides for CUDA on this machine without one.

    Raises
    ------
    OSError, subprocess.TimeoutExpired, ValueError, IndexError
        If it cannot be asked; the cache keeps no such moment.
    """
    command = [sys.executable, "-m", "gpulab.precision._observe", dtype]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
    )
    return {
        name: (p, a, b, note)
        for name, (p, a, b, note) in json.loads(done.stdout.splitlines()[-1]).items()
    }


def _without_device(names: Sequence[str], dtype: str) -> dict[str, Seen]:
    """Return what PyTorch's dispatcher decides of these; empty where it cannot be asked now."""
    try:
        every = _all_without_device(dtype)
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return {}
    return {name: every[name] for name in names if name in every}


def _place(device: Any) -> tuple[str, Device | None]:
    """Return the kind of device and the device itself, or None where there is only a list for
    it.
    """
    if (
        isinstance(device, str)
        and device in LISTS
        and device not in {d.kind for d in devices.available()}
    ):
        return device, None
    where = devices.find(device)
    if where.kind not in LISTS and where.kind != "rocm":
        raise InputError(
            f"autocast_policy: no documented lists for {where.kind}; expected one of "
            f"{', '.join(LISTS)}. Pass device='cpu'."
        )
    return where.kind, where


# Device kind -> policy -> operators, by the documentation's own names; an operator on no list runs
# in the type of its inputs.
LISTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cuda": {
        "lower": (
            "__matmul__",
            "addbmm",
            "addmm",
            "addmv",
            "addr",
            "baddbmm",
            "bmm",
            "multi_dot",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "GRUCell",
            "linear",
            "LSTMCell",
            "matmul",
            "mm",
            "mv",
            "prelu",
            "RNNCell",
        ),
        "float32": (
            "__pow__",
            "__rdiv__",
            "__rpow__",
            "__rtruediv__",
            "acos",
            "asin",
            "binary_cross_entropy_with_logits",
            "cosh",
            "cosine_embedding_loss",
            "cdist",
            "cosine_similarity",
            "cross_entropy",
            "cumprod",
            "cumsum",
            "dist",
            "erfinv",
            "exp",
            "expm1",
            "group_norm",
            "hinge_embedding_loss",
            "kl_div",
            "l1_loss",
            "layer_norm",
            "log",
            "log_softmax",
            "log10",
            "log1p",
            "log2",
            "margin_ranking_loss",
            "mse_loss",
            "multilabel_margin_loss",
            "multi_margin_loss",
            "nll_loss",
            "norm",
            "normalize",
            "pdist",
            "poisson_nll_loss",
            "pow",
            "prod",
            "reciprocal",
            "rsqrt",
            "sinh",
            "smooth_l1_loss",
            "soft_margin_loss",
            "softmax",
            "softmin",
            "softplus",
            "sum",
            "renorm",
            "tan",
            "triplet_margin_loss",
        ),
        "widest": (
            "addcdiv",
            "addcmul",
            "atan2",
            "bilinear",
            "cross",
            "dot",
            "grid_sample",
            "index_put",
            "scatter_add",
            "tensordot",
        ),
    },
    "xpu": {
        "lower": (
            "addbmm",
            "addmm",
            "addmv",
            "addr",
            "baddbmm",
            "bmm",
            "multi_dot",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "GRUCell",
            "linear",
            "LSTMCell",
            "matmul",
            "mm",
            "mv",
            "RNNCell",
        ),
        "float32": (
            "__pow__",
            "__rdiv__",
            "__rpow__",
            "__rtruediv__",
            "binary_cross_entropy_with_logits",
            "cosine_embedding_loss",
            "cosine_similarity",
            "cumsum",
            "dist",
            "exp",
            "group_norm",
            "hinge_embedding_loss",
            "kl_div",
            "l1_loss",
            "layer_norm",
            "log",
            "log_softmax",
            "margin_ranking_loss",
            "nll_loss",
            "normalize",
            "poisson_nll_loss",
            "pow",
            "reciprocal",
            "rsqrt",
            "soft_margin_loss",
            "softmax",
            "softmin",
            "sum",
            "triplet_margin_loss",
        ),
        "widest": ("bilinear", "cross", "grid_sample", "index_put", "scatter_add", "tensordot"),
    },
    "cpu": {
        "lower": (
            "conv1d",
            "conv2d",
            "conv3d",
            "bmm",
            "mm",
            "linalg_vecdot",
            "baddbmm",
            "addmm",
            "addbmm",
            "linear",
            "matmul",
            "_convolution",
            "conv_tbc",
            "mkldnn_rnn_layer",
            "conv_transpose1d",
            "conv_transpose2d",
            "conv_transpose3d",
            "prelu",
            "scaled_dot_product_attention",
            "_native_multi_head_attention",
        ),
        "float32": (
            "avg_pool3d",
            "binary_cross_entropy",
            "grid_sampler",
            "grid_sampler_2d",
            "_grid_sampler_2d_cpu_fallback",
            "grid_sampler_3d",
            "polar",
            "prod",
            "quantile",
            "nanquantile",
            "stft",
            "cdist",
            "trace",
            "view_as_complex",
            "cholesky_inverse",
            "cholesky_solve",
            "inverse",
            "lu_solve",
            "orgqr",
            "ormqr",
            "pinverse",
            "max_pool3d",
            "max_unpool2d",
            "max_unpool3d",
            "adaptive_avg_pool3d",
            "reflection_pad1d",
            "reflection_pad2d",
            "replication_pad1d",
            "replication_pad2d",
            "replication_pad3d",
            "mse_loss",
            "cosine_embedding_loss",
            "nll_loss",
            "nll_loss2d",
            "hinge_embedding_loss",
            "poisson_nll_loss",
            "cross_entropy_loss",
            "l1_loss",
            "huber_loss",
            "margin_ranking_loss",
            "soft_margin_loss",
            "triplet_margin_loss",
            "multi_margin_loss",
            "ctc_loss",
            "kl_div",
            "multilabel_margin_loss",
            "binary_cross_entropy_with_logits",
            "fft_fft",
            "fft_ifft",
            "fft_fft2",
            "fft_ifft2",
            "fft_fftn",
            "fft_ifftn",
            "fft_rfft",
            "fft_irfft",
            "fft_rfft2",
            "fft_irfft2",
            "fft_rfftn",
            "fft_irfftn",
            "fft_hfft",
            "fft_ihfft",
            "linalg_cond",
            "linalg_matrix_rank",
            "linalg_solve",
            "linalg_cholesky",
            "linalg_svdvals",
            "linalg_eigvals",
            "linalg_eigvalsh",
            "linalg_inv",
            "linalg_householder_product",
            "linalg_tensorinv",
            "linalg_tensorsolve",
            "fake_quantize_per_tensor_affine",
            "geqrf",
            "_lu_with_info",
            "qr",
            "svd",
            "triangular_solve",
            "fractional_max_pool2d",
            "fractional_max_pool3d",
            "adaptive_max_pool3d",
            "multilabel_margin_loss_forward",
            "linalg_qr",
            "linalg_cholesky_ex",
            "linalg_svd",
            "linalg_eig",
            "linalg_eigh",
            "linalg_lstsq",
            "linalg_inv_ex",
        ),
        "widest": ("cat", "stack", "index_copy"),
    },
}
# Names under which the lists speak of one operator.
SAME = {
    "cross_entropy": "cross_entropy_loss",
    "grid_sample": "grid_sampler",
    "svd": "linalg_svd",
    "qr": "linalg_qr",
    "inverse": "linalg_inv",
    "pinverse": "linalg_pinv",
}


def documented(kind: str, operator: str) -> str:
    """Return the policy that the documentation states for an operator on a kind of device; "inputs"
    where it is on no list.
    """
    lists = LISTS["cuda" if kind == "rocm" else kind]
    names = {operator, SAME.get(operator, operator)}
    return next((policy for policy, listed in lists.items() if names & set(listed)), "inputs")


def every_operator(kind: str) -> tuple[str, ...]:
    """Return all operators on a device's lists."""
    return tuple(
        name for listed in LISTS["cuda" if kind == "rocm" else kind].values() for name in listed
    )
