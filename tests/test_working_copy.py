"""The working copy: filled from the originals, brought up to date, reset, and never written over."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import _working_copy as wc
from gpulab.errors import InputError

NAMES = ("00_start_here.ipynb", "02_data_transfer.ipynb")


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """A course of two notebooks and a picture."""
    folder = tmp_path / "notebooks"
    (folder / "images").mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_text(f"{name}, first edition")
    (folder / "images" / "bus.svg").write_text("<svg/>")
    return folder


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Where the working copy will be."""
    return tmp_path / "my-notebooks"


def shown(folder: Path) -> set[str]:
    """The files that a learner sees in a folder."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if not path.parts[0].startswith(".")}


def test_first_update_gives_out_everything(originals: Path, copy: Path) -> None:
    """A new working copy holds each original, pictures in folders too, and what is not for learners stays out."""
    (originals / ".ipynb_checkpoints").mkdir()
    (originals / ".ipynb_checkpoints" / "x.ipynb").write_text("x")
    (originals / "conftest.py").write_text("x")
    changes = wc.update(originals, copy)
    assert shown(copy) == {*NAMES, "images/bus.svg"}
    assert set(changes.added) == shown(copy)
    assert (copy / NAMES[0]).read_text() == f"{NAMES[0]}, first edition"


def test_second_update_changes_nothing(originals: Path, copy: Path) -> None:
    """With nothing new there is nothing to say."""
    wc.update(originals, copy)
    assert wc.update(originals, copy).sentences == ()


def test_untouched_file_is_renewed(originals: Path, copy: Path) -> None:
    """What the learner did not edit follows the original."""
    wc.update(originals, copy)
    (originals / NAMES[1]).write_text("second edition")
    assert wc.update(originals, copy).renewed == (NAMES[1],)
    assert (copy / NAMES[1]).read_text() == "second edition"


def test_edited_file_is_kept_and_the_newer_original_lies_beside_it(originals: Path, copy: Path) -> None:
    """The learner's version stays; the newer original is offered once under its own name, and that is said."""
    wc.update(originals, copy)
    (copy / NAMES[1]).write_text("mine")
    assert wc.update(originals, copy).sentences == ()
    (originals / NAMES[1]).write_text("second edition")
    changes = wc.update(originals, copy)
    assert changes.beside == ((NAMES[1], "02_data_transfer.new.ipynb"),)
    assert "02_data_transfer.new.ipynb" in " ".join(changes.sentences)
    assert (copy / NAMES[1]).read_text() == "mine"
    assert (copy / "02_data_transfer.new.ipynb").read_text() == "second edition"
    (copy / "02_data_transfer.new.ipynb").unlink()
    assert wc.update(originals, copy).sentences == ()


def test_offer_that_the_learner_edited_is_kept_too(originals: Path, copy: Path) -> None:
    """A third edition does not write over the second, once the learner has worked in it."""
    wc.update(originals, copy)
    (copy / NAMES[1]).write_text("mine")
    (originals / NAMES[1]).write_text("second edition")
    wc.update(originals, copy)
    (copy / "02_data_transfer.new.ipynb").write_text("mine as well")
    (originals / NAMES[1]).write_text("third edition")
    assert wc.update(originals, copy).beside == ((NAMES[1], "02_data_transfer.new-2.ipynb"),)
    assert (copy / "02_data_transfer.new.ipynb").read_text() == "mine as well"


def test_deleted_file_comes_back(originals: Path, copy: Path) -> None:
    """Deleting a notebook is how many people ask for a fresh one."""
    wc.update(originals, copy)
    (copy / NAMES[0]).unlink()
    assert wc.update(originals, copy).added == (NAMES[0],)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 99, "files": {}}', '{"schema": 1, "files": {"a": {"given": 3}}}', "[" * 100_000]
)
def test_damaged_manifest_loses_nothing(originals: Path, copy: Path, text: str) -> None:
    """Without its record, gpulab takes every file that differs for the learner's, keeps it, and says so."""
    wc.update(originals, copy)
    (copy / NAMES[1]).write_text("mine")
    manifest = copy / ".gpulab" / "given-out.json"
    manifest.write_text(text)
    changes = wc.update(originals, copy)
    assert (copy / NAMES[1]).read_text() == "mine"
    assert "damaged" in changes.sentences[0]
    assert (copy / ".gpulab" / "given-out.json.damaged").read_text() == text
    assert json.loads(manifest.read_text())["schema"] == 1


def test_reset_brings_the_original_back_and_keeps_the_edited_one(originals: Path, copy: Path) -> None:
    """The learner's version stays under a dated name."""
    wc.update(originals, copy)
    (copy / NAMES[1]).write_text("mine")
    found, kept = wc.reset(originals, copy, "02", now=datetime.datetime(2026, 3, 1, 14, 5, 6))
    assert (found, kept) == (NAMES[1], "02_data_transfer.2026-03-01-140506.ipynb")
    assert (copy / NAMES[1]).read_text() == f"{NAMES[1]}, first edition"
    assert (copy / kept).read_text() == "mine"
    assert wc.update(originals, copy).sentences == ()


