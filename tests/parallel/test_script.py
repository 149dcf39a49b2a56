"""A call on ranks becomes a script that torchrun runs with the same results."""

import math
import os
import pickle
import subprocess
import sys
import urllib.parse as addresses
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import gpulab as gl
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpulab.errors import InputError
from gpulab.parallel import Ranks
from gpulab.training import evaluate

SCALE = 3
WORDS = {"one": [1, 2.5], "two": (None, True)}
LOCK = object()


class Layer(torch.nn.Linear):
    """A class that the function needs, whose method needs another name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Relu of a linear layer, scaled."""
        return F.relu(super().forward(x)) * SCALE


class Thin(Layer):
    """A class whose body needs names of the file, and one of the language."""

    slope = float(SCALE)


def mean_over_ranks(value: torch.Tensor) -> torch.Tensor:
    """Average over the ranks."""
    dist.all_reduce(value)
    return value / dist.get_world_size()


def step(seed: int, words: list[str], *, rate: float = 0.1) -> tuple[int, list[float]]:
    """Work that uses classes, a helper, constants and modules."""
    torch.manual_seed(seed + dist.get_rank())
    loss = Thin(4, 3)(torch.ones(2, 4)).sum() * rate * len(words) * math.pi * Thin.slope
    tag = xml.etree.ElementTree.fromstring("<a/>").tag + addresses.quote(" ")
    loss = loss + len(WORDS["one"]) + len(tag)
    return dist.get_rank(), mean_over_ranks(loss.detach()).reshape(1).tolist()


@pytest.mark.slow
def test_torchrun_gives_the_same_results(ranks: Ranks, tmp_path: Path, approved: Any) -> None:
    """The script stands alone, holds what the function needs and no more, and returns the same."""
    expected = ranks.run(step, 7, ["a", "b"], rate=0.5)
    script = ranks.export_script(tmp_path / "work.py", step, 7, ["a", "b"], rate=0.5)
    assert script.read_text(encoding="utf-8") == approved
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node=2", str(script), "--results", str(tmp_path / "r.pkl")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert pickle.loads((tmp_path / "r.pkl").read_bytes()) == expected
    assert f"[rank 1] {expected[1]!r}" in done.stdout


def exported(path: Path | str, function: Any, *args: Any) -> str:
    """Return the script that a cluster writes without being started."""
    ranks = gl.parallel.cluster(3, threads=5, timeout_seconds=7.5)
    return ranks.export_script(path, function, *args).read_text("utf-8")


def test_what_a_function_closes_over_and_what_is_installed(tmp_path: Path) -> None:
    """A closed-over number becomes a constant; an installed package's function is imported; the
    ranks, threads and timeout are the cluster's.
    """
    factor = 11

    @torch.no_grad()
    def scaled() -> int:
        return factor * SCALE

    text = exported(tmp_path / "work.py", scaled)
    own = ("per-node=3 ", "set_num_threads(5)", "timedelta(seconds=7.5)")
    assert all(each in text for each in ("\nfactor = 11\n", "\ndef scaled() -> int:", *own))
    assert "def evaluate" not in exported(tmp_path / "work.py", evaluate)


def made_by_exec() -> Any:
    """A function without a source."""
    names: dict[str, Any] = {}
    exec("def ghost():\n    return 1", names)
    return names["ghost"]


def uses_a_lock() -> object:
    """Needs a value that has no source."""
    return LOCK


def main() -> int:
    """Have the same name as the script's own entry point."""
    return 1


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [(lambda: 1, (), "name"), (3, (), "3"), (made_by_exec(), (), "ghost"),
     (main, (), "main is one.*another"), (uses_a_lock, (), "LOCK"),
     (step, (torch.ones(2),), "argument 1"), (step, (float("inf"),), "argument 1")],
)  # fmt: skip
def test_what_cannot_be_written_down_is_refused(
    tmp_path: Path, function: Any, args: tuple[Any, ...], words: str
) -> None:
    """The error names the function, constant or argument; no file is written."""
    with pytest.raises(InputError, match=words):
        exported(tmp_path / "work.py", function, *args)
    assert list(tmp_path.iterdir()) == []
