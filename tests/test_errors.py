"""The exceptions that gpulab raises on purpose."""

import sys

from gpulab import errors
from gpulab.devices import _doctor


def test_every_error_is_a_gpulab_error_and_keeps_its_built_in_parent():
    """One parent catches all of ours; each also is what older code expects."""
    parents = {"InputError": ValueError, "DeviceError": RuntimeError, "OutOfMemoryError": MemoryError, "CopyRequiredError": ValueError}
    for name, parent in parents.items():
        assert issubclass(getattr(errors, name), parent)
    ours = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert all(issubclass(c, errors.GpulabError) for c in ours)


def test_what_is_shown_is_cut_at_its_length_and_not_before():
    """Ten characters stay, eleven become seven and three dots; lines are joined, a full stop goes, and a broken repr names the type."""

    class Broken:
        """An object whose repr fails."""

        def __repr__(self):
            raise RuntimeError

    assert errors.shown(12345678, 10) == "12345678"
    assert errors.shown(1234567890, 10) == "1234567890"
    assert errors.shown(12345678901, 10) == "1234567..."
    assert errors.shown("a" * 58) == repr("a" * 58)  # sixty with its quotation marks, the most by default
    assert len(errors.shown("a" * 59)) == 60
    assert errors.message_of(ValueError("one\n  two.")) == "one two"
    assert errors.message_of(ValueError("a" * 200)) == "a" * 200
    assert errors.message_of(ValueError("a" * 201)) == "a" * 197 + "..."
    assert errors.shown(Broken()) == "<Broken>"


def test_a_message_is_shown_by_a_terminal_and_not_obeyed():
    """What clears the screen, turns the line or is half a character stands there as Python writes it; other scripts stay."""
    assert errors.message_of(ValueError("\x1b[2J \u202eno\ud800")) == r"\x1b[2J \u202eno\ud800"
    assert errors.printable("Zoë 東京 5 %") == "Zoë 東京 5 %"


def test_an_error_keeps_what_a_program_asks_it_for():
    """Beside its sentence: what was measured, the line to blame, the compiler's words, the ranks; all empty where none is known."""
    measured = object()
    assert (str(errors.MeasurementError("a.", measured)), errors.MeasurementError("a.", measured).partial) == ("a.", measured)
    assert errors.MeasurementError("a.").partial is None
    assert (str(errors.KernelError("a.", 3)), errors.KernelError("a.", 3).line, errors.KernelError("a.").line) == ("a.", 3, None)
    compiled, plain = errors.CompileError("a.", 4, 5, "all"), errors.CompileError("a.")
    assert (str(compiled), compiled.line, compiled.column, compiled.log) == ("a.", 4, 5, "all")
    assert (plain.line, plain.column, plain.log) == (None, None, "")
    ranked, alone = errors.RankDiedError("a.", (1,), (0, 2), "barrier"), errors.RankError("a.")
    assert (str(ranked), ranked.ranks, ranked.waiting, ranked.collective) == ("a.", (1,), (0, 2), "barrier")
    assert (alone.ranks, alone.waiting, alone.collective) == ((), (), None)


def test_the_line_that_installs_an_extra():
    """It names the extra, and what pins the versions."""
    line = "Run `.venv/bin/pip install -c constraints.txt -e '.[jax]'` in gpulab's folder, and restart the kernel."
    assert errors.install_extra("jax") == line


def test_on_windows_commands_are_those_of_its_shell(monkeypatch):
    """README's own lines for Windows: no make, programs in Scripts, and " for ', which is a letter to cmd."""
    monkeypatch.setattr(sys, "platform", "win32")
    line = r"""Run `.venv\Scripts\pip install -c constraints.txt -e ".[jax]"` in gpulab's folder, and restart the kernel."""
    assert errors.install_extra("jax") == line
    assert errors.set_up_command() == r"`py tools\setup_env.py`"
    monkeypatch.setattr(_doctor.importlib.metadata, "version", {"numpy": "1.26", "torch": ""}.__getitem__)
    too_old, partly = (_doctor._package(name, "2.0").remedy for name in ("numpy", "torch"))
    assert too_old == r"""Run `py tools\setup_env.py`, or `pip install "numpy>=2.0"`."""
    assert partly == """Run `pip install --ignore-installed "torch>=2.0"`."""