def test_reset_of_an_unedited_file_keeps_nothing(originals: Path, copy: Path) -> None:
    """There is no second copy of what is the original already."""
    wc.update(originals, copy)
    assert wc.reset(originals, copy, NAMES[0]) == (NAMES[0], None)
    assert shown(copy) == {*NAMES, "images/bus.svg"}


@pytest.mark.parametrize("name", ["07", "", "../02_data_transfer.ipynb", "/etc/passwd"])
def test_reset_of_an_unknown_name_is_refused(originals: Path, copy: Path, name: str) -> None:
    """The message names what there is; nothing is touched."""
    wc.update(originals, copy)
    with pytest.raises(InputError, match=f"there is no notebook {re.escape(repr(name))}; expected one of 00_start_here"):
        wc.reset(originals, copy, name)


def test_reset_of_an_unclear_name_names_what_it_fits(originals: Path, copy: Path) -> None:
    """Both notebooks begin with a zero: more of the name is asked for, and nothing is touched."""
    wc.update(originals, copy)
    (copy / NAMES[0]).write_text("mine")
    with pytest.raises(InputError, match=rf"'0' fits {NAMES[0]}, {NAMES[1]}; expected a name that fits one file"):
        wc.reset(originals, copy, "0")
    assert (copy / NAMES[0]).read_text() == "mine"


@pytest.mark.parametrize("place", [".", "mine"])
def test_originals_are_never_the_working_copy(originals: Path, place: str) -> None:
    """`--dir notebooks` would put the learner's edits into the course."""
    with pytest.raises(InputError, match="--dir"):
        wc.update(originals, originals / place)


def test_working_copy_that_is_a_file_is_refused(originals: Path, copy: Path) -> None:
    """The message says what to pass instead."""
    copy.write_text("a file")
    with pytest.raises(InputError, match="is a file"):
        wc.update(originals, copy)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("edition"), st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.sampled_from([*NAMES, "02_data_transfer.new.ipynb"]), st.integers(0, 3)),
        st.tuples(st.just("reset"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("damage"), st.just(""), st.just(0)),
        st.tuples(st.just("update"), st.just(""), st.just(0)),
    ),
    max_size=12,
)


@given(steps=STEPS)
def test_no_order_of_events_loses_what_the_learner_wrote(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]]
) -> None:
    """Whatever the learner wrote last under any name is somewhere in the working copy, after any updates and resets."""
    root = tmp_path_factory.mktemp("events")
    originals, copy = root / "notebooks", root / "mine"
    originals.mkdir()
    for name in NAMES:
        (originals / name).write_text(f"edition 0 of {name}")
    wc.update(originals, copy)
    wrote: dict[str, str] = {}
    for kind, name, number in steps:
        if kind == "edition":
            (originals / name).write_text(f"edition {number} of {name}")
        elif kind == "edit":
            wrote[name] = f"mine {number} in {name}"
            (copy / name).write_text(wrote[name])
        elif kind == "reset":
            wc.reset(originals, copy, name)
        elif kind == "damage":
            (copy / ".gpulab" / "given-out.json").write_text("?")
        else:
            wc.update(originals, copy)
        there = {path.read_text() for path in copy.glob("*.ipynb")}
        assert set(wrote.values()) <= there
        assert all((copy / n).exists() for n in NAMES)


def test_the_changes_in_words() -> None:
    """Warnings first; then what is new, what was renewed, and one line for each file that lies beside an edited one."""
    changes = wc.Update(("a", "b"), ("c", "d"), (("e", "e.new"), ("f", "f.new")), ("Look.",))
    assert changes.sentences == (
        "Look.",
        "New in your working copy: a, b.",
        "Brought up to date (you had not changed them): c, d.",
        "You have changed e, so it was kept; the newer original lies beside it as e.new.",
        "You have changed f, so it was kept; the newer original lies beside it as f.new.",
    )
    assert wc.Update().sentences == ()


def test_a_name_is_free_from_the_second_on(tmp_path: Path) -> None:
    """Taken names are counted past; the suffix stays."""
    for number, name in enumerate(("x.ipynb", "x-2.ipynb", "x-3.ipynb")):
        assert wc._free_name(tmp_path / "x.ipynb") == tmp_path / name, number
        (tmp_path / name).write_text("")


@pytest.mark.parametrize("give_out", [wc.update, lambda o, c: wc.reset(o, c, NAMES[0])])
def test_a_copy_may_not_lie_in_the_originals(give_out: Callable[[Path, Path], object], originals: Path) -> None:
    """Neither is written to then; originals that lie in the copy are no harm."""
    before = sorted(originals.rglob("*"))
    for copy in (originals, originals / "mine"):
        with pytest.raises(InputError, match="is the folder of the originals or lies in it; expected another folder"):
            give_out(originals, copy)
    assert sorted(originals.rglob("*")) == before
    give_out(originals, originals.parent)
