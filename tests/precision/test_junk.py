"""Whatever is handed to the functions of precision ends in a result or in one sentence of ours."""

from __future__ import annotations

import inspect
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from gpulab import precision
from gpulab.errors import GpulabError, InputError


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


class Fails:
    """An iterable that fails while it is walked through."""

    def __iter__(self) -> Any:
        raise ZeroDivisionError


# How a refusal begins: the function, the argument, the value, and what was expected.
REFUSED: list[tuple[str, Any]] = [
    *[(f"{name}: format is 'half'; expected one of: float64, float32, tf32,", call) for name, call in (
        ("format", lambda: precision.format("half")),
        ("round_to", lambda: precision.round_to(1.0, "half")), ("stochastic_round", lambda: precision.stochastic_round(1.0, "half")),
        ("encode", lambda: precision.encode(1.0, "half")), ("decode", lambda: precision.decode(1, "half")),
        ("values", lambda: precision.values("half")), ("neighbours", lambda: precision.neighbours(1.0, "half")),
        ("spacing", lambda: precision.spacing(1.0, "half")), ("number", lambda: precision.number(1.0, "half")),
        ("number_from_bits", lambda: precision.number_from_bits(1, "half")), ("nearby", lambda: precision.nearby(1, 2, "half")),
        ("gradient_window", lambda: precision.gradient_window([1.0], "half")),
        ("swallowed_updates", lambda: precision.swallowed_updates([1.0], [2.0], "half")),
    )],
    *[(f"{name}: x is 'one'; expected real numbers.", call) for name, call in (
        ("round_to", lambda: precision.round_to("one", "int8")), ("stochastic_round", lambda: precision.stochastic_round("one", "int8")),
        ("encode", lambda: precision.encode("one", "int8")), ("neighbours", lambda: precision.neighbours("one", "int8")),
        ("spacing", lambda: precision.spacing("one", "int8")), ("number", lambda: precision.number("one", "int8")),
        ("sum_error", lambda: precision.sum_error("one")), ("matmul_error", lambda: precision.matmul_error("one", [[1.0]])),
        ("gradient_window", lambda: precision.gradient_window("one")),
        ("swallowed_updates", lambda: precision.swallowed_updates("one", [2.0], "int8")),
    )],
    *[(f"{name}: overflow of int8 is 'nan'; expected one of: saturate.", call) for name, call in (
        ("round_to", lambda: precision.round_to(1.0, "int8", "nan")), ("encode", lambda: precision.encode(1.0, "int8", "nan")),
        ("stochastic_round", lambda: precision.stochastic_round(1.0, "int8", 0, "nan")),
    )],
    *[(f"{name}: seed=-1; expected a whole number from 0, or a numpy Generator.", call) for name, call in (
        ("sum_error", lambda: precision.sum_error([1.0], ["float16"], -1)),
        ("stochastic_round", lambda: precision.stochastic_round(1.0, "int8", -1)),
    )],
    *[(f"{name}: formats is 5; expected several values.", call) for name, call in (
        ("sum_error", lambda: precision.sum_error([1.0], 5)), ("matmul_error", lambda: precision.matmul_error([[1.0]], [[1.0]], 5)),
    )],
    *[(f"{name}: format is 'int8'; expected one of: float32, tf32, float16,", call) for name, call in (
        ("sum_error", lambda: precision.sum_error([1.0], ["int8"])),
        ("matmul_error", lambda: precision.matmul_error([[1.0]], [[1.0]], ["int8"])),
    )],
    ("sum_error: formats raised ZeroDivisionError; expected several names.", lambda: precision.sum_error([1.0], Fails())),
    ("decode: codes are 'one'; expected whole numbers from 0 to 2**8 - 1.", lambda: precision.decode("one", "int8")),
    ("number_from_bits: 1.5; expected a whole number, or 8 zeros and ones.", lambda: precision.number_from_bits(1.5, "int8")),
    ("decode: codes are 256; expected whole numbers from 0 to 2**8 - 1.", lambda: precision.number_from_bits(256, "int8")),
    ("values: float32 has 2**32 codes; expected a format of at most 19 bits.", lambda: precision.values("float32")),
    ("gradient_window: int8 is no float format; expected one such as float16.", lambda: precision.gradient_window([1.0], "int8")),
    ("gradient_window: scale=0; expected a positive number.", lambda: precision.gradient_window([1.0], scale=0)),
    ("gradient_window: tolerance=True; expected a share from 0 to 1.", lambda: precision.gradient_window([1.0], tolerance=True)),
    ("gradient_window: which is 'weights'; expected one of: all, parameters, activations.",
     lambda: precision.gradient_window(GRADIENTS, which="weights")),
    ("gradient_window: got no gradients; expected at least one.", lambda: precision.gradient_window([])),
    ("Gradients.kind: kind is 'weights'; expected one of: parameters, activations.", lambda: GRADIENTS.kind("weights")),
    ("gradients: got 'model'; expected a torch.nn.Module.", lambda: precision.gradients("model")),
    ("autocast_policy: dtype is 'float8'; expected one of: bfloat16, float16.", lambda: precision.autocast_policy("cpu", "float8")),
    ("autocast_policy: operators is 5; expected several values.", lambda: precision.autocast_policy("cpu", operators=5)),
    ("autocast_policy: operator 'half' is unknown; expected", lambda: precision.autocast_policy("cpu", operators=["add", "half"])),
    ("AutocastPolicy.row: operator is 'mul'; expected one of: add.",
     lambda: precision.autocast_policy("cpu", operators=["add"]).row("mul")),
    ("AutocastPolicy.operators: policy is 'up'; expected one of: lower, float32, widest, inputs.",
     lambda: precision.autocast_policy("cpu", operators=["add"]).operators("up")),
    ("autocast_trace: dtype is 'float8'; expected one of: bfloat16, float16.",
     lambda: precision.autocast_trace(torch.exp, torch.ones(1), dtype="float8")),
    ("autocast_trace: got 5; expected a module or a function.", lambda: precision.autocast_trace(5)),
]  # fmt: skip


