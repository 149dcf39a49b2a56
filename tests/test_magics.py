"""%gpu_time and %%gpu_time in a real IPython shell without a terminal."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest

from gpulab import lessons, magics
from gpulab.errors import InputError
from gpulab.timing import Measurement


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython shell with the extension loaded and two arrays."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
    from traitlets.config import Config

    shell = interactive.InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_cell("import gpulab; gpulab.load_ipython_extension(get_ipython())")
    shell.run_cell("import numpy as np\nx = np.ones((8, 8)); n = 8")
    return shell


def test_line_returns_the_measurement_when_asked(shell):
    """-o gives the Measurement; options with values, expressions of variables, and the label are as written."""
    assert shell.run_cell("m = %gpu_time -o -t 50ms --flops 2*n**3 --nbytes=1KiB x @ x").success
    m = shell.user_ns["m"]
    assert isinstance(m, Measurement)
    assert (m.label, m.flops, m.nbytes) == ("x @ x", 1024.0, 1024.0)


def test_line_shows_the_table(shell, capsys):
    """Without -o the result is shown and nothing is returned."""
    shell.run_cell("m = %gpu_time -t 0.05 x @ x")
    assert shell.user_ns["m"] is None
    assert "x @ x on cpu" in capsys.readouterr().out


def test_cell_runs_in_the_namespace_and_keeps_what_it_assigns(shell):
    """Statements see the cell's variables, the line's set-up runs once, and assignments stay."""
    assert shell.run_cell("%%gpu_time -t 0.05 calls = []\ny = x + 1\ncalls.append(y)").success
    assert shell.user_ns["y"][0, 0] == 2.0
    assert len(shell.user_ns["calls"]) > 3


def test_lines_of_a_cell_stay_apart(shell):
    """A line that begins with a bracket is a statement of its own, as in any cell, and no call of what the line before it gave."""
    shell.user_ns["calls"] = []
    m = shell.run_cell_magic("gpu_time", "-o -t 0.05", "calls.append(1)\n(x * 2).sum()")
    assert isinstance(m, Measurement)
    assert len(shell.user_ns["calls"]) > 3
    assert isinstance(shell.run_cell_magic("gpu_time", "-o -t 0.05", "x\n@ x"), Measurement)  # what only brackets hold together is one


def test_code_that_begins_with_a_minus(shell):
    """A minus sign at the start of the code is no option; -- ends the options."""
    shell.run_cell("a = %gpu_time -o -t 0.05 -x")
    shell.run_cell("b = %gpu_time -o -t 0.05 -- -o.real if False else x")
    assert shell.user_ns["a"].label == "-x"
    assert shell.user_ns["b"].label.startswith("-o.real")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "there is no code"),
        ("# x @ x", "there is no code"),
        ("--bogus 1 x", "--bogus is not an option"),
        ("-t", "-t stands alone"),
        ("--transfer=no x", "--transfer has the value 'no'"),
        ("-o=m x", "-o has the value 'm'"),
        ("-t never x", "cannot read deadline 'never'"),
        ("-t float('nan') x", "deadline=nan"),
        ("-d cuda:99 x", "cuda:99"),
        ("x +", "invalid syntax"),
        ("1/0", "ZeroDivisionError (division by zero) in call 1"),
    ],
)
def test_errors_are_one_sentence_in_the_cell(shell, capsys, line, says):
    """Every error is one line on stderr without a traceback, and the cell goes on."""
    result = shell.run_cell(f"%gpu_time {line}\nafter = 1")
    printed = capsys.readouterr()
    assert result.success
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-n 10", "the set-up '-n 10' raised SyntaxError (invalid syntax"),  # as %%timeit has it
        ("y = nobody", "the set-up 'y = nobody' raised NameError (name 'nobody' is not defined)"),
    ],
)
def test_a_set_up_that_fails_is_one_sentence(shell, capsys, line, says):
    """What stands behind %%gpu_time and is neither option nor running code is told in a line, which names the options."""
    result = shell.run_cell(f"%%gpu_time {line}\nx @ x")
    printed = capsys.readouterr()
    assert result.success
    assert says in printed.err
    assert "--relative-width" in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert "Traceback" not in printed.out + printed.err


def test_registering_twice_does_no_harm(shell):
    """Loading the extension again leaves the magics working."""
    magics.register(shell)
    magics.register(shell)
    assert shell.run_cell("m = %gpu_time -o -t 0.05 n + 1").success
    assert shell.user_ns["m"].median_seconds > 0


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("x", {}, "x"),
        ("-o x", {"output": True}, "x"),
        ("--device=cpu --transfer f(x)", {"device": "cpu", "transfer": True}, "f(x)"),
        ("-d 'cpu' -w .05 f(x)", {"device": "cpu", "relative_width": ".05"}, "f(x)"),
        ("-- -o", {}, "-o"),
    ],
)
def test_options_stand_in_front_of_the_code(line, options, rest):
    """Options are taken from the front; the rest is the code as it stands."""
    assert magics._time_options(line) == (options, rest)


def test_value_that_is_missing():
    """An option without its value is named."""
    with pytest.raises(InputError, match="--flops stands alone"):
        magics._time_options("--flops")


def test_compile_shows_the_table_and_keeps_the_result(shell, capsys):
    """%%gpu_compile compiles the cell for the asked GPU, shows what each kernel takes, and leaves the result where it is asked to."""
    code = """template<int N> __global__ void t(float* x) {
    __shared__ float a[N]; a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[threadIdx.x ^ 1] + EXTRA; }"""
    shell.run_cell(f"%%gpu_compile --arch=sm_80 -DEXTRA=2 --name 't<64>' -o made\n{code}")
    made = shell.user_ns["made"]
    assert (made.arch, made.options, made.kernels["t<64>"].shared_bytes) == ("sm_80", ("-DEXTRA=2",), 256)
    assert "t<64>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("", "__global__ void k(float* x) {\n  x[0] = foo;\n}", 'line 2, column 10: identifier "foo" is undefined'),
        ("--arch", "__global__ void k() {}", "stands alone"),
        ("--arch sm_50", "__global__ void k() {}", "sm_75"),
        ("-o 3x", "__global__ void k() {}", "no name of a variable"),
        ("'open", "__global__ void k() {}", "closed quotes"),
    ],
)
def test_compile_refuses_in_the_cell(shell, capsys, line, code, words):
    """An error of the source or of the line is shown as text, without a traceback."""
    shell.run_cell(f"%%gpu_compile {line}\n{code}")
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_needs_runs_the_cell_where_the_library_is_there(shell, monkeypatch):
    """The cell's last value is returned, and what it assigns stays."""
    monkeypatch.setattr("gpulab.lessons._library.missing", lambda name: "")
    monkeypatch.setattr("gpulab.lessons._library.load", lambda name: None)
    assert shell.run_cell_magic("needs", "jax tensorflow", "kept = 20\nkept + 1") == 21
    assert shell.user_ns["kept"] == 20


