"""A plugin for pytest: ``pytest -p gpulab.pytest_simulate`` runs tests of kernels without a GPU.

The tests need no change: whatever uses ``numba.cuda`` runs under ``gpulab.kernels.simulated()``,
and pytest's summary ends with a report of all kernels. ``--fail-on-findings`` fails a test if a
finding shows that something is wrong with its kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from gpulab.kernels.scripts import Session, simulated

_context = contextlib.ExitStack()
_sessions: list[Session] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's option, and put the simulated device into numba.cuda.

    pytest calls this as soon as it has loaded the plugin: with ``-p`` before it imports a conftest,
    and also for a plugin that a conftest names in ``pytest_plugins``.
    """
    _sessions.append(_context.enter_context(simulated()))
    parser.addoption(
        "--fail-on-findings",
        action="store_true",
        help="fail a test if gpulab finds something wrong with its kernels",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restore the real numba.cuda."""
    _context.close()
    _sessions.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test whose kernels have findings, if ``--fail-on-findings`` is given."""
    with simulated() as session:
        result = yield
    findings = session.report().findings
    if findings and item.config.getoption("--fail-on-findings"):
        pytest.fail("\n".join(map(str, findings)), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the report."""
    terminalreporter.section("kernels on gpulab's simulator")
    terminalreporter.write_line(_sessions[-1].report().text)
