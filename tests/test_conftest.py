"""The rules of tests/conftest.py, tried on small test files in a pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
MARKERS = "[pytest]\nmarkers =\n    gpu: needs a GPU\n    browser: drives a browser\n    soak: long\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with our conftest."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text(MARKERS)
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_every_test_begins_with_the_same_random_numbers(folder: Path) -> None:
    """What one test draws changes nothing for the next; the first numbers are those of generators that begin with 0."""
    begun = "(random.Random(0).random(), numpy.random.RandomState(0).random(), torch.Generator().manual_seed(0).initial_seed())"
    drawn = "(random.random(), numpy.random.random(), torch.initial_seed())"
    tests = "".join(f"def test_{k}():\n    assert {drawn} == {begun}\n    torch.manual_seed(7)\n" for k in range(2))
    (folder / "test_x.py").write_text(f"import random, numpy, torch\n{tests}")
    ran = run(folder)
    assert "2 passed" in ran.stdout, ran.stdout


def test_skipped_browser_test_fails_where_the_browser_is_required(folder: Path) -> None:
    """A missing Chromium is a skip with its reason on a user's machine and a failure in continuous integration."""
    (folder / "test_x.py").write_text(
        "import pytest\n@pytest.fixture\ndef chromium(): pytest.skip('no Chromium')\n@pytest.mark.browser\ndef test_page(chromium): pass\n"
    )
    here = run(folder, GPULAB_REQUIRE_BROWSER="")
    assert here.returncode == 0
    assert "no Chromium" in here.stdout
    ci = run(folder, GPULAB_REQUIRE_BROWSER="1")
    assert ci.returncode == 1
    assert "no Chromium" in ci.stdout


def test_gpu_test_is_skipped_with_its_reason_or_fails_where_required(folder: Path) -> None:
    """Where torch sees no device, the test says so; `make gpu-check` asks for a device."""
    (folder / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    (folder / "test_x.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_kernel(): pass\n")
    here = run(folder, PYTHONPATH=str(folder), GPULAB_REQUIRE_GPU="")
    assert here.returncode == 0
    assert "torch sees no CUDA device" in here.stdout
    assert run(folder, PYTHONPATH=str(folder), GPULAB_REQUIRE_GPU="1").returncode == 1


def test_soak_tests_run_only_where_they_are_asked_for(folder: Path) -> None:
    """Without --soak a long form is left out, and counted; with it, it runs, and the fixture says so."""
    (folder / "test_x.py").write_text("import pytest\n@pytest.mark.soak\ndef test_long(): pass\ndef test_short(soak): assert soak\n")
    here = run(folder)
    assert here.returncode == 1
    assert "1 failed, 1 deselected" in here.stdout
    assert "2 passed" in run(folder, "--soak").stdout


def test_waiting_threads_sleep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait sleep, unless a GPU's times are compared; what the user has set stays."""
    (folder / "test_x.py").write_text("import os\ndef test_policy(): print('policy', os.environ.get('OMP_WAIT_POLICY'))\n")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert "policy PASSIVE" in run(folder, "-s", GPULAB_REQUIRE_GPU="").stdout
    assert "policy None" in run(folder, "-s", GPULAB_REQUIRE_GPU="1").stdout
    assert "policy ACTIVE" in run(folder, "-s", OMP_WAIT_POLICY="ACTIVE").stdout


def test_workers_begin_with_the_longest_and_keep_files_together(folder: Path) -> None:
    """The course's notebooks come first, one to each worker; the tests of any other file stay with one worker."""
    places = {"tests/test_a.py": 6, "tests/browser/test_course.py": 2, "tests/browser/test_other.py": 3, "tests/memory/test_m.py": 4}
    for name, tests in places.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"import pytest, time\n@pytest.mark.parametrize('k', range({tests}))\ndef test_it(k): time.sleep(0.1)\n")
    done = run(folder, "-vv", "-p", "xdist", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--import-mode=importlib", "tests")
    assert "15 passed" in done.stdout, done.stdout
    ran = re.findall(r"\[(gw\d)\].*? PASSED (\S+)::test_it", done.stdout)
    workers = {name: {worker for worker, file in ran if file == name} for name in places}
    assert {name: len(found) for name, found in workers.items()} == dict.fromkeys(places, 1) | {"tests/browser/test_course.py": 2}
    longest = ["tests/browser/test_course.py", "tests/browser/", "tests/memory/", "tests/test_a.py"]  # by hand, of _LONGEST_FIRST
    for name in ("gw0", "gw1"):  # each by itself: one may be a whole file behind the other
        turns = [next(turn for turn, place in enumerate(longest) if file.startswith(place)) for worker, file in ran if worker == name]
        assert turns[0] == 0
        assert turns == sorted(turns)


def test_the_collector_rests_while_tests_are_collected_and_works_while_they_run(folder: Path) -> None:
    """A module is read without the garbage collector; its tests have it."""
    (folder / "test_x.py").write_text("import gc\nREAD = gc.isenabled()\ndef test_it(): assert (READ, gc.isenabled()) == (False, True)\n")
    assert run(folder).returncode == 0


def test_home_is_private(folder: Path) -> None:
    """A test that writes to HOME does not touch the user's, and nothing of it stays."""
    (folder / "test_x.py").write_text(
        "import pathlib\ndef test_home():\n    print('home is', pathlib.Path.home())\n    (pathlib.Path.home() / 'x').write_text('x')\n"
    )
    out = run(folder, "-s").stdout
    home = Path(out.split("home is ")[1].split("\n")[0])
    assert home != Path.home()
    assert not home.exists()


def test_dead_kernel_is_noticed_at_once(folder: Path) -> None:
    """A cell that kills its kernel fails within seconds, and says that the kernel died, long before the cell's timeout."""
    cells = [nbformat.v4.new_code_cell("import os; os._exit(1)")]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), folder / "x.ipynb")
    start = time.monotonic()
    done = run(folder, "-p", "nbval.plugin", "--nbval-lax", "--nbval-cell-timeout=100", "x.ipynb")
    assert done.returncode == 1
    assert "kernel died" in done.stdout
    assert time.monotonic() - start < 60
    assert "run time of the notebooks" in done.stdout
