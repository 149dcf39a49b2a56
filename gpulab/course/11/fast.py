"""11.6: back to the fast kernel."""

# %% exercise
id = "11.6"
title = "back to the fast kernel"
answer_name = "fast"
loads = ["torch", "torch.nn.attention"]
live = True

# %% stub
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    """Return the numbers of slow(q, k, v), by the flash kernel, on a CPU and on a CUDA GPU."""
    ...  # q: (batch, heads, n, size); k: (batch, 1, n, size); v: (batch, 1, size, n)

# %% hint
# Three things are in the way: the number of heads, how v lies in memory, and, on a GPU, the mask. Call
# the function under sdpa_kernel(SDPBackend.FLASH_ATTENTION), and read the warning: it names one reason
# at a time.

# %% hint
# enable_gqa=True lets several heads of q share a head of k and v. v.mT only exchanges two strides;
# .contiguous() makes the last dimension lie in order. And this mask has a name: is_causal=True.

# %% solution
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    """Return the numbers of slow(q, k, v), by the flash kernel, on a CPU and on a CUDA GPU."""
    return scaled_dot_product_attention(q, k, v.mT.contiguous(), is_causal=True, enable_gqa=True)

# %% check
import math
import warnings
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_SHAPES = ((2, 4, 20, 16), (1, 6, 33, 8))
_DTYPES = ("float32", "float16")  # one for each shape; the flash kernel of a CUDA GPU takes float16, so an answer must not change the dtype


def check(answer: Any) -> str:
    import torch

    ask = checking.in_turn(answer)
    for (batch, heads, n, size), dtype in zip(_SHAPES, _DTYPES, strict=True):
        generator = torch.Generator().manual_seed(n)
        shapes = (batch, heads, n, size), (batch, 1, n, size), (batch, 1, size, n)
        q, k, v = (torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes)
        _judge(ask, f"With {heads} heads and {n} positions", q, k, v)
    return "Each call takes the flash kernel on this CPU, and nothing in it stops the one of a CUDA GPU (in float16 or bfloat16). The numbers are the same."


def _judge(ask: Any, said: str, q: Any, k: Any, v: Any) -> None:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    allowed: list[bool] = []  # whether the flash kernel was, at each call

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is scaled_dot_product_attention:
                calls.append((args, dict(kwargs or {})))
                allowed.append(torch.backends.cuda.flash_sdp_enabled())  # also for CPUs
            return function(*args, **(kwargs or {}))

    with Spy():
        result = ask(said, q.clone(), k.clone(), v.clone())
    if not calls:
        raise Refused(f"{said} your function does not call scaled_dot_product_attention, so no fused kernel can run.")
    if not isinstance(result, torch.Tensor) or result.shape != q.shape:
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else checking.describe(result)
        raise Refused(f"{said} your function returned {shape}; the check expects a tensor of the shape of q, {tuple(q.shape)}.")
    for args, named in calls:
        _take_flash(said, args, named, q.dtype)
    if not all(allowed):
        raise Refused(f"{said} your sdpa_kernel does not allow the flash kernel. Name SDPBackend.FLASH_ATTENTION, or leave sdpa_kernel out.")
    n = q.shape[2]
    values = v.mT.double()
    scores = q.double() @ k.double().mT
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    mine = result.detach().double()

    def same(root: float, seen: Any) -> bool:
        return torch.allclose(mine, (scores / root).masked_fill(~seen, -math.inf).softmax(-1) @ values, rtol=1e-3, atol=1e-4 if q.dtype == torch.float32 else 4e-3)

    root = math.sqrt(q.shape[-1])
    if same(root, ~future):
        return
    if same(root, torch.ones_like(future)):
        raise Refused(f"{said} each query sees the keys of later positions too: the mask is gone. is_causal=True hides them without a mask in memory.")
    if same(1.0, ~future) or same(q.shape[-1], ~future):
        raise Refused(f"{said} the scores have the wrong scale. Leave `scale` out: the default is 1 / sqrt(size), as in slow.")
    if same(root, ~future.mT):
        raise Refused(f"{said} the mask is upside down: query i sees the keys from i on. It must see those up to i.")
    raise Refused(f"{said} the numbers differ from those of slow. Is v turned from (size, n) to (n, size) by .mT, and not by view or reshape?")


