"""Nsight Compute's CSV read as numbers, its refusals, and the command: text written by hand after its manual, and a runner of our own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _ncu

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name",'
    '"Metric Name","Metric Unit","Metric Value"'
)
REQUESTS, SECTORS = (f"l1tex__t_{what}_pipe_lsu_mem_global_op_ld.sum" for what in ("requests", "sectors"))
RATIO = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"


def row(identifier: int, kernel: str, metric: str, value: str, unit: str = "") -> str:
    """Return one row as ncu prints it: each cell in quotes."""
    cells = [identifier, 4242, "python3.11", "127.0.0.1", kernel, 1, 7, "(256, 1, 1)", "(64, 1, 1)", 0, "9.0",
             "Command line profiler metrics", metric, unit, value]  # fmt: skip
    return ",".join(f'"{cell}"' for cell in cells)


CSV = "\n".join([
    "==PROF== Connected to process 4242 (/usr/bin/python3.11)",
    '==PROF== Profiling "add" - 0: 0%....50%....100% - 4 passes',
    "a line of the program, with a comma",
    HEADER,
    row(0, "void add<int>(const float *, float *)", REQUESTS, "1,234,567", "request"),
    row(0, "void add<int>(const float *, float *)", SECTORS, "4,938,268", "sector"),
    row(0, "void add<int>(const float *, float *)", RATIO, "4", "sector/request"),
    row(10, "none", RATIO, "nan", "sector/request"),
    row(10, "none", REQUESTS, "0", "request"),
    row(2, "two", "smsp__sass_average_branch_targets_threads_uniform.pct", "99.87", "%"),
    "==PROF== Disconnected from process 4242",
])  # fmt: skip


def test_launches_come_in_order_with_their_numbers() -> None:
    """Thousands, names with commas in them, nan, and IDs in the order of numbers, not of text."""
    first, second, third = _ncu.parse(CSV)
    assert (first.identifier, second.identifier, third.identifier) == (0, 2, 10)
    assert first.kernel == "void add<int>(const float *, float *)"
    assert first.metrics == {REQUESTS: 1234567.0, SECTORS: 4938268.0, RATIO: 4.0}
    assert (first.grid, first.block) == ((64, 1, 1), (256, 1, 1))
    assert second.metrics == {"smsp__sass_average_branch_targets_threads_uniform.pct": 99.87}
    assert third.metrics == {RATIO: None, REQUESTS: 0.0}


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("0", "", 0.0), ("1,024", "request", 1024.0), ("12,345,678.25", "", 12345678.25), ("31,5", "", 31.5),
        ("1.234.567,5", "", 1234567.5),
        ("1.234,5", "", 1234.5), ("1'024", "", 1024.0), ("1\u202f024", "", 1024.0), ("99.9", "%", 99.9), ("-3", "", -3.0),
        ("nan", "", None), ("n/a", "", None), ("(!) n/a", "", None), ("", "", None), ("inf", "%", None),
        ("1.5", "Kbyte/block", 1500.0), ("2", "Mbyte", 2e6), ("7", "byte/block", 7.0), ("6.02e+23", "inst", 6.02e23),
        ("12 (4; 8)", "", 12.0),
    ],
)  # fmt: skip
def test_cells_are_read_in_the_base_unit(text: str, unit: str, value: float | None) -> None:
    """Separators of thousands of several countries, both decimal marks, prefixes of bytes, and what is no number."""
    assert _ncu.number(text, unit) == value


def test_what_is_no_number_is_an_error_and_not_a_zero() -> None:
    """A word in the column of values stops the comparison with the word in the message."""
    with pytest.raises(_ncu.NcuError, match="'many'"):
        _ncu.number("many")


def test_a_csv_without_its_columns_or_cut_is_refused() -> None:
    """A wide page has no column for metrics; a row that ends early is named; no header at all is no launch."""
    with pytest.raises(_ncu.NcuError, match="no column Metric Name, Metric Unit, Metric Value"):
        _ncu.parse('"ID","Kernel Name","sm__x.sum"\n"0","add","3"')
    with pytest.raises(_ncu.NcuError, match=r"launch 0 is cut"):
        _ncu.parse(HEADER + '\n"0","1","p","h","add","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","section","' + REQUESTS + '"')
    assert _ncu.parse("==PROF== nothing\nhello") == ()


def test_older_headers_and_advice_of_rules_are_read() -> None:
    """Without columns for grid and block these are None; a row of a rule has no metric and is passed over."""
    text = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"\n"3","add","s","m.sum","","5",""\n'
    (launch,) = _ncu.parse(text + '"3","add","s","","","","SOLBottleneck"')
    assert (launch.grid, launch.block, launch.metrics) == (None, None, {"m.sum": 5.0})


class Runner:
    """Stands for the machine: gives one answer after another, each the text of the log and of the output."""

    def __init__(self, log: Path, *answers: tuple[str, str, int]) -> None:
        self.log, self.answers, self.commands = log, list(answers), []

    def __call__(self, command: Sequence[str]) -> _ncu.Ran:
        """Write the log as ncu does, and end."""
        self.commands.append(list(command))
        text, output, code = self.answers.pop(0)
        self.log.write_text(text, encoding="utf-8")
        return _ncu.Ran(code, output)


def test_the_command_leaves_clocks_alone_and_asks_for_base_units(tmp_path: Path) -> None:
    """What the comparison stands on is in the command, and the program comes last."""
    log = tmp_path / "log.csv"
    runner = Runner(log, (CSV, "", 0))
    launches, missing = _ncu.profile([REQUESTS, "not__there.sum"], ["python", "x.py"], log, "/opt/ncu", runner)
    (command,) = runner.commands
    assert command[0] == "/opt/ncu"
    for option, value in (("--clock-control", "none"), ("--print-units", "base"), ("--log-file", str(log)), ("--page", "details")):
        assert command[command.index(option) + 1] == value
    assert "--csv" in command
    assert command[command.index("--metrics") + 1] == f"{REQUESTS},not__there.sum"
    assert command[-2:] == ["python", "x.py"]
    assert len(launches) == 3
    assert missing == ("not__there.sum",)


def test_missing_permission_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    """The tool's own words, in the log or on the screen, become NotAvailableError: a skip, no failure."""
    said = (
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0. "
        "For instructions on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
    )
    for answer in ((said, "", 1), ("", said, 0)):
        with pytest.raises(_ncu.NotAvailableError, match="SYS_ADMIN") as caught:
            _ncu.profile([REQUESTS], ["python"], tmp_path / "log.csv", "ncu", Runner(tmp_path / "log.csv", answer))
        assert "\n" not in str(caught.value)


