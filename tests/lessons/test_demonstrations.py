"""What the notebooks show: recorded figures as approved tables, live ones by hand."""

from typing import Any

import pytest
from gpulab import devices, lessons
from gpulab.errors import InputError
from gpulab.evidence import Badge
from gpulab.units import parse_seconds

from refusals import refused
from texts import table_text

without_gpu = pytest.mark.skipif(
    not devices.default().is_cpu, reason="this machine measures its own accelerator"
)
LANGUAGES = ("MATLAB", "CUDA C++", "CuPy", "TensorFlow 1", "JAX", "TensorFlow")
# What each shows without an accelerator: recordings, models, made-up exercise data.
SHOWN: dict[str, Any] = {
    **{f"timeline {letter}": (lambda letter=letter: lessons.timeline(letter)) for letter in "ABC"},
    **{f"hang {letter}": (lambda letter=letter: lessons.hang(letter)) for letter in "ABC"},
    **{
        f"idioms of {name}": (lambda name=name: lessons.rosetta(name))
        for name in LANGUAGES
    },
}  # fmt: skip


@without_gpu
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_without_an_accelerator(name: str, approved: Any) -> None:
    """Each number has its badge, machine and unit; a figure that is not recorded says so."""
    found = SHOWN[name]()
    several = found if isinstance(found, (tuple, list)) else (found,)
    text = f"{len(several)}\n" + "".join(
        f"{one!r}\n{table_text(one._repr_html_())}" for one in several
    )
    if name.startswith("hang"):
        spans = [(rank, span) for rank in range(found.ranks) for span in found.lane(rank)]
        text += f"{found.steps}\n" + "".join(
            f"{rank} {s.kind} {s.name} {s.begin_seconds:.4g} {s.end_seconds:.4g}\n"
            for rank, s in spans
        )
    assert text == approved


LADDERS = {
    **{name: (name,) for name in ("elementwise", "reduction", "transpose", "histogram", "softmax")},
    **{"matmul": ("matmul",), "some of matmul": ("matmul", 64, ("tiled", "naive"))},
}


@pytest.mark.slow
@without_gpu
@pytest.mark.parametrize("name", LADDERS)
def test_a_ladder_of_kernels(name: str, approved: Any) -> None:
    """Counted by the microscope on a small case, beside the best recorded times."""
    table = lessons.climb(*LADDERS[name])
    assert f"{table!r}\n{table_text(table._repr_html_())}" == approved
    refused(InputError, lessons.climb, *LADDERS[name][:2], ("no such rung",))


@pytest.mark.slow
def test_claims_of_which_one_cannot_be_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """00.2: one rate is more than twice the memory's bandwidth; the others are below it."""
    # another test may have asked for the claims, and then measured the memory again
    monkeypatch.delitem(lessons.content.KEPT, "claims", raising=False)
    claims = lessons.four_claims()
    ceiling = devices.ceilings("cpu").bandwidth()
    moved = [gib * 2**30 for gib in (2, 8, 24, 16)]  # B to D write as well as read
    rates = [
        nbytes / parse_seconds(row[2]) / ceiling
        for nbytes, row in zip(moved, claims.rows, strict=True)
    ]
    assert rates[2] > 2
    assert max(rates[:2] + rates[3:]) < 0.95
    assert [evidence.badge for _, evidence in claims.sources] == [Badge.MODELLED, Badge.MEASURED]


@without_gpu
def test_a_cpu_beside_a_recorded_gpu(approved: Any) -> None:
    """01: the H200's shape and rates are the recording's, the CPU's column is this machine's."""
    headers, rows = lessons.side_by_side().table()
    assert "".join(f"{row[0]}: {row[-1]}\n" for row in rows[:7]) == approved
    assert (
        devices.find("cpu").name.split("(")[0].strip()[:10] in " ".join(headers) + str(rows),
        rows[1][1],
    ) == (
        True,  # and floats of 32 bits in registers of 512, 256 or 128
        next(
            (
                lanes
                for word, lanes in (("avx512f", "16"), ("avx", "8"), ("sse2", "4"), ("asimd", "4"))
                if word in devices.machine().processor.simd
            ),
            "not reported",
        ),
    )


# What measures, the badge of its figures here, and what holds of them. A processor adds numbers
# faster than its main memory sends them; a product of the largest size takes longest.
LIVE: dict[str, Any] = {
    "roof": (
        lessons.roof,
        "MEASURED",
        lambda r: (
            r.device == devices.default().name
            and r.arithmetic_roof("float32").flops_per_second
            > min(roof.bytes_per_second for roof in r.memory) / 4
        ),
    ),
    "contest": (
        lessons.contest,
        "RECORDED" if devices.default().is_cpu else "MEASURED",
        lambda r: (
            r.cpu_evidence.device == devices.find("cpu").name
            and r.rows[-1].cpu_seconds > r.rows[0].cpu_seconds
            and all(row.with_copies_seconds >= row.accelerator_seconds for row in r.rows)
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_what_is_measured_here(name: str) -> None:
    """Asked to measure again, a table of this machine takes the place of the earlier one and has
    its badge; a wrong argument is refused.
    """
    show, badge, holds = LIVE[name]
    refused(InputError, show, "add").match("True or False")
    found = show(again=True)  # what was kept before is the made-up machine of these tests
    assert holds(found), found
    assert "<table" in found._repr_html_()
    assert (str(found.evidence.badge), show() is found) == (badge, True)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_line_of_the_tables_gives_numpys_answer(language: str) -> None:
    """Each row of a language that can run here agrees with NumPy, and rows that take long are left
    out and named.

    A row that compares two clocks is tried again, since a busy machine can delay one of them.
    """
    table = lessons.rosetta(language)
    found = table.run()
    apart = {row[0] for row in found.rows if "differs" in row}
    assert (
        not apart
        or (
            apart <= {row.name for row in table.rows if row.within}
            and "differs" not in str(table.only(*apart).run().rows)
        ),
        found.title,
        [row[0] for row in found.rows],
        [row.name in str(found.notes) for row in table.rows if row.seconds],
    ) == (
        True,
        f"{language}: {[row[2] for row in found.rows].count('agrees')} of {len(found.rows)} rows "
        "agree with NumPy",
        [row.name for row in table.rows if not row.seconds],
        [True for row in table.rows if row.seconds],
    )
    refused(InputError, lessons.rosetta, f"{language}s")