def test_needs_leaves_the_cell_out_where_it_is_absent(shell, capsys, monkeypatch):
    """One sentence says how to get the library; nothing of the cell is run."""
    monkeypatch.setitem(sys.modules, "jax", None)
    assert shell.run_cell_magic("needs", "jax", "raise SystemExit") is None
    assert "'jax' is not installed" in capsys.readouterr().out
    assert shell.run_cell_magic("needs", "caffe", "raise SystemExit") is None
    assert "expected jax, tensorflow or both" in capsys.readouterr().err


def test_needs_leaves_the_cell_out_where_the_library_cannot_be_imported(shell, capsys, monkeypatch, tmp_path):
    """One that is there, and whose import fails, is told as that, and the notebook goes on."""
    from gpulab import _backends

    monkeypatch.setattr(_backends, "_made", {})
    monkeypatch.setattr(_backends, "_broken", {})
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "jax.py").write_text("raise RuntimeError('jaxlib is older than jax')\n")
    assert shell.run_cell_magic("needs", "jax", "raise SystemExit") is None
    assert "'jax' is installed here, but cannot be imported (RuntimeError: jaxlib is older" in capsys.readouterr().out


def test_what_the_line_says_reaches_the_measurement(monkeypatch):
    """Units, expressions of the learner's variables and switches; the code is the label, cut from 41 characters on."""
    monkeypatch.setattr("gpulab.timing.measure", lambda fn, **given: {"gives": fn(), **given})
    shell = types.SimpleNamespace(user_ns={"n": 8}, transform_cell=lambda code: code)
    line = "-d cpu -w .05 -t 500ms --flops 2*n --nbytes 1KiB --transfer --cold -o n  +  1"
    given = {"gives": 9, "label": "n + 1", "device": "cpu", "relative_width": 0.05, "deadline": 0.5, "flops": 16, "nbytes": 1024,
             "transfer": True, "cold": True}  # fmt: skip
    assert magics._measure_code(shell, line, None) == (given, True)
    forty = "n+" * 19 + "11"
    assert magics._measure_code(shell, forty, None) == ({"gives": 8 * 19 + 11, "label": forty, "device": None}, False)
    assert magics._measure_code(shell, f"{forty}1", None)[0]["label"] == forty[:37] + "..."
    shell.user_ns["calls"] = []
    magics._measure_code(shell, "calls.append(1)", None)
    assert shell.user_ns["calls"] == [1]
    assert magics._measure_code(shell, "k = 2", "n *= k")[0]["label"] == "n *= k"
    assert (shell.user_ns["n"], shell.user_ns["k"]) == (16, 2)


