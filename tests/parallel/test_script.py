"""A call on ranks becomes a script that torchrun runs with the same results, in source that a learner can read."""

from __future__ import annotations

import ast
import math
import os
import pickle
import subprocess
import sys
import urllib
import urllib.parse as addresses
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.nn.functional as F

from gpulab.errors import InputError
from gpulab.parallel import Ranks
from gpulab.parallel._script import Parts, _import_of, _literal, export_script
from gpulab.training import evaluate

SCALE = 3
WORDS = {"one": [1, 2.5], "two": (None, True)}
LOCK = object()


class Layer(torch.nn.Linear):
    """A class that the function needs, with a method that needs another name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Relu of a linear layer, scaled."""
        return F.relu(super().forward(x)) * SCALE


class Thin(Layer):
    """A class whose own body needs names of the file, and one of the language."""

    slope = float(SCALE)


def uses_a_class_of_a_class() -> float:
    """Needs a class, which needs another one, which needs a module."""
    return Thin(1, 1).slope


def mean_over_ranks(value: torch.Tensor) -> torch.Tensor:
    """Average over the ranks."""
    dist.all_reduce(value)
    return value / dist.get_world_size()


def step(seed: int, words: list[str], *, rate: float = 0.1) -> tuple[int, list[float]]:
    """Work that uses a class, a helper, constants and modules."""
    torch.manual_seed(seed + dist.get_rank())
    layer = Layer(4, 3)
    loss = layer(torch.ones(2, 4)).sum() * rate * len(words) * math.pi + len(WORDS["one"])
    return dist.get_rank(), mean_over_ranks(loss.detach()).reshape(1).tolist()


def uses_a_lock() -> object:
    """Needs a value that has no source."""
    return LOCK


def uses_submodules() -> list[str]:
    """Needs modules below others, by the whole dotted name and below another name; the last one is no module."""
    tags = [xml.etree.ElementTree.fromstring("<a/>").tag, os.path.curdir, urllib.__name__, addresses.quote(" ")]
    return [*tags, dist.checkpoint.FileSystemReader.__name__]


def _script(path: Path, function: object, *args: object, **kwargs: object) -> Path:
    return export_script(path, function, args, kwargs, n=2, timeout_seconds=20.0, threads=1)  # type: ignore[arg-type]


def test_torchrun_gives_the_same_results(ranks: Ranks, tmp_path: Path) -> None:
    """The script runs by itself, away from this file, and its ranks return what `run` returned, to the last bit."""
    expected = ranks.run(step, 7, ["a", "b"], rate=0.5)
    script = ranks.export_script(tmp_path / "work.py", step, 7, ["a", "b"], rate=0.5)
    results = tmp_path / "results.pkl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), "--results", str(results)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert pickle.loads(results.read_bytes()) == expected
    assert f"[rank 1] {expected[1]!r}" in done.stdout


def ready() -> str:
    """Work that says so."""
    return "ready"


