"""How functions leave the notebook: by value to ranks, and as a readable torchrun script."""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import linecache
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from gpulab._files import write_atomically
from gpulab._validate import expanded, instance
from gpulab.errors import InputError, message_of, shown


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call as bytes, with the code of modules that are not installed, such as those beside
    the notebook or the script.

    Raises
    ------
    InputError
        If ``function`` is not callable, or if something in the call cannot be pickled.
    """
    instance(
        "run",
        "function",
        function,
        Callable,
        "a function to call on every rank. Pass the function itself.",
    )
    values = (function, *args, *kwargs.values())
    names = {getattr(each, "__module__", None) or type(each).__module__ for each in values}
    for name in names & sys.modules.keys():
        if loose(sys.modules[name]):  # from now on its code is sent with every call
            cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        return cloudpickle.dumps((function, args, kwargs))  # type: ignore[no-any-return]
    except Exception as error:
        raise InputError(
            f"run: the call cannot be sent to the ranks ({type(error).__name__}: "
            f"{message_of(error)}); expected a function and arguments that can be pickled. Create "
            "open files, locks, generators and tensors on a GPU inside the function."
        ) from error


def loose(module: ModuleType) -> bool:
    """Return whether a module is not installed in any place where an engine would find it."""
    name, file = module.__name__.split(".")[0], getattr(module, "__file__", None)
    if name in {"__main__", "gpulab"} or file is None:
        return False
    places = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Also the packages of a base environment on which this one is built, and those that a user
    # installed for all environments.
    places |= {
        place for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}
    }
    return not any(Path(file).is_relative_to(place) for place in places)


_TEMPLATE = '''"""Run the function `{function}` on {n} ranks:

    torchrun --nproc-per-node={n} {file}

On several machines, start it on each with `--nnodes`, `--node-rank` and `--master-addr`; in a Slurm job, with
`srun torchrun --nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 ...`. `--results FILE` keeps what the ranks returned.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pickle

import torch
import torch.distributed as dist

{body}