def test_metrics_that_ncu_does_not_know_are_left_out_and_named(tmp_path: Path) -> None:
    """The tool stops at an unknown metric: it runs again without it; a longer name that begins alike stays."""
    log = tmp_path / "log.csv"
    refused = "==ERROR== Failed to find metric l1tex__t_requests_pipe_lsu_mem_global_op_ld_lookup.sum\n"
    wanted = [REQUESTS, SECTORS, "l1tex__t_requests_pipe_lsu_mem_global_op_ld_lookup.sum"]
    runner = Runner(log, (refused, "", 1), (CSV, "", 0))
    launches, missing = _ncu.profile(wanted, ["python"], log, "ncu", runner)
    assert runner.commands[1][runner.commands[1].index("--metrics") + 1] == f"{REQUESTS},{SECTORS}"
    assert missing == (wanted[2],)
    assert launches[0].metrics[SECTORS] == 4938268.0


def test_no_launch_at_all_is_an_error_with_ncus_last_words(tmp_path: Path) -> None:
    """A crash of the program, and errors that name every metric, end; they are not run again for ever."""
    log = tmp_path / "log.csv"
    with pytest.raises(_ncu.NcuError, match=r"exit code 9: .*No kernels were profiled"):
        _ncu.profile([REQUESTS], ["python"], log, "ncu", Runner(log, ("==WARNING== No kernels were profiled.", "Traceback", 9)))
    with pytest.raises(_ncu.NcuError, match="Failed to find"):
        _ncu.profile([REQUESTS], ["python"], log, "ncu", Runner(log, (f"==ERROR== Failed to find metric {REQUESTS}", "", 1)))


def test_ncu_is_looked_for_in_path_and_its_absence_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named ncu in PATH is found; without one the comparison is not available."""
    monkeypatch.setattr(_ncu, "_USUAL_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(_ncu.NotAvailableError, match="not in PATH"):
        _ncu.find_ncu()
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    assert _ncu.find_ncu() == str(tmp_path / "ncu")


def test_a_program_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit becomes a sentence, and output and exit code of others come back."""
    assert _ncu.run([sys.executable, "-c", "print('out'); raise SystemExit(5)"]) == _ncu.Ran(5, "out\n")
    monkeypatch.setattr(_ncu, "_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(_ncu.NcuError, match="not done after"):
        _ncu.run([sys.executable, "-c", "import time; time.sleep(60)"])