@pytest.mark.parametrize(("nccl", "gpus", "backend"), [(True, 1, "cpu:gloo,cuda:nccl"), (False, 1, "gloo"), (True, 0, "gloo")])
def test_the_script_asks_for_nccl_where_pytorch_has_it(
    nccl: bool, gpus: int, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's builds for Windows have CUDA and no NCCL, and refuse a group that asks for it."""
    text = _script(tmp_path / "work.py", ready).read_text()
    asked: list[str] = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(sys, "argv", ["work.py"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    monkeypatch.setattr(dist, "init_process_group", lambda name, **_: asked.append(name))
    for name, value in (("get_world_size", 1), ("get_rank", 0), ("gather_object", None), ("destroy_process_group", None)):
        monkeypatch.setattr(dist, name, lambda *_, value=value: value)
    exec(compile(text, "work.py", "exec"), {"__name__": "__main__"})
    assert asked == [backend]


def test_the_script_has_what_the_function_needs_and_no_more(tmp_path: Path) -> None:
    """Helpers, classes and constants come before what uses them, as they stand in their file; nothing else of the file comes along."""
    text = _script(tmp_path / "work.py", step, 7, ["a"]).read_text()
    tree = ast.parse(text)
    defined = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert set(defined) == {"Layer", "mean_over_ranks", "step", "main"}
    assert defined.index("mean_over_ranks") < defined.index("step")
    assert "SCALE = 3" in text
    assert "WORDS = {'one': [1, 2.5], 'two': (None, True)}" in text
    assert "import torch.nn.functional as F" in text
    assert "import math" in text
    assert "step(7, ['a'])" in text
    assert "LOCK" not in text
    assert "\n__name__ = " not in text
    assert '"""Average over the ranks."""' in text


def test_a_class_brings_what_its_body_and_its_bases_need(tmp_path: Path) -> None:
    """The class that it inherits from and a constant come first; what the language has is not written down."""
    text = _script(tmp_path / "work.py", uses_a_class_of_a_class).read_text()
    order = [text.index(words) for words in ("\nSCALE = 3", "\nclass Layer(", "\nclass Thin(", "\ndef uses_a_class_of_a_class")]
    assert order == sorted(order)
    assert "float =" not in text
    assert "import float" not in text


def test_modules_below_another_are_imported_by_their_whole_names(tmp_path: Path) -> None:
    """A fresh process has them then; a package is not named beside them, but where another name stands for what is below it."""
    text = _script(tmp_path / "work.py", uses_submodules).read_text()
    lines = {line for line in text.partition("def uses_submodules")[0].splitlines() if line.startswith("import ")}
    own = {"import argparse", "import datetime", "import os", "import pickle", "import torch", "import torch.distributed as dist"}
    assert lines - own == {
        "import os.path", "import torch.distributed.checkpoint", "import urllib", "import urllib.parse as addresses",
        "import xml.etree.ElementTree",
    }  # fmt: skip


def result() -> int:
    """Work under a name that the script gives to a variable of its own."""
    return 1


def test_a_function_is_not_called_as_what_main_keeps(tmp_path: Path) -> None:
    """``result = result()`` inside ``main`` would be a call of a variable without a value: an UnboundLocalError on every rank."""
    with pytest.raises(InputError, match=r"the name result is one of the script's own.*another name"):
        _script(tmp_path / "work.py", result)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell has it: no folder of that name is made here, and the path that comes back is the whole one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert _script(Path("~/work.py"), uses_submodules) == tmp_path / "work.py"
    assert [found.name for found in tmp_path.iterdir()] == ["work.py"]


def test_an_installed_function_is_imported(tmp_path: Path) -> None:
    """What a package holds is imported from there, not copied."""
    text = _script(tmp_path / "work.py", evaluate).read_text()
    assert "from gpulab.training._evaluate import evaluate" in text
    assert "def evaluate" not in text


def test_a_function_made_inside_another_brings_what_it_closes_over(tmp_path: Path) -> None:
    """A closed-over number becomes a constant of the script."""
    factor = 11

    def scaled() -> int:
        return factor * SCALE

    text = _script(tmp_path / "work.py", scaled).read_text()
    assert "factor = 11" in text
    assert "\ndef scaled() -> int:" in text


def _made_by_exec() -> object:
    names: dict[str, object] = {}
    exec("def ghost():\n    return 1", names)
    return names["ghost"]


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        (lambda: 1, (), "no function with a name"),
        (3, (), "3 is no function with a name"),
        (_made_by_exec(), (), "the source of ghost is not to be had"),
        (uses_a_lock, (), "LOCK is <object object"),
        (step, (torch.ones(2),), "argument 1 is tensor"),
    ],
)
def test_what_cannot_be_written_down_is_refused(tmp_path: Path, function: object, args: tuple[object, ...], words: str) -> None:
    """One sentence with what it is, and no file."""
    with pytest.raises(InputError) as caught:
        _script(tmp_path / "work.py", function, *args)
    assert words in str(caught.value)
    assert not (tmp_path / "work.py").exists()


def os_of() -> str:
    """Needs a value under a name that the script has for a module."""
    return datetime


datetime = "a text, and no module"


def uses_another_name() -> float:
    """Needs a function by a name that it does not have."""
    return twice(1.0)


def _once(value: float) -> float:
    return value


twice = _once


def uses_its_own_file() -> object:
    """Needs the very module that it lies in."""
    return here.SCALE


here = sys.modules[__name__]


def main() -> int:
    """Work under the script's own name."""
    return 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (os_of, "the name datetime is one of the script's own"), (main, "the name main is one of the script's own"),
        (uses_another_name, "twice is another name of _once"), (uses_its_own_file, "here is a module of your own"),
    ],
)  # fmt: skip
def test_names_that_would_mean_something_else_are_refused(tmp_path: Path, function: object, words: str) -> None:
    """One sentence, in this order: whose it is, what is wrong, what was expected, and what to do."""
    with pytest.raises(InputError) as caught:
        _script(tmp_path / "work.py", function)
    assert str(caught.value).startswith(f"export_script: {words}")
    assert "; expected something that can be written down as source. " in str(caught.value)
    assert str(caught.value).rpartition("source. ")[2] in (
        "Give it another name.", "Use one name for it.", "Import the functions from it by name.",
    )  # fmt: skip
    assert not (tmp_path / "work.py").exists()


def test_a_name_that_means_two_things_is_refused_and_one_that_means_the_same_twice_is_not() -> None:
    """Equal values are one; a function of that name is another."""
    parts = Parts()
    assert [parts.need("SIZE", [1, 2]), parts.need("SIZE", [1, 2])] == ["SIZE", "SIZE"]
    assert parts.definitions == {"SIZE": "SIZE = [1, 2]"}
    with pytest.raises(InputError) as caught:
        parts.need("SIZE", [1, 3])
    assert str(caught.value) == (
        "export_script: the name SIZE stands for two different things; expected something that can be written down as source. "
        "Give one of them another name."
    )


def test_each_kind_of_import_by_hand() -> None:
    """Modules by their names, below others, under another one; functions and objects from where they are; what has none is written down."""
    found = [
        _import_of("math", math), _import_of("F", F), _import_of("addresses", addresses), _import_of("functional", F),
        _import_of("urllib", addresses), _import_of("dumps", pickle.dumps), _import_of("pickle_of", pickle.dumps),
        _import_of("float32", torch.float32), _import_of("SCALE", 3), _import_of("ready", ready),
    ]  # fmt: skip
    assert found == [
        "import math", "import torch.nn.functional as F", "import urllib.parse as addresses", "from torch.nn import functional",
        "import urllib.parse", "from _pickle import dumps", "from _pickle import dumps as pickle_of", "from torch import float32",
        None, None,
    ]  # fmt: skip


def test_what_can_be_written_as_source_is_and_the_rest_is_named() -> None:
    """Numbers, texts and lists of them; a number that is none, an infinity in a list, and an array are told with what to do."""
    assert [_literal("x", value) for value in (1.5, "a'b", (1,), {"k": [None, True]}, {3}, b"x")] == [
        "1.5", '"a\'b"', "(1,)", "{'k': [None, True]}", "{3}", "b'x'",
    ]  # fmt: skip
    for value in (float("inf"), [float("nan")], torch.ones(2), object()):
        with pytest.raises(InputError, match=r"^export_script: argument 2 is .* Make it inside the function: a script carries"):
            _literal("argument 2", value)
