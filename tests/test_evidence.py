"""Badges, notes and environments."""

import ast
import pathlib

import pytest

import gpulab
from gpulab.errors import InputError
from gpulab.evidence import NOTE_CODES, Badge, Environment, Evidence, Note, known_errors


def _environment(**changes):
    values = {
        "date": "2026-11-20T10:00:00+00:00", "system": "Linux", "processor": "P", "cores": 2, "memory_bytes": 2**30,
        "device": "NVIDIA H200", "device_kind": "cuda", "driver": "580.1", "python": "3.11",
        "libraries": {"torch": "2.11"}, "command": "gpulab record",
    }  # fmt: skip
    return Environment(**{**values, **changes})


def test_measured_says_device_and_count():
    """A measured figure names its device and how many samples stand behind it."""
    assert Evidence.measured("cpu", 12).sentence == "MEASURED on cpu · n = 12"
    assert Evidence.measured("cpu", 0).samples == 0  # stopped before the first: a count, and no mistake


def test_recorded_says_machine_date_driver_versions_and_command():
    """A recorded figure names everything that is needed to take it again."""
    sentence = Evidence.recorded(_environment(), samples=5).sentence
    for part in ("RECORDED", "NVIDIA H200", "2026-11-20", "driver 580.1", "torch 2.11", "n = 5", "`gpulab record`"):
        assert part in sentence


def test_modelled_says_assumptions_source_and_known_error():
    """A modelled figure names its assumptions and source, and says when its error is not known."""
    assert "assumes a link" in Evidence.modelled("a link", "PCIe 4.0").sentence
    assert "no recording to compare with yet" in Evidence.modelled("a link", "PCIe 4.0").sentence
    assert "known error: 4 %" in Evidence.modelled("a link", "PCIe 4.0", "4 %").sentence


@pytest.mark.parametrize(
    "make",
    [
        lambda: Evidence.measured(""),
        lambda: Evidence(Badge.RECORDED, "H200"),
        lambda: Evidence.modelled("", "source"),
        lambda: Evidence.modelled("assumptions", ""),
        lambda: Evidence.measured("cpu", -1),
    ],
)
def test_evidence_without_what_its_badge_needs_cannot_be_made(make):
    """A badge without its device, date, assumptions or source is refused."""
    with pytest.raises(InputError, match="Evidence"):
        make()


def test_evidence_and_environment_survive_json():
    """Both come back equal from their own dictionaries."""
    for thing in (Evidence.recorded(_environment()), Evidence.modelled("a", "b", "c"), _environment(driver=None, command=None)):
        assert type(thing).from_dict(thing.to_dict()) == thing


def test_every_note_code_in_the_package_is_in_the_list():
    """Wherever the package makes a Note with a literal code, the fixed list knows that code."""
    unknown = []
    for path in pathlib.Path(gpulab.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Note"
            if named and node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value not in NOTE_CODES:
                unknown.append((path.name, node.args[0].value))
    assert unknown == []


def test_design_words_are_all_note_codes():
    """The codes that the design promises exist, each with a meaning."""
    promised = (
        "implausible", "unstable", "contended", "stalled", "throttled", "warm-cache", "slow-first-call", "too-short",
        "deadline", "no-interval",
    )  # fmt: skip
    assert all(NOTE_CODES[code] for code in promised)
    assert str(Note("stalled", "Lost 3 ms.")) == "stalled: Lost 3 ms."


def test_the_errors_of_a_models_parts_stand_under_their_names():
    """Known of one: that of the other is missing by name. Known of none: nothing is made up."""
    known, unknown = Evidence.modelled("a", "b", "3 % at most"), Evidence.modelled("a", "b")
    assert known_errors(link=known, compute=known) == "link: 3 % at most; compute: 3 % at most"
    assert known_errors(link=unknown, compute=known) == "link: no recording to compare with yet; compute: 3 % at most"
    assert known_errors(link=unknown, compute=unknown) is None


def test_the_sentences_word_by_word():
    """Each part stands where it is known and leaves nothing behind where it is not."""
    assert Evidence.recorded(_environment(libraries={"torch": "2.11", "numpy": "2.3"}), samples=5).sentence == (
        "RECORDED on NVIDIA H200, 2026-11-20 · driver 580.1 · torch 2.11, numpy 2.3 · n = 5 · by `gpulab record`"
    )
    bare = Evidence.recorded(_environment(driver=None, libraries={}, command=None))
    assert (bare.sentence, bare.samples) == ("RECORDED on NVIDIA H200, 2026-11-20", None)
    assert str(Evidence.measured("cpu", date="2026-11-20")) == "MEASURED on cpu"
    assert Evidence.measured("cpu", 3, "2026-11-20").date == "2026-11-20"
    modelled = Evidence.modelled("a link", "PCIe 4.0", "4 %", "H200")
    assert modelled.sentence == "MODELLED · assumes a link · source: PCIe 4.0 · known error: 4 %"
    assert (modelled.device, Evidence.modelled("a", "b").device) == ("H200", "")


def test_what_a_badge_lacks_is_named():
    """One or two words, with all that its kind needs."""
    with pytest.raises(
        InputError, match=r"^Evidence: MODELLED without assumptions and source; expected assumptions and source\. Say where"
    ):
        Evidence(Badge.MODELLED, "H200")
    with pytest.raises(InputError, match=r"^Evidence: RECORDED without date; expected device and date\."):
        Evidence(Badge.RECORDED, "H200")
    with pytest.raises(InputError, match=r"^Evidence: samples=-1; expected a count from 0\."):
        Evidence.measured("cpu", -1)