@pytest.mark.parametrize(("begins", "call"), REFUSED, ids=[row[0].partition(";")[0] for row in REFUSED])
def test_a_refusal_begins_with_who_refuses_what(begins: str, call: Any) -> None:
    """Whoever reads it in a long cell finds the call that it is about."""
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(begins)


USUAL: dict[str, dict[str, Any]] = {
    "gradient_window": {"format": "float16", "scale": 1.0, "which": "all", "tolerance": 0.01},
    "matmul_error": {"formats": ("float16", "bfloat16")},
    "nearby": {"most": 200},
    "number": {"steps": 0},
    "stochastic_round": {"seed": 0},
    "sum_error": {"formats": ("float16", "bfloat16", "float32"), "seed": 0},
    "tf32": {"matmul": True, "convolution": True},
}


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name: str) -> None:
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(precision, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]


@pytest.mark.parametrize(
    ("result", "assumes", "source", "error"),
    [
        (precision.sum_error([1.0], ["float16"]), "each value is rounded", "IEEE 754-2019, 4.3.1 and 5.4.1", "none: exact arithmetic"),
        (
            precision.matmul_error([[1.0]], [[1.0]], ["float16"], device="simulated"), "operands rounded", "IEEE 754-2019, 4.3.1 and 5.4.1",
            "none: exact arithmetic",
        ),
        (precision.number(1.0, "float16"), "the format's definition, rounded once", "IEEE 754-2019, OFP8, MX", "none: exact"),
        (precision.format("float16"), "the format's definition", "IEEE 754-2019", "none: a definition"),
        (precision.gradient_window([1.0]), "the numbers that were given", "the format's own rounding", "none: exact arithmetic"),
    ],
    ids=["sum", "product", "number", "format", "window"],
)  # fmt: skip
def test_what_a_modelled_number_rests_on(result: Any, assumes: str, source: str, error: str) -> None:
    """What is assumed, where the rule comes from, and how wrong it is, each in its own place."""
    evidence = result.evidence
    assert (evidence.badge, evidence.known_error) == ("MODELLED", error)
    assert evidence.assumptions.startswith(assumes)
    assert evidence.source.startswith(source)
