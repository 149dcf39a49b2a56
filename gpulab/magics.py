"""The IPython magics and display hooks that ``%load_ext gpulab`` registers."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import os
import re
import shlex
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.magic import no_var_expand
from IPython.display import display

import gpulab
from gpulab import _backends
from gpulab.errors import GpulabError, InputError, message_of, shown
from gpulab.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from gpulab.timing import Measurement


def load_ipython_extension(shell: Any) -> None:
    """Register all magics and display hooks with an IPython shell (``%load_ext gpulab``); calling
    it twice does no harm.
    """
    for magic in (gpu_time, gpu_memory, gpu_compile, simulate, needs):
        shell.register_magic_function(
            types.MethodType(magic, shell),  # keeps the docstring, which %gpu_time? shows
            "line_cell" if magic is gpu_time else "cell",
            magic.__name__,
        )
    # Show predictions as forms. The type is registered by name, so nothing heavy is loaded before
    # the first prediction.
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("gpulab.lessons._predictions", "Prediction", _show_prediction)
    # if a class shares a GPU, limit this kernel to its share of the memory
    if os.environ.get("GPULAB_GPU_MEMORY") and (
        sentence := gpulab.memory.held_memory.apply_share()
    ):
        print(sentence)


def _show_prediction(prediction: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    from gpulab.widgets.prediction import render

    return render(prediction, include, exclude)


# A learner's code is compiled with dont_inherit; otherwise this file's own "from __future__ import
# annotations" would apply to it.


class _Parser(argparse.ArgumentParser):
    """The options of a magic; ``usage`` is what an error names as expected."""

    def __init__(self, magic: str, usage: str) -> None:
        super().__init__(prog=magic, usage=usage, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise an InputError of one sentence, where argparse would exit."""
        raise InputError(f"{self.prog}: {message}; expected {self.usage}")


# Named like the arguments of gl.measure; only "-o", which returns the Measurement, is not one.
_OPTIONS = (
    "-d DEVICE, -w RELATIVE_WIDTH, -t DEADLINE, --flops FLOPS, --nbytes BYTES, --transfer, --cold "
    "and -o"
)
_TIME = _Parser(
    "%gpu_time",
    f"some of {_OPTIONS}, then code. Put -- before code that begins with a minus.",
)
for _names in (
    ("-d", "--device"),
    ("-w", "--relative-width"),
    ("-t", "--deadline"),
    ("--flops",),
    ("--nbytes",),
):
    _TIME.add_argument(*_names, default=argparse.SUPPRESS, type=lambda value: value.strip("\"'"))
for _name in ("--transfer", "--cold", "-o"):
    _TIME.add_argument(_name, action="store_true", default=argparse.SUPPRESS)
_TIME.add_argument("code", nargs=argparse.REMAINDER)
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")  # text in quotes may contain spaces
_LONGEST_LABEL = 40


def _time_options(line: str) -> tuple[dict[str, str | bool], str]:
    """Split the options off the front of a magic's line; return them and the code behind them."""
    words = [*_WORD.finditer(line)]
    options = vars(_TIME.parse_args([word.group() for word in words]))
    code = options.pop("code")
    rest = line[words[-len(code)].start() :].strip() if code else ""
    return options, rest.removeprefix("--").strip() if rest.startswith("-- ") else rest


def _number(option: str, text: str, namespace: dict[str, Any]) -> Any:
    """Read an option's value: a number with a unit, or an expression of the learner's variables
    such as 2*n**3.
    """
    with contextlib.suppress(KeyError, InputError):
        return {"deadline": parse_seconds, "nbytes": parse_bytes}[option](text)
    try:
        return eval(text, namespace)
    except Exception as error:
        raise InputError(
            f"%gpu_time: cannot read {option} {text!r} ({error}); expected a number or an "
            "expression without spaces."
        ) from error


