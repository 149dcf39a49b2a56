"""Five hundred damaged recordings: each is refused with a sentence, or read as exactly what the file says."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from test_recordings import a_recording

from gpulab import recordings
from gpulab.errors import RecordingError

COUNT = 500
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 1e-320, 2**70, "", "nan", "inf", "x" * 5000, [], {}, [[[]]], {"schema": "Recording"}, "\u202e", "1e5", 3.5,
)  # fmt: skip
WORDS = ("1e999", "-1e999", "NaN", "Infinity", "null", "[" * 3000, '{"a":' * 3000, "\\u0000", "0x10", "1_000", "00", "''", "//")


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document below its root."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, item in inner for found in [(*path, key), *places(item, (*path, key))]]


def parent(data: Any, path: tuple[Any, ...]) -> Any:
    """What holds the place."""
    for key in path[:-1]:
        data = data[key]
    return data


def replaced(data: Any, chance: random.Random) -> str:
    """Another value at a random place."""
    path = chance.choice(places(data))
    parent(data, path)[path[-1]] = chance.choice(VALUES)
    return json.dumps(data)


def removed(data: Any, chance: random.Random) -> str:
    """A place less."""
    path = chance.choice(places(data))
    del parent(data, path)[path[-1]]
    return json.dumps(data)


def renamed(data: Any, chance: random.Random) -> str:
    """A key under another name."""
    path = chance.choice([p for p in places(data) if isinstance(p[-1], str)])
    holder = parent(data, path)
    holder[path[-1] + chance.choice((" ", "s", "_", "\u0000"))] = holder.pop(path[-1])
    return json.dumps(data)


def exchanged(data: Any, chance: random.Random) -> str:
    """Two places that changed their values."""
    one, other = chance.sample(places(data), 2)
    first, second = copy.deepcopy(parent(data, one)[one[-1]]), copy.deepcopy(parent(data, other)[other[-1]])
    parent(data, one)[one[-1]] = second
    with contextlib.suppress(KeyError, IndexError, TypeError):  # the second place may have lain inside the first
        parent(data, other)[other[-1]] = first
    return json.dumps(data)


def doubled(data: Any, chance: random.Random) -> str:
    """An entry twice, or its samples many times."""
    entry = copy.deepcopy(chance.choice(data["entries"]))
    if chance.random() < 0.5 or entry["timing"] is None:
        data["entries"].append(entry)
    else:
        data["entries"][0]["timing"]["samples_seconds"] *= 50
    return json.dumps(data)


def typed_over(data: Any, chance: random.Random) -> str:
    """Characters of the text replaced, taken out or put in."""
    text = json.dumps(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text))
        new = chance.choice((chr(chance.randrange(32, 127)), "", chance.choice(WORDS), text[at : at + 40]))
        text = text[:at] + new + text[at + chance.randrange(3) :]
    return text


def numbered(data: Any, chance: random.Random) -> str:
    """A number written in another way."""
    text = json.dumps(data)
    digits = [k for k, letter in enumerate(text) if letter.isdigit()]
    at = chance.choice(digits)
    return text[:at] + chance.choice(WORDS) + text[at + 1 :]


KINDS: tuple[Callable[[Any, random.Random], str], ...] = (replaced, removed, renamed, exchanged, doubled, typed_over, numbered)


def same(read: Any, written: Any) -> bool:
    """Whether what was read is what the file says; a whole number may have become a float of the same value."""
    if isinstance(read, dict) and isinstance(written, dict):
        return read.keys() == written.keys() and all(same(read[key], written[key]) for key in read)
    if isinstance(read, list) and isinstance(written, list):
        return len(read) == len(written) and all(map(same, read, written))
    if isinstance(read, (int, float)) and isinstance(written, (int, float)) and not isinstance(written, bool):
        return not isinstance(read, bool) and math.isfinite(written) and read == written
    return type(read) is type(written) and read == written


def test_each_damaged_file_is_refused_or_read_as_it_is(tmp_path: pathlib.Path) -> None:
    """No mutation gives another error than RecordingError, and none is read as something that the file does not say."""
    plain, read_right = a_recording().to_dict(), 0
    for number in range(COUNT):
        chance = random.Random(number)
        kind = chance.choice(KINDS)
        text = kind(copy.deepcopy(plain), chance)
        path = tmp_path / f"{number}.json"
        path.write_text(text, encoding="utf-8")
        try:
            found = recordings.read(path)
        except RecordingError as error:
            too_long = [str(error)] if len(str(error)) > 1500 else []
            assert too_long == [], (number, kind.__name__)
            continue
        read_right += 1
        assert same(found.to_dict(), json.loads(text)), (number, kind.__name__, text[:300])
    print(f"{COUNT - read_right} refused, {read_right} read as they say")
    assert 20 < read_right < COUNT / 2, "some mutations change only what may be anything, such as a name; most do not"


def test_the_comparison_tells_difference_apart() -> None:
    """What the test above leans on: other numbers, kinds and keys are not the same."""
    assert same({"a": [1.0, "x", None]}, {"a": [1, "x", None]})
    for read, written in (({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ([1], [1, 2]), ("inf", math.inf), (1, True), (None, 0), ("1", 1)):
        assert not same(read, written), (read, written)


@pytest.mark.parametrize("text", ["\ufeff{}", "\x00", "[]", '"recording"', "1e999", "{" * 100_000])
def test_other_files_are_refused(tmp_path: pathlib.Path, text: str) -> None:
    """A byte order mark, nothing but a number, or braces without end."""
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordingError):
        recordings.read(path)


@pytest.mark.parametrize("found", ["1980.0", '"n": 1024', '"a": [1'])
def test_a_number_beyond_all_floats_is_refused(tmp_path: pathlib.Path, found: str) -> None:
    """Infinity, written so that JSON allows it: a clock, a parameter, what the machine said."""
    text = json.dumps(a_recording().to_dict())
    assert found in text
    path = tmp_path / "x.json"
    path.write_text(text.replace(found, found.rstrip("0.1249") + "1e999"))
    with pytest.raises(RecordingError, match="1e999"):
        recordings.read(path)
