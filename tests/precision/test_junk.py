"""Whatever is handed to the functions of precision ends in a result or in one sentence of ours."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import precision
from gpulab.errors import GpulabError


class Broken:
    """An object whose text, truth and number fail."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __bool__ = __float__ = __array__ = __len__ = __iter__ = __repr__


JUNK: list[Any] = [
    None, True, -1, 0, 10**400, 2**80, math.nan, math.inf, -0.5, "", "float16", "nan", b"bytes", (), [], {}, {"a": 1}, object(), object, 1j,
    range(0), ..., NotImplemented, Fraction(-1, 3), Decimal("NaN"), np.array([]), np.array([1, 2]), np.array("x"), np.array(math.nan),
    np.array([[1.0]], dtype=object), torch.tensor([1.0, 2.0]), torch.tensor(True), torch.tensor(1j), torch.nn.Linear(2, 2),
    np.datetime64("2020"), [1.0, [2.0, 3.0]], [None], Broken(), precision.format("int8"), "cuda:99", lambda: 1,
]  # fmt: skip
GRADIENTS = precision.gradients(torch.nn.Linear(2, 1), torch.ones(1, 2), loss=torch.sum)
CALLS: dict[str, Any] = {
    "format": precision.format,
    "round_to x": lambda v: precision.round_to(v, "float16"),
    "round_to format": lambda v: precision.round_to(1.0, v),
    "round_to overflow": lambda v: precision.round_to(1.0, "float16", overflow=v),
    "stochastic_round x": lambda v: precision.stochastic_round(v, "float16"),
    "stochastic_round seed": lambda v: precision.stochastic_round(1.0, "float16", seed=v),
    "encode x": lambda v: precision.encode(v, "float8_e4m3fn"),
    "decode codes": lambda v: precision.decode(v, "float16"),
    "decode format": lambda v: precision.decode(0, v),
    "values": precision.values,
    "neighbours x": lambda v: precision.neighbours(v, "float16"),
    "spacing x": lambda v: precision.spacing(v, "float16"),
    "number x": lambda v: precision.number(v, "float16"),
    "number steps": lambda v: precision.number(1.0, "float16", steps=v),
    "number_from_bits": lambda v: precision.number_from_bits(v, "int8"),
    "nearby": lambda v: precision.nearby(v, 2.0, "float16"),
    "sum_error x": lambda v: precision.sum_error(v, ["float16"]),
    "sum_error formats": lambda v: precision.sum_error([1.0], v),
    "sum_error seed": lambda v: precision.sum_error([1.0], ["float16"], seed=v),
    "matmul_error a": lambda v: precision.matmul_error(v, [[1.0]], ["float16"], device="simulated"),
    "matmul_error formats": lambda v: precision.matmul_error([[1.0]], [[1.0]], v, device="simulated"),
    "matmul_error device": lambda v: precision.matmul_error([[1.0]], [[1.0]], ["float16"], device=v),
    "gradients model": lambda v: precision.gradients(v, torch.ones(1, 2)),
    "gradients input": lambda v: precision.gradients(torch.nn.Linear(2, 1), v, loss=torch.sum),
    "gradients loss": lambda v: precision.gradients(torch.nn.Linear(2, 1), torch.ones(1, 2), loss=v),
    "gradient_window": precision.gradient_window,
    "gradient_window format": lambda v: precision.gradient_window([1.0], v),
    "gradient_window scale": lambda v: precision.gradient_window([1.0], "float16", v),
    "gradient_window which": lambda v: precision.gradient_window(GRADIENTS, which=v),
    "gradient_window tolerance": lambda v: precision.gradient_window([1.0], tolerance=v),
    "swallowed_updates": lambda v: precision.swallowed_updates(v, [1.0], "float16"),
    "autocast_policy device": lambda v: precision.autocast_policy(v, operators=["add"]),
    "autocast_policy dtype": lambda v: precision.autocast_policy("cpu", v, ["add"]),
    "autocast_policy operators": lambda v: precision.autocast_policy("cpu", operators=v if v is not None else ["add"]),
    "autocast_trace": precision.autocast_trace,
    "tf32_switches": precision.tf32_switches,
}


@pytest.mark.parametrize("name", CALLS)
def test_junk_ends_in_one_sentence_or_a_result(name: str) -> None:
    """No exception but ours, and its message is a sentence with what to expect."""
    said = []
    for junk in JUNK:
        try:
            CALLS[name](junk)
        except GpulabError as error:
            said.append(str(error))
    assert said
    assert all(20 < len(sentence) < 900 for sentence in said)