def main() -> None:
    """Open the process group that torchrun describes, call the function, show what each rank returned."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", help="a file for what the ranks returned, pickled by rank 0")
    chosen = parser.parse_args()
    torch.set_num_threads({threads})
    own_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if own_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpu else "gloo", timeout=datetime.timedelta(seconds={timeout!r}))
    try:
        result = {function}({arguments})
        results = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(result, results)
        for rank, returned in enumerate(results or []):
            print(f"[rank {{rank}}] {{returned!r}}")
        if chosen.results and results is not None:
            with open(chosen.results, "wb") as file:
                pickle.dump(results, file)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
# the local variables of the script's ``main``
_VARIABLES = {"parser", "chosen", "own_gpu", "result", "results", "rank", "returned", "file"}
FLAGS = __future__.annotations.compiler_flag


def export_script(
    path: str | Path,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    n: int,
    timeout_seconds: float,
    threads: int,
) -> Path:
    """Write a script that ``torchrun`` runs with the same effect as ``ranks.run(function, *args,
    **kwargs)``.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If the function's source is not available, or if it needs a value that cannot be written as
        source.
    """
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise _refused(f"{shown(function)} is not a function with a name", "Write it with def.")
    parts = Parts()
    name = parts.need(function.__name__, function)
    # inside ``main`` the name would be a local variable that has no value yet
    if name in _VARIABLES:
        raise _refused(f"the name {name} is one of the script's own", "Give it another name.")
    arguments = [_literal(f"argument {i + 1}", value) for i, value in enumerate(args)]
    arguments += [f"{key}={_literal(f'argument {key}', value)}" for key, value in kwargs.items()]
    file = expanded("export_script", path)
    text = _TEMPLATE.format(
        function=name,
        n=n,
        file=file.name,
        body=parts.text(),
        arguments=", ".join(arguments),
        timeout=timeout_seconds,
        threads=threads,
    )
    write_atomically(file, text.encode())
    return file


class Parts:
    """The part of the script above ``main``: imports, values and definitions, each after those that
    it needs.
    """

    # names that the script itself uses
    taken: Collection[str] = {"argparse", "datetime", "os", "pickle", "torch", "dist", "main"}

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.objects: dict[str, Any] = {}

    def text(self) -> str:
        """Return the source."""
        lines = set(self.imports.values()) - {"import torch", "import torch.distributed as dist"}
        # of these `import a.b` also makes `a` available, so `import a` is left out
        plain = {line for line in lines if " as " not in line}
        imports = "\n".join(
            sorted(
                line for line in lines if not any(other.startswith(f"{line}.") for other in plain)
            )
        )
        return "\n\n\n".join(part for part in (imports, *self.definitions.values()) if part)

    def need(self, name: str, value: Any) -> str:
        """Add the value that a name stands for, and everything that the value needs; return the
        name.

        Raises
        ------
        InputError
            If the value cannot be written as source, if two functions mean different things by the
            name, or if the script itself uses the name.
        """
        if name in self.objects:
            if self.objects[name] is not value and self.objects[name] != value:
                raise _refused(
                    f"the name {name} stands for two different things",
                    "Give one of them another name.",
                )
            return name
        self.objects[name] = value
        line = self.import_line(name, value)
        if line is not None:
            self.imports[name] = line
        elif inspect.isfunction(value) or inspect.isclass(value):
            self.define(name, value)
        else:
            self.hold(name, value)
        if name in self.taken and self.imports.get(name) not in {
            f"import {name}",
            "import torch.distributed as dist",
        }:
            raise _refused(f"the name {name} is one of the script's own", "Give it another name.")
        return name

    def import_line(self, name: str, value: Any) -> str | None:
        """Return the line that imports a value in a fresh process, or None if no import gives
        it.
        """
        if isinstance(value, ModuleType):
            if value.__name__ == "__main__" or loose(value):
                raise _refused(
                    f"{name} is a module of your own ({value.__name__})",
                    "Import the functions from it by name.",
                )
            full = value.__name__
            return f"import {full}" + ("" if name in (full, full.split(".")[0]) else f" as {name}")
        own, home = (
            getattr(value, "__name__", None) or str(value).rpartition(".")[2],
            getattr(value, "__module__", None),
        )
        for place in (home, type(value).__module__):
            module = sys.modules.get(place) if isinstance(place, str) else None
            if module is None or place in {"__main__", "builtins"} or loose(module):
                continue
            if isinstance(own, str) and own.isidentifier() and getattr(module, own, None) is value:
                return f"from {place} import {own}" + ("" if own == name else f" as {name}")
        return None

    def hold(self, name: str, value: Any) -> None:
        """Add a value that is not a function, class or module."""
        self.definitions[name] = f"{name} = {_literal(name, value)}"

    def define(self, name: str, value: Any) -> None:
        """Add a function or a class by its source."""
        if value.__name__ != name:
            raise _refused(f"{name} is another name of {value.__name__}", "Use one name for it.")
        source = source_of(value)
        self.needs_of(value, source)
        self.definitions[name] = source.rstrip()

    def needs_of(self, value: Any, source: str) -> None:
        """Add everything that the source of a function or class needs."""
        code = compile(source, f"<{value.__name__}>", "exec", FLAGS, dont_inherit=True)
        for needed in dict.fromkeys(global_names(code)):
            try:
                found, meant = meaning(value, needed)
            except ValueError:  # a name of the enclosing function that has no value yet
                continue
            if found and meant is not value:
                self.need(needed, meant)
                if isinstance(meant, ModuleType):
                    self.imports |= {
                        below: f"import {below}" for below in _below(meant, needed, source)
                    }


def source_of(value: Any) -> str:
    """Return the source of a function or class, as it stands in its file or cell.

    Raises
    ------
    InputError
        If it is not available.
    """
    linecache.checkcache()
    try:
        source = textwrap.dedent(inspect.getsource(value))
        # on Python 3.13, inspect returns the text of `python -c` for a function without a file
        written = [getattr(node, "name", None) for node in ast.parse(source).body[:1]]
        if written != [value.__name__]:
            raise OSError("this text defines something else")
        return source
    except (OSError, TypeError, SyntaxError) as error:
        found = _class_source(value) if inspect.isclass(value) else None
        if found is None:
            raise _refused(
                f"the source of {value.__name__} is not available",
                "Write it with def or class in a cell or a file.",
            ) from error
        return found


def _class_source(value: type) -> str | None:
    """Return the source of a class defined in a notebook, found through the line of one of its
    methods; None if there is none. ``inspect`` looks for classes only in files.
    """
    for method in vars(value).values():
        if isinstance(method, FunctionType):
            text = "".join(linecache.getlines(method.__code__.co_filename))
            line = method.__code__.co_firstlineno
            for node in ast.walk(ast.parse(text)):
                if (
                    isinstance(node, ast.ClassDef)
                    and node.name == value.__name__
                    and node.lineno <= line <= (node.end_lineno or 0)
                ):
                    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    return textwrap.dedent(
                        "\n".join(text.splitlines()[first - 1 : node.end_lineno])
                    )
    return None


def global_names(code: CodeType) -> Iterator[str]:
    """Yield the global names that code uses, including its nested functions and classes."""
    for instruction in dis.get_instructions(code):
        # __name__ and the like, which every module has
        own = str(instruction.argval).startswith("__")
        if instruction.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and not own:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)


def _below(module: ModuleType, name: str, source: str) -> Iterator[str]:
    """Yield the submodules that source reaches through attributes of a module, as in ``name.a.b``;
    a fresh process may not have imported them yet.
    """
    for dotted in re.findall(rf"\b{name}((?:\.\w+)+)", source):
        reached = module.__name__
        for attribute in dotted.split(".")[1:]:
            if f"{reached}.{attribute}" in sys.modules:
                reached = f"{reached}.{attribute}"
                yield reached


def meaning(value: Any, name: str) -> tuple[bool, Any]:
    """Return whether a name in a function or class has a value that is not a builtin, and that
    value.

    Raises
    ------
    ValueError
        If it is a name of an enclosing function that has no value yet.
    """
    functions = (
        [value]
        if inspect.isfunction(value)
        else [each for each in vars(value).values() if inspect.isfunction(each)]
    )
    # the source is that of the function itself, and not of a decorator such as torch.no_grad()
    for function in map(inspect.unwrap, functions):
        closed = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if name in closed:
            return True, closed[name].cell_contents
        if name in function.__globals__:
            return True, function.__globals__[name]
    names = vars(sys.modules.get(value.__module__, builtins))
    return (True, names[name]) if name in names and not hasattr(builtins, name) else (False, None)


def _literal(what: str, value: Any) -> str:
    """Return a value as source: numbers, texts, and lists, tuples, sets and dicts of them."""
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    raise _refused(
        f"{what} is {shown(value)}",
        "Create it inside the function: a script can contain only numbers, texts, and lists, "
        "tuples, sets and dicts of them.",
    )


def _refused(what: str, fix: str) -> InputError:
    return InputError(
        f"export_script: {what}; expected something that can be written as source. {fix}"
    )