def _compiled(shell: Any, code: str) -> tuple[Callable[[], Any], Any]:
    """Return a callable that runs the code, and the device of the arrays that its statements use.

    The device is None if they use no arrays, and for a single expression, whose device ``measure``
    finds itself.
    """
    source, namespace = shell.transform_cell(code), shell.user_ns
    try:
        statements = len(ast.parse(source).body)
    except SyntaxError:
        statements = 1  # perhaps an expression over several lines, which is valid in brackets
    if not statements:  # nothing, or comments alone
        raise InputError(
            "%gpu_time: there is no code; expected an expression on the line, such as %gpu_time x "
            "@ y, or statements under %%gpu_time."
        )
    # Only a single statement is put in brackets: two, such as f() and (x + y).sum(), could become
    # one expression, a call of f's result.
    if statements == 1:
        with contextlib.suppress(SyntaxError):
            text = f"lambda: (\n{source}\n)"
            function = compile(text, "<%gpu_time>", "eval", dont_inherit=True)
            return eval(function, namespace), None
    try:
        compiled = compile(source, "<%gpu_time>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise InputError(
            f"%gpu_time: cannot read {code.strip()[:60]!r} ({error.msg}); expected Python code. "
            "Fix it and run the cell again."
        ) from error
    # variables that the statements assign stay in the namespace, as in any cell
    run = functools.partial(exec, compiled, namespace)
    return run, gpulab.timing.device_of(types.FunctionType(compiled, namespace))


def _measure_code(shell: Any, line: str, cell: str | None) -> tuple[Measurement, bool]:
    options, rest = _time_options(line)
    output = bool(options.pop("o", False))
    code = rest if cell is None else cell
    namespace: dict[str, Any] = shell.user_ns
    arguments: dict[str, Any] = {
        keyword: value
        if keyword == "device" or value is True
        else _number(keyword, str(value), namespace)
        for keyword, value in options.items()
    }
    if cell is not None and rest:  # the set-up, which is run once
        text = shell.transform_cell(rest)
        try:
            exec(compile(text, "<%%gpu_time set-up>", "exec", dont_inherit=True), namespace)
        except Exception as error:
            raise InputError(
                f"%%gpu_time: the set-up {shown(rest)} raised {type(error).__name__} "
                f"({message_of(error)}); expected it to run. The text after the options is run "
                f"once, as set-up; the options are {_OPTIONS}."
            ) from error
    fn, device = _compiled(shell, code)
    arguments.setdefault("device", device if device is not None and not device.is_cpu else None)
    text = " ".join(code.split())
    label = text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 3] + "..."
    return gpulab.measure(fn, label=label, **arguments), output


# IPython would replace {n} on the line by the value of n: a set by a number, and the work of an
# f-string by a finished text.
@no_var_expand  # type: ignore[untyped-decorator]
def gpu_time(shell: Any, line: str, cell: str | None = None) -> Measurement | None:
    """Measure code: ``%gpu_time [options] expression``, or a cell of statements under ``%%gpu_time
    [options] [set-up]``.

    Parameters
    ----------
    shell : IPython shell
        The code runs in its namespace; what a cell assigns stays there.
    line, cell : str
        As IPython gives them. Options: ``-d`` device, ``-w`` relative width, ``-t`` deadline
        (``2``, ``500ms``), ``--flops``, ``--nbytes`` (numbers or expressions), ``--transfer``,
        ``--cold``, ``-o`` to return the Measurement instead of showing it.

    Returns
    -------
    Measurement or None
        With ``-o``. An error is one sentence in the cell.
    """
    try:
        measurement, output = _measure_code(shell, line, cell)
    except GpulabError as error:
        print(error, file=sys.stderr)
        return None
    if output:
        return measurement
    display(measurement)
    return None


def gpu_memory(shell: Any, line: str, cell: str) -> Any:
    """Run a cell under ``%%gpu_memory`` and show what it did to the memory of each device.

    Parameters
    ----------
    shell : IPython shell
        The cell runs in its namespace.
    line, cell : str
        As IPython gives them; there are no options.

    Returns
    -------
    object
        The value of the cell's last expression, as without the magic. An error passes through with
        its traceback.
    """
    if not _is_bare("%%gpu_memory", line):
        return None
    run = _as_cell(shell, cell)
    with contextlib.ExitStack() as after, gpulab.memory.watch(shell.user_ns) as result:
        # registered only now: if ``watch`` raises at its start, there is nothing to show
        after.callback(lambda: display(result()))
        return run()


