"""MachineCard shows what ``machine`` found, problems first."""

from __future__ import annotations

import dataclasses

import pytest
from control_tables import offers_what_it_takes

from gpulab import devices
from gpulab.devices import Problem
from gpulab.widgets import MachineCard


def test_the_card_shows_the_machine_at_once() -> None:
    """Without any click the table holds the processor's name and the picture the sizes of the memories."""
    card = MachineCard()
    m = card.result
    assert m.processor.name in dict(map(tuple, card._results.rows))["processor"]
    assert "main memory" in card._results.caption
    assert card._results.evidence[0]["badge"] == "MEASURED"


def test_problems_come_first_with_their_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be mended heads the table; the switch leaves the rest out; Refresh asks again."""
    real = devices.machine()
    bad = dataclasses.replace(
        real,
        problems=(
            Problem("error", "no-driver", "There is no driver.", "Install it."),
            Problem("info", "quiet", "All is well.", "Nothing."),
        ),
    )
    monkeypatch.setattr(devices, "machine", lambda: bad)
    card = MachineCard()
    assert card._results.rows[0] == ["error: no-driver", "There is no driver. Install it."]
    assert card._results.message == "1 thing to mend: the first row of the table."
    card.set(problems_only=True)
    assert len(card._results.rows) == 1
    assert card._picture.outputs == ()
    two = (bad.problems[0], Problem("warning", "full-disk", "The disk is full.", "Empty it."))
    monkeypatch.setattr(devices, "machine", lambda: dataclasses.replace(bad, problems=two))
    card.run(wait=True)
    assert card._results.message == "2 things to mend: the first rows of the table."
    assert [row[0] for row in card._results.rows] == ["error: no-driver", "warning: full-disk"]
    monkeypatch.setattr(devices, "machine", lambda: dataclasses.replace(bad, problems=()))
    card.run(wait=True)
    assert card._results.rows == []
    assert card._results.message == "Nothing to mend."


def test_a_machine_that_cannot_be_asked_is_told_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a refresh fails, the last card stays and the error line says why."""
    card = MachineCard()
    rows = card._results.rows

    def broken() -> None:
        raise OSError("the device vanished")

    monkeypatch.setattr(devices, "machine", broken)
    card.run(wait=True)
    assert card.error.startswith("OSError: the device vanished")
    assert card._results.rows == rows


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(MachineCard())