def _take_flash(said: str, args: tuple[Any, ...], named: dict[str, Any], dtype: Any) -> None:
    """Refuse a call that the flash kernel does not take, with the reason."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    call = dict(zip(names, args, strict=False)) | named
    if type(call.get("attn_mask")).__name__ == "CausalBias":  # of torch.nn.attention.bias; PyTorch turns it into is_causal
        call |= {"attn_mask": None, "is_causal": True}
    q, k, v = (call[name] for name in names[:3])
    if any(each.dim() != 4 for each in (q, k, v)):
        raise Refused(f"{said} q, k and v do not all have 4 dimensions. The fused kernels take (batch, heads, positions, size).")
    if {q.dtype, k.dtype, v.dtype} != {dtype}:
        raise Refused(
            f"{said} the inputs are in {str(dtype)[6:]}, and q, k or v of the call in another dtype. Keep the dtype: the flash kernel of a CUDA GPU "
            "takes float16 and bfloat16 only, and fewer bits change the numbers."
        )
    if v.stride(-1) != 1 or k.stride(-1) != 1 or q.stride(-1) != 1:
        raise Refused(
            f"{said} the last dimension does not lie in order in memory: the strides of v are {v.stride()}, and the last one must be 1. .mT only "
            "exchanges strides; .contiguous() moves the numbers."
        )
    if k.shape[1] != q.shape[1] and not call.get("enable_gqa"):
        raise Refused(f"{said} q has {q.shape[1]} heads and k has {k.shape[1]}, and the flash kernel does not broadcast them. Pass enable_gqa=True.")
    if call.get("attn_mask") is not None:
        raise Refused(f"{said} the call has an attn_mask. The flash kernel of this CPU takes it, the one of a CUDA GPU does not. This mask has a name: is_causal=True.")
    if call.get("dropout_p"):
        raise Refused(f"{said} the call has dropout, so the numbers are random, and no fused kernel of the CPU takes it. Leave it out.")
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            warnings.simplefilter("ignore")
            scaled_dot_product_attention(**call)
    except RuntimeError as error:
        raise Refused(f"{said} the flash kernel does not take the call: {str(error).splitlines()[0][:120]}") from error

# %% wrong: does not lie in order
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    return scaled_dot_product_attention(q, k, v.mT, is_causal=True, enable_gqa=True)

# %% wrong: does not broadcast
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    return scaled_dot_product_attention(q, k, v.mT.contiguous(), is_causal=True)

# %% wrong: has an attn_mask
import torch
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return scaled_dot_product_attention(q, k, v.mT.contiguous(), attn_mask=mask, enable_gqa=True)

# %% wrong: the mask is gone
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    return scaled_dot_product_attention(q, k, v.mT.contiguous(), enable_gqa=True)

# %% wrong: not by view or reshape
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    return scaled_dot_product_attention(q, k, v.reshape(k.shape), is_causal=True, enable_gqa=True)

# %% wrong: Keep the dtype
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    q, k, v = q.float(), k.float(), v.float()
    return scaled_dot_product_attention(q, k, v.mT.contiguous(), is_causal=True, enable_gqa=True)

# %% wrong: does not call
import torch


def fast(q, k, v):
    n = q.shape[2]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v.mT

# %% wrong: wrong scale
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    return scaled_dot_product_attention(q, k, v.mT.contiguous(), is_causal=True, enable_gqa=True, scale=1.0)


# %% wrong: does not allow the flash kernel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def fast(q, k, v):
    """Return the numbers of slow(q, k, v), by the flash kernel, on a CPU and on a CUDA GPU."""
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]):
        return scaled_dot_product_attention(q, k, v.mT.contiguous(), is_causal=True, enable_gqa=True)