def simulate(shell: Any, line: str, cell: str) -> Any:
    """Run a cell that uses ``numba.cuda`` under ``%%simulate``: its kernels run on the simulator,
    without a GPU, and a report shows what they did.

    Parameters
    ----------
    shell : IPython shell
        The cell runs in its namespace.
    line, cell : str
        As IPython gives them; there are no options.

    Returns
    -------
    object
        The value of the cell's last expression, as without the magic. An error passes through with
        its traceback.
    """
    if not _is_bare("%%simulate", line):
        return None
    run = _as_cell(shell, cell)
    with gpulab.kernels.simulated() as session:
        try:
            return run()
        finally:
            display(session.report())


def _is_bare(magic: str, line: str) -> bool:
    """Return whether the line after a magic without options is empty; if not, print an error."""
    if line.strip():
        print(
            f"{magic}: {line.strip()!r} is not an option; expected nothing after the magic. Put "
            "code below it.",
            file=sys.stderr,
        )
    return not line.strip()


def _as_cell(shell: Any, cell: str) -> Callable[[], Any]:
    """Return a callable that runs a cell's code in the user's namespace and returns the value of
    its last expression. The cell's text is cached, so that tracebacks can show it.
    """
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None

    def run() -> Any:
        exec(compile(tree, name, "exec", dont_inherit=True), shell.user_ns)
        if not isinstance(last, ast.Expr):
            return None
        value = eval(
            compile(ast.Expression(last.value), name, "eval", dont_inherit=True), shell.user_ns
        )
        # a semicolon behind the expression hides its value, one in a comment does not
        line = source.encode().splitlines()[last.end_lineno - 1]  # type: ignore[operator]
        return None if line[last.end_col_offset :].lstrip().startswith(b";") else value

    return run


def needs(shell: Any, line: str, cell: str) -> Any:
    """Run a cell under ``%%needs tensorflow`` only where that library is installed; else show in
    one sentence how to install it.

    Parameters
    ----------
    shell : IPython shell
        The cell runs in its namespace.
    line, cell : str
        As IPython gives them; the magic is followed by "jax", "tensorflow" or both.

    Returns
    -------
    object
        The value of the cell's last expression, as without the magic. An error passes through with
        its traceback.
    """
    wanted = line.split()
    if not wanted or not {"jax", "tensorflow"}.issuperset(wanted):
        print(
            f"%%needs: {line.strip()!r} is not known; expected jax, tensorflow or both. Write "
            "%%needs jax.",
            file=sys.stderr,
        )
        return None
    # imports the libraries, without the messages that they print
    absent = [why for name in wanted if (why := _backends.unusable(name))]
    if absent:
        print(*absent, "This cell was left out; the others run without it.", sep="\n")
        return None
    return _as_cell(shell, cell)()


_COMPILE = _Parser(
    "%%gpu_compile",
    "--arch sm_90, --name 'tile<16>' and -o NAME, with a value each; all other words go to the "
    "compiler. Fix the line.",
)
_COMPILE.add_argument("--arch", default="sm_90")
_COMPILE.add_argument("--name", action="append", default=[])
_COMPILE.add_argument("-o")


def gpu_compile(shell: Any, line: str, cell: str) -> None:
    """Compile a cell of CUDA C++ under ``%%gpu_compile [--arch sm_90] [options]`` and show what
    each kernel needs (such as registers); no GPU is needed.

    Parameters
    ----------
    shell : IPython shell
        The shell in which ``-o NAME`` stores the result as a variable.
    line, cell : str
        As IPython gives them. Options: ``--arch`` the target architecture, ``--name 'tile<16>'`` a
        template instance to compile (repeat for more), ``-o NAME``; every other word is passed to
        the compiler, such as ``-use_fast_math`` or ``-DTILE=16``.

    Returns
    -------
    None
        An error is shown in the cell, with its line.
    """
    try:
        options, others = _COMPILE.parse_known_args(shlex.split(line))
        if options.o is not None and not options.o.isidentifier():
            _COMPILE.error(f"-o {options.o!r} is not a valid variable name")
        result = gpulab.kernels.compile_cuda(cell, options.arch, others, names=options.name)
        if options.o is not None:
            shell.user_ns[options.o] = result
    except GpulabError as error:
        print(error, file=sys.stderr)
    except ValueError:  # shlex found a quote without an end
        print(
            f"%%gpu_compile: the options {line!r} contain a quotation mark without a second one; "
            "expected both. Add the missing one.",
            file=sys.stderr,
        )
    else:
        display(result)
