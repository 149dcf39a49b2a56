"""Units, badges and errors: the words in which every number and every refusal is written."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gpulab import errors, units
from gpulab.errors import InputError
from gpulab.evidence import Badge, Environment, Evidence, Note, known_errors
from hypothesis import given
from hypothesis import strategies as st

# Half a unit in the third significant digit: the most that formatting loses.
LOSS = 0.0051

WRITTEN: list[tuple[Any, dict[float, str]]] = [
    (
        units.format_seconds,
        {
            **{
                0.00123: "1.23 ms",
                4.2e-7: "420 ns",
                0: "0 s",
                0.9996e-3: "1.00 ms",
                0.9995: "1.00 s",
            },
            **{0.9994e-3: "999 us", 1e-12: "0.001 ns", -2e-3: "-2.00 ms", 90: "90.0 s"},
            **{math.inf: "infinite", -math.inf: "-infinite", math.nan: "not a number"},
        },
    ),
    (
        units.format_bytes,
        {
            **{0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1536: "1.50 KiB", 3 * 2**30: "3.00 GiB"},
            **{2**20 - 1: "1024 KiB", 2**20: "1.00 MiB", 2**40: "1.00 TiB", -2048: "-2.00 KiB"},
            **{-0.4: "0 B", 2.6: "3 B", math.inf: "infinite"},
        },
    ),
    (
        units.format_bytes_per_second,
        {
            **{4.8e12: "4.80 TB/s", 1.5e15: "1.50 PB/s", 1.5e9: "1.50 GB/s", 1.5e6: "1.50 MB/s"},
            **{2.5e3: "2.50 kB/s", 999.6: "1.00 kB/s", 999.4: "999 B/s", 0.5: "0.50 B/s"},
        },
    ),
    (units.format_flops_per_second, {989.4e12: "989 TFLOP/s", math.inf: "infinite"}),
    (units.format_flops, {2 * 1024**3: "2.15 GFLOP"}),
    (
        units.format_ratio,
        {
            **{1234: "1234x", 0.002: "0.002x", 0.0995: "0.10x", 9.994: "9.99x", 9.995: "10.0x"},
            **{
                99.94: "99.9x",
                99.95: "100x",
                -0.05: "-0.05x",
                1e15: "1e+15x",
                math.nan: "not a number",
            },
        },
    ),
    (units.format_number, {-18765.4: "-18,765", 999.4: "999", 0.0123: "0.0123", 1e15: "1e+15"}),
    (units.format_joules, {1.5: "1.50 J", 1500: "1500 J", 2e-9: "2.00 nJ"}),
]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [(write, value, text) for write, cases in WRITTEN for value, text in cases.items()],
)
def test_a_quantity_is_written_with_three_digits_and_its_unit(
    write: Any, value: float, text: str
) -> None:
    """Storage counts in powers of 1024, rates in powers of 1000; the unit changes at its edge."""
    assert write(value) == text


@given(st.floats(min_value=1e-9, max_value=1e6), st.integers(0, 2**50), st.integers(0, 10**29))
def test_what_was_written_is_read_back(seconds: float, nbytes: int, whole: int) -> None:
    """Reading inverts writing to three digits; a whole number of bytes is never rounded."""
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=LOSS)
    back = units.parse_bytes(units.format_bytes(nbytes))
    assert back == (nbytes if nbytes < 1024 else pytest.approx(nbytes, rel=LOSS))
    assert units.parse_bytes(whole) == whole


def test_every_unit_is_read() -> None:
    """KiB and K are 1024, kB is 1000, both micro signs are 1e-6, numbers of any kind are read."""
    sizes = {"": 1, "B": 1, "byte": 1, "bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    sizes |= {
        **{"TB": 10**12, "K": 2**10, "M": 2**20, "G": 2**30},
        **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    }
    for unit, factor in sizes.items():
        assert units.parse_bytes(f"3 {unit}") == 3 * factor
    seconds = {
        **{"s": 1, "sec": 1, "second": 1, "SECONDS": 1, "min": 60},
        **{"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9},
    }
    for unit, factor in seconds.items():
        assert units.parse_seconds(f"3 {unit}") == 3 * factor
    for kind in (np.float16, np.uint64, Fraction):
        assert (units.parse_bytes(kind(96)), units.parse_seconds(kind(3))) == (96, 3.0)


@given(
    st.one_of(
        st.text(max_size=20), st.floats(), st.integers(), st.none(), st.booleans(), st.binary()
    )
)
def test_anything_is_read_as_a_quantity_or_refused(anything: Any) -> None:
    """No input gives a negative or infinite quantity, or an error other than InputError."""
    for parse in (units.parse_seconds, units.parse_bytes):
        try:
            value = parse(anything)
        except InputError:
            continue
        assert 0 <= value < math.inf


def _environment(**changes: Any) -> Environment:
    values = {
        **{"date": "2026-11-20T10:00:00+00:00", "system": "Linux", "processor": "P", "cores": 2},
        **{"memory_bytes": 2**30, "device": "NVIDIA H200", "device_kind": "cuda", "python": "3.11"},
        **{"driver": "580.1", "command": "gpulab record"},
        **{"libraries": {"torch": "2.11", "numpy": "2.4"}},
    }
    return Environment(**{**values, **changes})


def test_the_sentence_of_each_badge(approved: Any) -> None:
    """A badge states where a number comes from, what it assumes, its source and its known error."""
    known, unknown = Evidence.modelled("a", "b", "3 % at most"), Evidence.modelled("a", "b")
    bare = _environment(driver=None, libraries={}, command=None)
    evidences = [
        *(Evidence.measured("cpu", 12), Evidence.measured("cpu"), Evidence.recorded(bare)),
        *(Evidence.recorded(_environment(), samples=5), known, unknown),
        Evidence.measured("cpu", 3, "2026-11-20T10:00:00+00:00", "TF32 allowed"),
        Evidence.recorded(_environment(driver=None), 7, "TF32 not allowed"),
    ]
    lines = [str(each) for each in evidences]
    lines += [
        str(known_errors(link=link, compute=known))
        for link in (Evidence.modelled("a", "b", "7 %"), unknown)
    ]
    lines += [str(known_errors(link=unknown)), str(Note("stalled", "Lost 3 ms."))]
    assert "\n".join(lines) + "\n" == approved


@pytest.mark.parametrize(
    "make",
    [
        lambda: Evidence.measured(""),
        lambda: Evidence(Badge.RECORDED, "H200"),
        lambda: Evidence.modelled("", "source"),
        lambda: Evidence.modelled("assumptions", ""),
    ],
)
def test_a_badge_without_its_grounds_is_refused(make: Any) -> None:
    """A number cannot be RECORDED without a date, or MODELLED without a source."""
    with pytest.raises(InputError, match="Evidence"):
        make()


def test_errors_are_what_older_code_expects_too() -> None:
    """One parent catches all errors of gpulab, and each is also the built-in error of its kind."""
    parents = {
        **{"InputError": ValueError, "DeviceError": RuntimeError, "CopyRequiredError": ValueError},
        **{"OutOfMemoryError": MemoryError},
    }
    for name, parent in parents.items():
        assert issubclass(getattr(errors, name), parent)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert all(issubclass(k, errors.GpulabError) for k in kinds if issubclass(k, Exception))


def test_a_foreign_value_is_shown_safely() -> None:
    """A value in a message is short, on one line, and cannot control the terminal."""
    assert errors.shown(12345678901, 10) == "1234567..."
    assert errors.message_of(ValueError("one\n  two.")) == "one two"
    assert errors.printable("\x1b[2J \u202eno") == r"\x1b[2J \u202eno"
    assert errors.printable("Zoë 東京 5 %") == "Zoë 東京 5 %"
