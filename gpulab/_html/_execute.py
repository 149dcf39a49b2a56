"""Run a notebook as Run All does, wait for its instruments, and record the machine.

The learner's progress is not touched: each run has a folder and a progress file of its own. Answers
are not given, so predictions are open and exercises are "not attempted yet". An instrument that
shows nothing before its button is pressed is pressed once, so that there is something to see.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.utils import ensure_event_loop, run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from gpulab._files import TemporaryFolder, refuse_unwritable, write_atomically
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Environment

# A cell of the course takes seconds; the longest (compiling, ranks) under a minute on a busy
# machine.
_CELL_SECONDS = 600
# How long an interrupted cell may take to reply before its kernel is ended all the same.
_REPLY_SECONDS = 3.0
_KEY = "gpulab"
_LEARNERS = "my-notebooks"  # the working copy, where a learner's files lie
_QUIET = ["--log-level=40"]  # the kernel warns of a connection that no other machine can reach
_VIEW = "application/vnd.jupyter.widget-view+json"
# After each cell: instruments finish, are pressed once where they are empty, and send their whole
# state.
_SETTLE = "__import__('gpulab.widgets._instrument', fromlist=['settle']).settle()"
_STAMP = (
    "print(__import__('json').dumps(__import__('gpulab').devices.environment("
    "__import__('gpulab').devices.default()).to_dict()))"
)


def executed(notebook: Path, kept: Path | None = None) -> tuple[NotebookNode, Environment]:
    """Return a notebook with its outputs, and the machine and the time of the run.

    Parameters
    ----------
    notebook : Path
        The course's own file; it stays as it is.
    kept : Path, optional
        A folder of executed notebooks: one that has the same cells is taken from there, any other
        is run and kept there.

    Raises
    ------
    GpulabError
        If a cell fails, takes longer than ten minutes, or the kernel dies; the notebook and the
        cell are named.
    InputError
        If the file is not a notebook, or it has to be run and ``kept`` cannot be written to.
    """
    fresh = _read(notebook)
    place = None if kept is None else kept / notebook.name
    if place is not None and place.exists():
        old = _read(place)
        if _sources(old) == _sources(fresh) and _KEY in old.metadata:
            return old, Environment.from_dict(old.metadata[_KEY], str(place))
    if place is not None:
        with writing(place.parent, "--executed"):
            refuse_unwritable(place)  # before minutes of running
    done = _run(fresh, notebook.stem)
    if place is not None:
        with writing(place.parent, "--executed"):
            write_atomically(place, nbformat.writes(done).encode())
    return done, Environment.from_dict(done.metadata[_KEY])


@contextmanager
def writing(folder: Path, option: str) -> Iterator[None]:
    """Raise an error for a folder that cannot be written to, with the option that sets it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"html: {folder} cannot be written to ({error.strerror or error}); expected a writable "
            f"folder. Pass {option} with another one."
        ) from error


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]
    except Exception as error:  # whatever the file holds
        raise InputError(
            f"html: {path} is not a notebook ({error}); expected nbformat 4. Pass the course's "
            "folder."
        ) from error


def _sources(notebook: NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def _run(notebook: NotebookNode, name: str) -> NotebookNode:
    """Run all cells; return the notebook with its outputs and the machine's stamp."""
    where = ""
    # In an environment of somebody else's, as on a server, Jupyter would take a kernel of the same
    # name in the user's home.
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    with TemporaryFolder("html") as made:
        # as the kernel names it: a Mac's temporary folders lie behind a link
        folder = str(Path(made).resolve())
        progress = str(Path(folder, ".gpulab", "progress.json"))
        scratch = nbformat.v4.new_code_cell()
        # nbclient writes back each cell that it ran, so what is not the notebook's has a place
        # behind it
        notebook.cells.append(scratch)
        last = len(notebook.cells) - 1
        client = NotebookClient(
            notebook,
            timeout=_CELL_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
            extra_arguments=_QUIET,
        )
        try:
            with (
                _ended_when_interrupted(client),
                client.setup_kernel(env={**os.environ, "GPULAB_PROGRESS": progress}),
                _ended_when_interrupted(client),
            ):
                for index, cell in enumerate(notebook.cells[:last]):
                    where = f"cell {index} ({cell.get('id', 'no id')})"
                    client.execute_cell(cell, index)  # of text, nothing
                    if any(_VIEW in each.get("data", {}) for each in cell.get("outputs", ())):
                        client.execute_cell(
                            nbformat.v4.new_code_cell(_SETTLE), last, store_history=False
                        )
                where = "the machine's stamp"
                stamp = client.execute_cell(
                    nbformat.v4.new_code_cell(_STAMP), last, store_history=False
                )
                client.set_widgets_metadata()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            what = {
                CellTimeoutError: f" took longer than {_CELL_SECONDS} s. Try again when the "
                "machine is less busy.",
                DeadKernelError: ": the kernel died. Its memory may be full: see `gpulab doctor`.",
            }.get(type(error), "")
            if isinstance(error, CellExecutionError):
                what = f" failed: {error.ename}: {error.evalue}. Open it and run it there."
            raise GpulabError(f"html: {name}, {where}{what}") from error
        finally:
            del notebook.cells[last]
    printed = (output.text for output in stamp.outputs if output.output_type == "stream")
    notebook.metadata[_KEY] = json.loads("".join(printed))
    # the learner's folder for that of the run, wherever an output or a widget names it
    written = json.dumps(folder, ensure_ascii=False)[1:-1]  # as nbformat writes it
    text = nbformat.writes(notebook).replace(written, _LEARNERS)
    return nbformat.reads(text, as_version=4)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


@contextmanager
def _ended_when_interrupted(client: Any) -> Iterator[None]:
    """At Ctrl-C, end what nbclient waits for, and then the kernel, without a word.

    An interrupt leaves nbclient's tasks in the loop. They would go on while the kernel is ended,
    listen on closed sockets, and asyncio would print their tracebacks.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # the latter at SIGTERM
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loop = ensure_event_loop()
            # the task that the interrupt hit has an error that nobody asks for
            loop.set_exception_handler(lambda loop, context: None)
            loop.run_until_complete(_end(asyncio.all_tasks(loop), client.km))
        else:
            # of a notebook, with tasks of others in it: nbclient's own run in another thread's
            run_sync(_end)(set(), client.km)
        raise


async def _end(tasks: set[asyncio.Task[Any]], manager: Any) -> None:
    """Interrupt the cell, hear its reply, drop what still waits, end the kernel: ended in a cell,
    it would complain of its sockets.
    """
    if tasks and manager is not None and manager.has_kernel:
        await manager.interrupt_kernel()
        await asyncio.wait(tasks, timeout=_REPLY_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if manager is not None and manager.has_kernel:
        await manager.shutdown_kernel()