def test_memory_gives_the_value_of_the_cell(shell, capsys):
    """As the cell without the magic gives it: IPython shows it, and keeps it under Out."""
    assert shell.run_cell_magic("gpu_memory", "", "n = 3\n2 * n") == 6
    assert shell.run_cell_magic("gpu_memory", "", "2 * n;") is None


@pytest.mark.parametrize("ends", ["n = 3", "raise SystemExit"])
def test_memory_is_shown_once_however_the_cell_ends(shell, monkeypatch, ends):
    """What the cell did to the memory, also of one that fails in its last line."""
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    with contextlib.suppress(SystemExit):
        shell.run_cell_magic("gpu_memory", "", ends)
    assert [type(one).__name__ for one in shown] == ["CellMemory"]


def test_a_prediction_shows_itself_as_a_form(shell, monkeypatch, tmp_path):
    """From the moment the extension is loaded; the formatter knows it by its name alone."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr("gpulab.widgets.prediction.render", lambda *given: {"form of": given})
    asked = lessons.predict("91.8", "How long?", unit="us")
    made, _ = shell.display_formatter.mimebundle_formatter(asked)
    assert made == {"form of": (asked, None, None)}


def test_code_that_cannot_be_read_is_shown_up_to_sixty_letters(shell, capsys):
    """The sentence keeps its end in sight."""
    shell.run_cell(f"%gpu_time {'1+' * 40}")
    assert capsys.readouterr().err.startswith(f"%gpu_time: cannot read '{'1+' * 30}' (invalid syntax")


@pytest.mark.parametrize(("magic", "line"), [("gpu_time", "-t 0.01"), ("gpu_memory", ""), ("needs", "jax")])
def test_a_cell_has_no_future_of_ours(shell, monkeypatch, magic, line):
    """An annotation is the type itself, as in any cell; torch.jit.script and others read it."""
    monkeypatch.setattr("gpulab.lessons._library.missing", lambda name: "")
    monkeypatch.setattr("gpulab.lessons._library.load", lambda name: None)
    shell.run_cell_magic(magic, line, "def f(x: int): return x\nf(1)")
    assert shell.user_ns["f"].__annotations__ == {"x": int}


def test_an_interrupt_before_the_cell_begins_is_told_as_it_is(shell, monkeypatch):
    """Loading what follows the memory takes seconds the first time: cut off in it, the cell has no memory to show."""

    class Loading:
        def __init__(self, names):
            pass

        def __enter__(self):
            raise KeyboardInterrupt

        def __exit__(self, *error):
            pass

        def result(self):
            raise AttributeError("nothing was followed")

    monkeypatch.setattr("gpulab.memory.Watch", Loading)
    with pytest.raises(KeyboardInterrupt):
        shell.run_cell_magic("gpu_memory", "", "n = 3")
    assert shell.user_ns["n"] == 8


def test_memory_takes_no_options(capsys):
    """The cell is not run."""
    assert magics.gpu_memory(None, " -x ", "raise SystemExit") is None
    said = "%%gpu_memory: '-x' is not an option; expected nothing behind the magic. Put code below it.\n"
    assert capsys.readouterr() == ("", said)


def test_a_share_of_the_gpu_is_taken_where_the_class_sets_one(monkeypatch, capsys):
    """Its sentence is printed; without the setting nothing is asked."""
    answers = iter(["Half is yours.", None])
    monkeypatch.setattr("gpulab.memory._share.apply_share", lambda: next(answers))
    monkeypatch.delenv("GPULAB_GPU_MEMORY", raising=False)
    magics._take_share()
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("GPULAB_GPU_MEMORY", "0.5")
    magics._take_share()
    magics._take_share()
    assert capsys.readouterr().out == "Half is yours.\n"
