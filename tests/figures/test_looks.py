"""Each picture looks as its table says: what stands where, how large, in which colour and pattern, and what the mouse is told.

A line of the tables is one part of a picture. They leave out what all pictures share (``test_style`` has it) and what they mean, which the
other tests of this folder hold with values by hand. Each picture is compared beside those tests, in the file of its module.
"""

from __future__ import annotations

import importlib
import pathlib

from looks import LOOKS


def test_every_picture_has_its_table() -> None:
    """No picture without one, no table of none."""
    files = [file.stem for file in pathlib.Path(__file__).parent.glob("test_*.py") if file.name != pathlib.Path(__file__).name]
    pictures = [name for file in files for name in getattr(importlib.import_module(file), "PICTURES", ())]
    assert sorted(LOOKS) == sorted([*pictures, "class_predictions", "class_roofline"])
