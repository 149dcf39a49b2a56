"""``gpulab html`` as a command, with the running left out: its options, its folders and its last line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpulab import _lab
from gpulab._html import _pages
from gpulab.cli import main


def test_the_command_passes_its_options_on_and_says_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without options the course's own notebooks, all of them, without solutions; the last line counts pages, bytes and seconds."""
    asked: list[tuple[Path, Path, dict[str, Any]]] = []

    def write(source: Path, out: Path, **options: Any) -> _pages.Written:
        options.pop("say")("01_a.ipynb: 2 s")
        asked.append((source, out, options))
        return _pages.Written(out / "index.html", 1 if options["only"] == ("03",) else 3, 1_500_000, 7.4)

    monkeypatch.setattr(_pages, "write_course", write)
    assert main(["html", f"--out={tmp_path}"]) == 0
    assert asked.pop() == (_lab.find_originals(), tmp_path, {"only": (), "executed": None, "solutions": False})
    said = capsys.readouterr().out
    assert said == f"01_a.ipynb: 2 s\n3 pages, 1.5 MB, 7 s. Open {tmp_path / 'index.html'}\n"
    main(["html", f"--out={tmp_path}", "--only", "03"])
    assert asked.pop()[2]["only"] == ("03",)
    assert capsys.readouterr().out.splitlines()[1].startswith("1 page, 1.5 MB")
    main(["html", "--out=o", "--notebooks=n", "--only", "02", "05", "--executed=e", "--solutions"])
    assert asked.pop() == (Path("n"), Path("o"), {"only": ("02", "05"), "executed": Path("e"), "solutions": True})
    with pytest.raises(SystemExit):
        main(["html"])


def test_a_folder_in_the_home_is_found_where_no_shell_writes_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves the ~ of --out=~/pages as it is: none of the three folders is one called ~."""
    asked: list[tuple[Path, Path, Path]] = []

    def write(source: Path, out: Path, executed: Path, **options: Any) -> _pages.Written:
        asked.append((source, out, executed))
        return _pages.Written(out / "index.html", 1, 0, 0.0)

    monkeypatch.setattr(_pages, "write_course", write)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    assert main(["html", "--out=~/pages", "--notebooks=~/n", "--executed=~/e"]) == 0
    assert asked == [(tmp_path / "n", tmp_path / "pages", tmp_path / "e")]


@pytest.mark.parametrize("option", ["out", "notebooks", "executed"])
def test_a_home_that_is_not_here_is_told(option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that begins with the command; nothing is run."""
    monkeypatch.setattr(_pages, "write_course", lambda *given, **options: pytest.fail("it ran"))
    folders = {"out": "o", "notebooks": "n", "executed": "e"} | {option: "~nosuchuser/x"}
    assert main(["html", *(f"--{name}={folder}" for name, folder in folders.items())]) == 2
    said = "gpulab: html: ~nosuchuser/x begins with the home of a user that is not here; expected a path."
    assert capsys.readouterr().err.startswith(said)
