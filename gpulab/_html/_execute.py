"""Run a notebook as Run All does, wait for its instruments, and record the machine.

The learner's progress is not touched: each run has a folder and a progress file of its own. Answers
are not given, so predictions are open and exercises are "not attempted yet". An instrument that
shows nothing before its button is pressed is pressed once, so that there is something to see.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from gpulab import devices
from gpulab.errors import GpulabError, InputError
from gpulab.evidence import Environment

# A cell of the course takes seconds; the longest (compiling, ranks) under a minute on a busy
# machine.
_CELL_SECONDS = 600
_LEARNERS = "my-notebooks"  # the working copy, where a learner's files lie
# hides the kernel's messages about its connection and about its end at Ctrl-C
_QUIET = ["--log-level=50"]
_VIEW = "application/vnd.jupyter.widget-view+json"
# Run after each cell that shows widgets: the instruments finish their work, the first button of
# each empty one is pressed, and all of them send their whole state.
_SETTLE = "__import__('gpulab.widgets._instrument', fromlist=['settle']).settle()"


def executed(notebook: Path) -> tuple[NotebookNode, Environment]:
    """Return a notebook with its outputs, and the machine and the time of the run.

    Parameters
    ----------
    notebook : Path
        The course's own file; it stays as it is.

    Raises
    ------
    GpulabError
        If a cell fails, takes longer than ten minutes, or the kernel dies; the notebook and the
        cell are named.
    InputError
        If the file is not a notebook.
    """
    made = _read(notebook)
    where = ""
    # If the environment belongs to another user, as on a server, Jupyter would otherwise prefer a
    # kernel of the same name in this user's home.
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    with tempfile.TemporaryDirectory(
        prefix="gpulab-html-", ignore_cleanup_errors=True
    ) as temporary:
        # resolved, as the kernel names it: on macOS temporary folders lie behind a link
        folder = str(Path(temporary).resolve())
        progress = str(Path(folder, ".gpulab", "progress.json"))
        # nbclient writes each cell that it has run into the notebook, so the extra code gets a
        # cell of its own at the end, which is removed below
        made.cells.append(nbformat.v4.new_code_cell())
        last = len(made.cells) - 1
        client = NotebookClient(
            made,
            timeout=_CELL_SECONDS,
            # seconds to wait for a cell's last messages; nbclient's own 4 are few on a busy machine
            iopub_timeout=60,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            coalesce_streams=True,
            extra_arguments=_QUIET,
        )
        try:
            with client.setup_kernel(env={**os.environ, "GPULAB_PROGRESS": progress}):
                for index, cell in enumerate(made.cells[:last]):
                    where = f"cell {index} ({cell.get('id', 'no id')})"
                    client.execute_cell(cell, index)  # does nothing for a text cell
                    if any(_VIEW in each.get("data", {}) for each in cell.get("outputs", ())):
                        client.execute_cell(
                            nbformat.v4.new_code_cell(_SETTLE), last, store_history=False
                        )
                client.set_widgets_metadata()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            what = {
                CellTimeoutError: f" took longer than {_CELL_SECONDS} s. Try again when the "
                "machine is less busy.",
                DeadKernelError: ": the kernel died. Its memory may be full: see `gpulab doctor`.",
            }.get(type(error), "")
            if isinstance(error, CellExecutionError):
                what = f" failed: {error.ename}: {error.evalue}. Run this cell in JupyterLab."
            raise GpulabError(f"html: {notebook.stem}, {where}{what}") from error
        finally:
            del made.cells[last]
    # replace the run's folder by the learner's, wherever an output or a widget names it
    written = json.dumps(folder, ensure_ascii=False)[1:-1]  # as nbformat writes it
    text = nbformat.writes(made).replace(written, _LEARNERS)
    done = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call,unused-ignore]
    return done, devices.environment(devices.default())


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]
    except Exception as error:  # whatever the file holds
        raise InputError(
            f"html: {path} is not a notebook ({error}); expected nbformat 4. Remove the file, or "
            "pass --notebooks with another folder."
        ) from error
