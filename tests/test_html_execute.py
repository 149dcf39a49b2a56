"""Running a notebook for its page, with a recorder in the place of nbclient's client: what runs, where, in which order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupyter_core.paths
import nbclient
import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager

from gpulab._html import _execute
from gpulab.errors import InputError
from gpulab.evidence import Environment
from gpulab.widgets import _still

WHERE = Environment("2026-03-04T05:06:07+00:00", "Linux", "A Processor", 2, 8 * 2**30, "A Device", "cpu", None, "3.11.2", {"torch": "2.9"})
VIEW = "application/vnd.jupyter.widget-view+json"


class Client:
    """What ``_run`` asks of nbclient: it shows the run's folder in each cell, and an instrument where the cell's words say so."""

    ran: list[tuple[str, int, bool]]
    progress: list[Path]
    given: dict[str, Any]

    def __init__(self, notebook: Any, **given: Any) -> None:
        self.notebook, self.km = notebook, None
        type(self).given = given
        self.folder = given["resources"]["metadata"]["path"]

    @contextlib.contextmanager
    def setup_kernel(self) -> Iterator[None]:
        """Start nothing."""
        yield

    def execute_cell(self, cell: Any, index: int, store_history: bool = True) -> Any:
        """Note the cell, and write it back at its place as nbclient does."""
        type(self).ran.append((cell.source, index, store_history))
        type(self).progress.append(Path(os.environ["GPULAB_PROGRESS"]).relative_to(self.folder))
        if cell.source == _execute._STAMP:
            cell.outputs = [nbformat.v4.new_output("stream", text=json.dumps(WHERE.to_dict()))]
        elif "instrument" in cell.source:
            cell.outputs = [nbformat.v4.new_output("display_data", {VIEW: {"model_id": "x"}, "text/plain": self.folder})]
        else:
            cell.outputs = [nbformat.v4.new_output("stream", text=f"in {self.folder}/data")]
        self.notebook.cells[index] = cell
        return cell

    def set_widgets_metadata(self) -> None:
        """Leave the folder in a widget's state, inside a list."""
        self.notebook.metadata["widgets"] = {"state": [{"text": f"{self.folder}/x"}, 3]}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    """The recorder, in the place of nbclient's."""
    Client.ran, Client.progress = [], []
    monkeypatch.setattr(nbclient, "NotebookClient", Client)
    return Client


def course(folder: Path) -> Path:
    """A notebook of text, a plain cell, an instrument, text and another plain cell."""
    code, text = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    cells = [text("# T"), code("1 + 1"), code("instrument"), text("then"), code("2 + 2")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "01_first.ipynb")
    return folder / "01_first.ipynb"


def test_instruments_settle_after_their_cell_and_nothing_of_it_stays(client: type[Client], tmp_path: Path) -> None:
    """Text is not run; after a cell with an instrument, and after no other, comes the settling, behind the notebook's last cell."""
    notebook, where = _execute.executed(course(tmp_path))
    assert [(source, index) for source, index, _ in client.ran] == [
        ("1 + 1", 1), ("instrument", 2), (_execute._SETTLE, 5), ("2 + 2", 4), (_execute._STAMP, 5),
    ]  # fmt: skip
    assert [kept for *_, kept in client.ran] == [True, True, False, True, False], "In [n] counts the learner's cells alone"
    assert [cell.source for cell in notebook.cells] == ["# T", "1 + 1", "instrument", "then", "2 + 2"]
    assert where == WHERE
    assert notebook.metadata["gpulab"] == WHERE.to_dict()
    asked = {name: client.given[name] for name in ("timeout", "kernel_name", "coalesce_streams")}
    assert asked == {"timeout": 600, "kernel_name": "python3", "coalesce_streams": True}  # ten minutes; a printed line is one output


def test_the_settling_cell_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel is given calls ``settle``, with nothing of its own left behind among the learner's names."""
    called: list[bool] = []
    monkeypatch.setattr(_still, "settle", lambda: called.append(True))
    names: dict[str, Any] = {}
    exec(_execute._SETTLE, names)
    assert called == [True]
    assert set(names) == {"__builtins__"}


