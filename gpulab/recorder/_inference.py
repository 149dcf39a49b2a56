"""Experiments for notebook 11: attention by kernel and length, and a decoder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpulab.devices import Device
from gpulab.models import LANGUAGE_MODELS, LanguageModel
from gpulab.recorder._experiments import LAST, SECOND, THIRD, Case, Work, timed

# Attention: sequences of all lengths have as many positions in all, as the FlashAttention papers
# measure it.
_HEADS, _SIZE, _POSITIONS, _LENGTHS = 16, 128, 16_384, (512, 2048, 8192)
_CPU_HEADS, _CPU_SIZE, _CPU_POSITIONS, _CPU_LENGTHS = 4, 32, 2048, (256, 1024)
_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Generation: a model of a real size with random weights (its speed does not depend on their
# values), and a small one for a CPU.
_SHAPE = LANGUAGE_MODELS["Llama 3.2 1B"]
_CPU_SHAPE = LanguageModel("small decoder", 4, 256, 8, 2, 32, 1024, 1024)
_LENGTH, _CPU_LENGTH = 2048, 128


def attention(device: Device) -> Iterable[Case]:
    """Causal attention written out, and by each kernel of ``scaled_dot_product_attention``."""
    lengths = _CPU_LENGTHS if device.is_cpu else _LENGTHS
    names = ["written out", "flash"]
    if device.kind == "cuda":
        names += ["efficient", "cudnn"]
    for length in lengths:
        for name in names:
            for passes in ("forward", "forward and backward"):
                rank = SECOND if name in names[:2] and length == lengths[1] else THIRD
                params = {
                    "kernel": name,
                    "passes": passes,
                    "length": length,
                    "dtype": "float32" if device.is_cpu else "float16",
                }
                prepare = functools.partial(_attention, device, name, length, "back" in passes)
                yield timed(device, params, prepare, rank)


def _attention(device: Device, kernel: str, length: int, backward: bool) -> Work:
    heads, size, positions = (
        (_CPU_HEADS, _CPU_SIZE, _CPU_POSITIONS) if device.is_cpu else (_HEADS, _SIZE, _POSITIONS)
    )
    q, k, v = (
        torch.randn(
            (positions // length, heads, length, size),
            device=str(device),
            dtype=torch.float32 if device.is_cpu else torch.float16,
            requires_grad=backward,
        )
        for _ in range(3)
    )
    seen = torch.ones(length, length, dtype=torch.bool, device=str(device)).tril()

    def run() -> Any:
        if kernel == "written out":
            scores = (q @ k.mT / math.sqrt(size)).masked_fill(~seen, -math.inf)
            mixed = scores.softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(mixed.sum(), (q, k, v)) if backward else mixed

    # two products of length x length x size; a causal kernel needs half of them, the backward pass
    # two and a half times as many
    flops = 4.0 * positions * heads * length * size / 2 * (3.5 if backward else 1.0)
    setting: contextlib.AbstractContextManager[Any] = (
        sdpa_kernel(_KERNELS[kernel]) if kernel in _KERNELS else contextlib.nullcontext()
    )
    return Work(run, f"attention, {kernel}, {length} positions", (), flops, setting=setting)


class _Layer(torch.nn.Module):
    """A layer of a decoder with a cache of a fixed length, as a CUDA graph needs it."""

    def __init__(self, shape: LanguageModel) -> None:
        super().__init__()
        self.size = shape.head_size
        queries, keys = shape.heads * self.size, shape.kv_heads * self.size
        linear = functools.partial(torch.nn.Linear, bias=False)
        self.q, self.kv = linear(shape.width, queries), linear(shape.width, 2 * keys)
        self.out = linear(queries, shape.width)
        self.up = linear(shape.width, 2 * shape.feed_width)
        self.down = linear(shape.feed_width, shape.width)

    def forward(self, x: Any, cache: Any, start: int) -> Any:
        new = x.shape[1]
        normed = functional.rms_norm(x, x.shape[-1:])
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.q(normed), *self.kv(normed).chunk(2, -1))
        )
        cache[0][:, :, start : start + new], cache[1][:, :, start : start + new] = k, v
        keys, values = cache[:, :, :, : start + new]
        causal, mask = start == 0, None
        if start and new > 1:
            mask = torch.ones(new, start + new, dtype=torch.bool, device=x.device).tril(start)
        mixed = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.up(functional.rms_norm(x, x.shape[-1:])).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class _Decoder(torch.nn.Module):
    """Tokens to the scores of the token after the last one."""

    def __init__(self, shape: LanguageModel) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(shape.vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Any, caches: Any, start: int) -> Any:
        x = self.tokens(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, start)
        return self.head(x[:, -1])


def generation(device: Device) -> Iterable[Case]:
    """Prefill and decode of a decoder: batches, lengths, heads, weights of fewer bits, graph and
    compiler.
    """
    plain = {
        "phase": "decode",
        "batch": 1,
        "length": _CPU_LENGTH if device.is_cpu else _LENGTH,
        "new": 1,
        "kv_heads": _CPU_SHAPE.kv_heads if device.is_cpu else _SHAPE.kv_heads,
        "weights": "float32" if device.is_cpu else "bfloat16",
        "means": "plain",
    }
    shape = _CPU_SHAPE if device.is_cpu else _SHAPE
    asked: list[tuple[dict[str, Any], int]] = [
        ({}, SECOND),
        ({"batch": 16}, SECOND),
        ({"phase": "prefill"}, SECOND),
        ({"new": 5}, THIRD),
        ({"batch": 16, "kv_heads": shape.heads}, THIRD),
        ({"batch": 16, "kv_heads": 1}, THIRD),
    ]
    if not device.is_cpu:
        asked += [({"batch": batch}, THIRD) for batch in (4, 64)]
        asked += [({"length": length}, THIRD) for length in (128, 8192)]
        asked += [({"phase": "prefill", "length": length}, THIRD) for length in (512, 8192)]
    if device.torch_type == "cuda":
        asked += [({"means": means}, SECOND) for means in ("graph", "compile")]
        bits = ("int8", "int4", "float8") if importlib.util.find_spec("torchao") else ()
        for weights in bits:
            more = {"weights": weights, "means": "compile"}
            asked += [(more, THIRD), ({**more, "phase": "prefill"}, LAST)]
        asked.append(({"means": "compile", "phase": "prefill"}, LAST))
    for changed, rank in asked:
        params = {**plain, **changed}
        if params["phase"] == "prefill":
            params["new"] = params["length"]
        yield timed(device, params, functools.partial(_generation, device, shape, params), rank)


def _generation(device: Device, shape: LanguageModel, params: dict[str, Any]) -> Work:
    where, length, batch = str(device), params["length"], params["batch"]
    dtype = torch.float32 if device.is_cpu else torch.bfloat16
    shape = dataclasses.replace(shape, kv_heads=params["kv_heads"])
    prefill, new = params["phase"] == "prefill", params["new"]
    start = length - new
    with torch.device(where):
        model: Any = _Decoder(shape).to(dtype).eval()
        tokens = torch.zeros(batch, new, dtype=torch.int64)
        caches = torch.zeros(
            (shape.layers, 2, batch, shape.kv_heads, length, shape.head_size), dtype=dtype
        )
    if params["weights"] in ("int8", "int4", "float8"):
        _shorten(model, params["weights"])
    if params["means"] == "compile":
        model = torch.compile(model, mode="max-autotune-no-cudagraphs" if prefill else None)
    step = torch.no_grad()(functools.partial(model, tokens, caches, start))
    if params["means"] == "graph":
        step = _graph(step)
    label = f"{params['phase']}, batch {batch}, {length} positions"
    return Work(step, label, (), 2.0 * batch * new * shape.read_parameters)


def _shorten(model: Any, weights: str) -> None:
    """Store the weights of linear layers in fewer bits, by torchao."""
    from torchao import quantization

    config = {
        "int8": "Int8WeightOnlyConfig",
        "int4": "Int4WeightOnlyConfig",
        "float8": "Float8WeightOnlyConfig",
    }[weights]
    quantization.quantize_(model, getattr(quantization, config)())


def _graph(step: Any) -> Any:
    """Record a step as a CUDA graph, after it has run on a stream of its own."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    with torch.cuda.graph(graph, stream=side):
        step()
    return graph.replay
