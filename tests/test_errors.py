"""The exceptions that gpulab raises on purpose."""

import sys
import types

import pytest

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


def test_the_line_that_installs_an_extra(monkeypatch):
    """It names the extra, and what pins the versions."""
    monkeypatch.setattr(sys, "base_prefix", f"{sys.prefix}/base")  # whichever Python runs this: Debian's own has the prefix /usr
    line = "Run `.venv/bin/pip install -c constraints.txt -e '.[jax]'` in gpulab's folder, and restart the kernel."
    assert errors.install_extra("jax") == line


def test_without_an_environment_of_its_own_the_line_names_none(monkeypatch):
    """Conda's environment and Colab are no venv (PEP 405: prefix and base_prefix are one): no .venv to call, no pins over what is there."""
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(errors, "_this_python", lambda: "python")
    assert errors.install_extra("jax") == "Run `python -m pip install -e '.[jax]'` in gpulab's folder, and restart the kernel."
    monkeypatch.setattr(sys, "platform", "win32")
    assert errors.install_extra("jax") == """Run `python -m pip install -e ".[jax]"` in gpulab's folder, and restart the kernel."""


@pytest.mark.parametrize(
    ("ipython", "command"),
    [
        (None, "`python -m pip install x`"),  # a script, a command: IPython was not imported
        (types.SimpleNamespace(get_ipython=lambda: None), "`python -m pip install x`"),  # imported by somebody, and runs no cells
        (types.SimpleNamespace(get_ipython=object), "`%pip install x`"),
    ],
)
def test_pip_is_that_of_the_python_that_asks(ipython, command, monkeypatch):
    """`pip` alone is whichever comes first in PATH. IPython's manual: %pip runs "the pip package manager within the current kernel"."""
    if ipython is None:
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(errors, "_this_python", lambda: "python")
    assert errors.pip_command("install x") == command


@pytest.mark.parametrize(
    ("on_the_path", "running", "command"),
    [
        ("/home/me/.venv/bin", "/home/me/.venv/bin/python3", "python"),  # the environment is active
        (None, "/home/me/.venv/bin/python", "/home/me/.venv/bin/python"),  # Debian has no python, and .venv/bin/gpulab asked
        ("/usr/bin", "/home/me/.venv/bin/python", "/home/me/.venv/bin/python"),  # it is another one
        ("/usr/bin", "/home/my own/.venv/bin/python", '"/home/my own/.venv/bin/python"'),
    ],
)
def test_beside_an_environment_python_is_named_by_its_path(on_the_path, running, command, monkeypatch):
    """What is typed must start the Python that lacks the package: the README runs .venv/bin/gpulab without activating anything."""
    monkeypatch.setattr(sys, "executable", running)
    monkeypatch.setattr(errors.shutil, "which", lambda name: on_the_path and f"{on_the_path}/{name}")
    assert errors.pip_command("install x", in_notebook=False) == f"`{command} -m pip install x`"


def test_on_windows_commands_are_those_of_its_shell(monkeypatch):
    """README's own lines for Windows: no make, programs in Scripts, and " for ', which is a letter to cmd."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "base_prefix", "C:")
    monkeypatch.setattr(errors, "_this_python", lambda: "python")
    line = r"""Run `.venv\Scripts\pip install -c constraints.txt -e ".[jax]"` in gpulab's folder, and restart the kernel."""
    assert errors.install_extra("jax") == line
    assert errors.set_up_command() == r"`py tools\setup_env.py`"
    monkeypatch.setattr(_doctor.importlib.metadata, "version", {"numpy": "1.26", "torch": ""}.__getitem__)
    too_old, partly = (_doctor._package(name, "2.0").remedy for name in ("numpy", "torch"))
    assert too_old == r"""Run `py tools\setup_env.py`, or `python -m pip install "numpy>=2.0"`."""
    assert partly == """Run `python -m pip install --ignore-installed "torch>=2.0"`."""
