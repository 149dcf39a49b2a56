"""What every test shares: a private home, the rules for skipped tests, and a watch on the notebooks' kernels.

- ``gpu`` tests are skipped, with the reason, where torch sees no CUDA device; with ``GPULAB_REQUIRE_GPU=1`` they fail.
- a skipped ``browser`` test is a failure with ``GPULAB_REQUIRE_BROWSER=1`` (continuous integration sets it).
- Ctrl-C is heard also where the tests run in the background.
- Every test begins with the same random numbers: what an untrained network happens to be never decides.
- HOME and Jupyter's folders are private to the session, so no test reads or writes the user's own settings.
- No file of a test is pressed onto the disk: none has to outlive a power cut.
- ``soak`` tests, and the larger numbers that the fixture ``soak`` asks for, run with ``--soak`` only (``make soak``); what takes their
  place in the suite is named beside each.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import settings
except ImportError:  # a bare GPU machine
    pass
else:
    # No deadline: on two shared cores a single example can wait for a second, and time is not what these tests are about.
    settings.register_profile("gpulab", deadline=None)
    settings.register_profile("soak", max_examples=5000, deadline=None)
    settings.load_profile("gpulab")

try:
    from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
except ImportError:  # a bare GPU machine
    pass
else:

    class _ApprovedText(SingleFileSnapshotExtension):
        _write_mode = WriteMode.TEXT
        file_extension = "txt"

    @pytest.fixture
    def approved(snapshot: Any) -> Any:
        """The approved text of this test, in ``__snapshots__`` beside its file: ``assert text == approved``, or ``approved(name="cpu")``.

        ``pytest --snapshot-update`` writes what is there now; read the diff before you commit it.
        """
        return snapshot.use_extension(_ApprovedText)


_HOME_PREFIX = "gpulab-tests-"
# Caches that are dear to fill and hold no settings: they keep their place when HOME moves.
_KEPT_CACHES = {
    "PLAYWRIGHT_BROWSERS_PATH": ".cache/ms-playwright",
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
    """Move HOME and Jupyter's folders before anything is collected, and watch nbval's kernels."""
    os.fsync = lambda descriptor: (
        None
    )  # of each check's progress: nine in ten of its milliseconds, thousands of times over
    if os.environ.get("GPULAB_REQUIRE_GPU") != "1":
        # Threads that wait for work sleep, where they would otherwise spin: two workers share two cores, and a step of a small model
        # then takes a tenth of the processor time. Set before torch is imported; where a GPU's times are compared, all stays as it is.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # a shell's background job and all its children would never be interrupted
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix=_HOME_PREFIX))
    for name, place in _KEPT_CACHES.items():
        os.environ.setdefault(name, str(Path.home() / place))
    if not Path(os.environ["PLAYWRIGHT_BROWSERS_PATH"]).is_dir():
        os.environ.pop("PLAYWRIGHT_BROWSERS_PATH")
    for name in [n for n in os.environ if n.startswith(("JUPYTER", "IPYTHON", "XDG_"))]:
        os.environ.pop(name)
    os.environ.update(
        HOME=str(home),
        USERPROFILE=str(home),
        JUPYTER_PLATFORM_DIRS="0",
        GPULAB_PROGRESS=str(home / "progress.json"),
    )
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    _watch_kernels()


def _watch_kernels() -> None:
    """Make nbval notice a dead kernel within a second instead of at the end of the cell's timeout."""
    if (
        "nbval" not in sys.modules
    ):  # its plugin is not loaded: no notebook is run, as on a bare GPU machine
        return
    from nbval.kernel import Empty, RunningKernel

    original = RunningKernel.get_message

    def get_message(self: RunningKernel, stream: str, timeout: float | None = None) -> object:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            try:
                return original(self, stream, timeout=max(0.0, min(1.0, end - time.monotonic())))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the notebook's kernel died while this cell ran") from None
                if time.monotonic() >= end:
                    raise

    RunningKernel.get_message = get_message


def _missing_gpu() -> str | None:
    """Why no gpu test can run here, or None."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


# The files that take longest, first of all those whose tests take longest: so that no worker is left alone with one at the end.
_LONGEST_FIRST = (
    "tests/browser/test_course.py",
    "tests/browser/",
    "notebooks/",
    "tests/kernels/",
    "tests/memory/",
    "tests/timing/",
)


def _turn(item: pytest.Item) -> int:
    return next(
        (turn for turn, place in enumerate(_LONGEST_FIRST) if item.nodeid.startswith(place)),
        len(_LONGEST_FIRST),
    )


def pytest_sessionstart() -> None:
    """Keep the garbage collector from walking what is collected, over and over while it grows: a third of the collection's time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let it work again."""
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first where several workers share the tests, and leave out the soak tests unless they are asked for."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_turn)
    if config.getoption("--soak"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody calls it
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Keep a file's tests together, but give each notebook of the course a turn of its own: together they would outlast all the rest."""
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "loadfile":
        return None

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(_LONGEST_FIRST[0]) else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether the long forms were asked for."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def old_aside() -> Iterator[None]:
    """The garbage collector leaves alone what was made before this test: to walk the millions of objects of a session takes seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin with the same random numbers whatever ran before, and skip gpu tests where there is no GPU, unless one is required."""
    random.seed(0)
    if "numpy" in sys.modules:  # what no test has imported yet is not imported for this
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
def pytest_runtest_makereport(item: pytest.Item):
    """Turn a skipped browser test into a failure where the browser is required."""
    report = yield
    if (
        report.skipped
        and item.get_closest_marker("browser") is not None
        and os.environ.get("GPULAB_REQUIRE_BROWSER") == "1"
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, though GPULAB_REQUIRE_BROWSER=1: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how long each notebook's cells took together."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            name = getattr(report, "nodeid", "").split("::")[0]
            if name.endswith(".ipynb"):
                seconds[name] += report.duration
    if seconds:
        terminalreporter.section("run time of the notebooks (all cells)")
        for name, duration in sorted(seconds.items()):
            terminalreporter.write_line(f"{duration:6.1f} s  {name}")