def test_the_runs_folder_reads_as_the_learners_wherever_it_stands(
    client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In streams, in data and deep inside a widget's state; answers are kept in that folder, the learner's own file is left alone."""
    monkeypatch.setenv("GPULAB_PROGRESS", "mine.json")
    notebook, _ = _execute.executed(course(tmp_path))
    assert notebook.cells[1].outputs[0].text == "in my-notebooks/data"
    assert notebook.cells[2].outputs[0].data == {VIEW: {"model_id": "x"}, "text/plain": "my-notebooks"}
    assert notebook.metadata["widgets"] == {"state": [{"text": "my-notebooks/x"}, 3]}
    assert set(client.progress) == {Path(".gpulab/progress.json")}
    assert os.environ["GPULAB_PROGRESS"] == "mine.json"
    monkeypatch.delenv("GPULAB_PROGRESS")
    _execute.executed(tmp_path / "01_first.ipynb")
    assert "GPULAB_PROGRESS" not in os.environ


def test_the_kernel_is_this_environments_though_the_learner_has_one_of_the_name(
    client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jupyter_core puts a home's kernels first where the environment belongs to somebody else, as on a class's server."""
    mine = tmp_path / "jupyter" / "kernels" / "python3"
    mine.mkdir(parents=True)
    (mine / "kernel.json").write_text(json.dumps({"argv": ["/usr/bin/python3"], "display_name": "mine", "language": "python"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setattr(jupyter_core.paths, "_do_i_own", lambda path: False)
    for name in ("JUPYTER_PREFER_ENV_PATH", "JUPYTER_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    names: list[str] = []

    @contextlib.contextmanager
    def setup_kernel(self: Client) -> Iterator[None]:
        names.append(KernelSpecManager().get_kernel_spec("python3").display_name)
        yield

    monkeypatch.setattr(client, "setup_kernel", setup_kernel)
    _execute.executed(course(tmp_path))
    assert names == ["Python 3 (ipykernel)"]
    assert "JUPYTER_PREFER_ENV_PATH" not in os.environ
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")  # whoever says so wants the own one
    _execute.executed(tmp_path / "01_first.ipynb")
    assert names[1:] == ["mine"]


def test_a_temporary_folder_behind_a_link_reads_as_the_learners_too(
    client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Mac's /var is a link to /private/var, and a process there names its folder by the latter (getcwd(3))."""
    (tmp_path / "private" / "var").mkdir(parents=True)
    (tmp_path / "var").symlink_to(tmp_path / "private" / "var", target_is_directory=True)
    monkeypatch.setattr(_execute.tempfile, "tempdir", str(tmp_path / "var"))
    given = client.__init__

    def in_its_own_words(self: Client, notebook: Any, **options: Any) -> None:
        given(self, notebook, **options)
        self.folder = os.path.realpath(self.folder)

    monkeypatch.setattr(client, "__init__", in_its_own_words)
    notebook, _ = _execute.executed(course(tmp_path))
    assert notebook.cells[1].outputs[0].text == "in my-notebooks/data"
    assert set(client.progress) == {Path(".gpulab/progress.json")}
    assert list((tmp_path / "var").iterdir()) == []


def test_a_folder_that_cannot_keep_a_run_is_refused_before(client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands in the folder's place: nothing runs. A folder that is only read is as good where what it keeps still fits."""
    source, kept = course(tmp_path), tmp_path / "kept"
    kept.write_text("mine")
    with pytest.raises(InputError, match=r"html: .*kept cannot be written to \(Not a directory\); .* Give --executed another one"):
        _execute.executed(source, kept)
    assert client.ran == []
    _execute.executed(source, tmp_path / "other")
    first = len(client.ran)
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    _execute.executed(source, tmp_path / "other")
    assert len(client.ran) == first


def test_a_run_that_cannot_be_kept_is_told_in_a_sentence(client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full after minutes of running: one sentence that names the folder, and nothing half written beside it."""

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_execute, "write_atomically", full)
    with pytest.raises(InputError, match=r"html: .*kept cannot be written to \(No space left on device\); .* Give --executed another one"):
        _execute.executed(course(tmp_path), tmp_path / "kept")
    assert not list(tmp_path.glob("kept/*"))


def test_what_was_kept_is_taken_where_it_has_the_same_cells(client: type[Client], tmp_path: Path) -> None:
    """A second time nothing runs and outputs and stamp are there; a changed text, or a file without a stamp, is run again."""
    source, kept = course(tmp_path), tmp_path / "deep" / "kept"
    _execute.executed(source, kept)
    first = len(client.ran)
    again, where = _execute.executed(source, kept)
    assert (len(client.ran), where) == (first, WHERE)
    assert again.cells[1].outputs[0].text == "in my-notebooks/data"
    stored = nbformat.read(kept / source.name, as_version=4)
    del stored.metadata["gpulab"]
    nbformat.write(stored, kept / source.name)
    _execute.executed(source, kept)
    assert len(client.ran) == 2 * first
    changed = nbformat.read(source, as_version=4)
    changed.cells[3].source = "otherwise"
    nbformat.write(changed, source)
    _execute.executed(source, kept)
    assert len(client.ran) == 3 * first


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("CellTimeoutError", r"html: 01_first, cell 2 \(.+\) took longer than 600 s\. Try"),
        ("DeadKernelError", r"html: 01_first, cell 2 \(.+\): the kernel died"),
    ],
)
def test_a_cell_that_does_not_end_is_named(
    error: str, words: str, client: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too long, or a dead kernel: one sentence with the notebook and the cell."""
    from nbclient import exceptions

    from gpulab.errors import GpulabError

    whole = client.execute_cell

    def execute(self: Client, cell: Any, index: int, store_history: bool = True) -> Any:
        if index == 2:
            raise getattr(exceptions, error)("no")
        return whole(self, cell, index, store_history)

    monkeypatch.setattr(client, "execute_cell", execute)
    with pytest.raises(GpulabError, match=words):
        _execute.executed(course(tmp_path))


class Manager:
    """A kernel that can be interrupted and ended."""

    def __init__(self, log: list[str], replies: bool = True) -> None:
        self.log, self.has_kernel, self.replies = log, True, replies
        self.reply = asyncio.Event()

    async def interrupt_kernel(self) -> None:
        """Reply, where this kernel does."""
        self.log.append("interrupt")
        if self.replies:
            self.reply.set()

    async def shutdown_kernel(self) -> None:
        """End."""
        self.log.append("shutdown")
        self.has_kernel = False


def in_a_loop_of_its_own(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it in another thread: where the browser tests ran before in this process, their loop still runs in this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


@pytest.mark.parametrize(("replies", "log"), [(True, ["interrupt", "reply", "shutdown"]), (False, ["interrupt", "shutdown"])])
def test_an_interrupted_cell_may_reply_before_its_kernel_ends(replies: bool, log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is heard where there is one; what still waits is dropped; the error of a task stops nothing."""
    monkeypatch.setattr(_execute, "_REPLY_SECONDS", 5.0 if replies else 0.01)
    said: list[str] = []

    async def run() -> bool:
        manager = Manager(said, replies)

        async def cell() -> None:
            await manager.reply.wait()
            said.append("reply")
            raise RuntimeError("interrupted")

        task = asyncio.ensure_future(cell())
        await asyncio.sleep(0)
        await _execute._end({task}, manager)
        return task.done()

    assert in_a_loop_of_its_own(run())
    assert said == log


@pytest.mark.parametrize(("up", "log"), [(True, ["shutdown"]), (False, [])])
def test_a_kernel_without_a_cell_is_ended_and_not_interrupted(up: bool, log: list[str]) -> None:
    """Between cells nothing waits for a reply; where no kernel is up, or none was ever made, there is nothing to end."""
    said: list[str] = []

    async def run() -> None:
        manager = Manager(said)
        manager.has_kernel = up
        await _execute._end(set(), manager)
        waiting = asyncio.ensure_future(asyncio.sleep(60))
        await _execute._end({waiting}, None)
        assert waiting.cancelled()

    in_a_loop_of_its_own(run())
    assert said == log
