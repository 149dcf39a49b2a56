"""What every test shares: a private home, the rules for skipped tests, and approved texts.

- A ``gpu`` test is skipped, with the reason, where torch sees no CUDA device; with
  ``GPULAB_REQUIRE_GPU=1`` it fails.
- A skipped ``browser`` test fails with ``GPULAB_REQUIRE_BROWSER=1``, which ``.ci/run`` and
  ``make soak`` set, and ``make test`` where it finds a browser.
- A ``soak`` test runs with ``--soak`` only (``make soak``).
- HOME and Jupyter's folders are private to the session: no test touches the user's settings, or
  follows them, such as a class server's GPULAB_SOLUTIONS or a container's switches for TF32.
- Every test begins with the same random numbers.
"""

import atexit
import gc
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import settings
except ImportError:  # a bare GPU machine
    pass
else:
    # No deadline: on two shared cores a single example can wait for a second. The same examples in
    # each run, so that a failure comes from the change; `make soak` tries new ones.
    settings.register_profile("gpulab", deadline=None, derandomize=True)
    settings.register_profile("soak", max_examples=5000, deadline=None)
    settings.load_profile("gpulab")

try:
    from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
except ImportError:  # a bare GPU machine
    pass
else:
    # Four and more decimals: the last ones differ between processors.
    _LONG_NUMBER = re.compile(r"\d+\.\d{4,}(?:e[-+]?\d+)?")

    class _ApprovedText(SingleFileSnapshotExtension):
        _write_mode = WriteMode.TEXT
        file_extension = "txt"

        def serialize(self, data: str, **options: Any) -> str:
            return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.4g}", data)

    @pytest.fixture
    def approved(snapshot: Any) -> Any:
        """The approved text of this test: ``assert text == approved``, or ``approved(name="cpu")``.

        It is in ``__snapshots__`` beside the test's file. ``pytest --snapshot-update`` writes what
        is there now; read the diff before you commit it.
        """
        return snapshot.use_extension(_ApprovedText)


_HOME_PREFIX = "gpulab-tests-"
# These tests use a real measurement's result; it takes a fifth of the time, as in the notebooks.
_QUICK = ("tests/lessons/", "tests/recorder/", "tests/widgets/", "tests/test_magics.py")
# Caches that are expensive to fill and hold no settings keep their place when HOME moves.
_KEPT_CACHES = {
    # Playwright's own place: in the system's folder for caches, which on Linux can be moved.
    "PLAYWRIGHT_BROWSERS_PATH": {
        "darwin": "Library/Caches/ms-playwright",
        "win32": "AppData/Local/ms-playwright",
    }.get(sys.platform, f"{os.environ.get('XDG_CACHE_HOME') or '.cache'}/ms-playwright"),
    "TRITON_CACHE_DIR": ".triton/cache",
    "CUPY_CACHE_DIR": ".cupy/kernel_cache",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--soak``."""
    parser.addoption(
        "--soak",
        action="store_true",
        help="also the long forms of tests that have a shorter one (make soak)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Move HOME and Jupyter's folders before anything is collected."""
    # Waiting for the disk would take most of the time of an exercise's check.
    os.fsync = lambda descriptor: None
    if os.environ.get("GPULAB_REQUIRE_GPU") != "1":
        # Threads that wait for work sleep instead of spinning: two workers share two cores, and a
        # step of a small model then takes a tenth of the processor time. Set before torch loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A shell's background job and all its children ignore Ctrl-C, so no test could be interrupted.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix=_HOME_PREFIX))
    for name, place in _KEPT_CACHES.items():
        os.environ.setdefault(name, str(Path.home() / place))
    if not Path(os.environ["PLAYWRIGHT_BROWSERS_PATH"]).is_dir():
        os.environ.pop("PLAYWRIGHT_BROWSERS_PATH")
    for name in list(os.environ):
        if re.match(
            "JUPYTER|IPYTHON|XDG_|NVIDIA_TF32|TORCH_ALLOW_TF32|PYTEST_ADD|GPULAB_(?!REQUIRE_)", name
        ):
            os.environ.pop(name)
    os.environ.update(
        HOME=str(home),
        USERPROFILE=str(home),
        JUPYTER_PLATFORM_DIRS="0",
        GPULAB_PROGRESS=str(home / "progress.json"),
    )
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def _missing_gpu() -> str | None:
    """Why no gpu test can run here, or None."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


# Each notebook of the course is scheduled alone; the other tests of a file stay together.
_COURSE = "tests/browser/test_course.py"


def _turn(item: pytest.Item) -> tuple[bool, bool, str]:
    """Return a sort key: the longest first, so that no worker ends with a long one alone."""
    place = item.nodeid.partition("::")[0]
    return (
        place != _COURSE,
        not place.startswith(
            ("tests/browser/", "tests/lessons/", "tests/parallel/", "tests/widgets/")
        ),
        place,
    )


def pytest_sessionstart() -> None:
    """Keep the garbage collector off while tests are collected: it takes a third of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Switch the garbage collector on again."""
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest tests first if workers share them; leave soak tests out by default."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_turn)
        # Skip the interpreter's shutdown, which takes 10 s after thousands of compiled functions.
        atexit.register(os._exit, 0)
    if config.getoption("--soak"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]


@pytest.hookimpl(optionalhook=True)  # only pytest-xdist calls it
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Keep a file's tests together, but schedule each notebook of the course alone."""
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "loadfile":
        return None

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(_COURSE) else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether ``--soak`` asks for the long forms of tests."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def old_aside() -> Iterator[None]:
    """Hide older objects from the garbage collector during a test: visiting them takes seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process appear to have two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin with the same random numbers, and skip gpu tests where there is no GPU."""
    os.environ["GPULAB_QUICK"] = "1" if item.nodeid.startswith(_QUICK) else "0"
    random.seed(0)
    if "numpy" in sys.modules:  # seeding alone is no reason to import it
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if item.get_closest_marker("gpu") is None:
        return
    reason = _missing_gpu()
    if reason is not None:
        if os.environ.get("GPULAB_REQUIRE_GPU") == "1":
            pytest.fail(f"GPULAB_REQUIRE_GPU=1 and {reason}", pytrace=False)
        pytest.skip(f"needs a CUDA device: {reason}; run `make gpu-check` on a machine with one")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Turn a skip for a missing browser into a failure where the browser is required."""
    report = yield
    marks = {mark.name for mark in item.iter_markers()} & {"browser", "skipif"}
    if report.skipped and os.environ.get("GPULAB_REQUIRE_BROWSER") == "1" and marks == {"browser"}:
        report.outcome = "failed"
        report.longrepr = f"skipped, though GPULAB_REQUIRE_BROWSER=1: {report.longrepr}"
    return report
