"""What the tests of instruments share: names, smallest settings, what is offered and shown."""

import ast
import linecache
from typing import Any

import gpulab as gl
from gpulab import devices, widgets
from gpulab.evidence import Badge

from texts import figure_text

NAMES = [name for name in widgets.__all__ if hasattr(getattr(widgets, name), "draw")]
NAMES.remove("Instrument")
# Settings that make each action fast, and replace defaults taken from this machine.
SMALLEST: dict[str, dict[str, Any]] = {
    "CompareTimings": {"workload": "add", "n": 1024, "deadline": 0.5},
    "InferencePlanner": {"model": "Llama 3.2 1B"},
    "LossScaling": {"task": "digits-mlp", "steps": 0},
    "MemoryInspector": {"model": "mlp", "batch": 1},
    "ModelDiet": {"task": "digits-mlp", "zeros": 0.5, "fine_tune": 0.0, "batch": 1},
    "PipelineSchedule": {"stages": 2, "microbatches": 2, "forward_ms": 1, "backward_ms": 1},
    "PipelineTimeline": {"cores": 4, "batch_size": 8, "step_seconds": 0.002},
    "RooflineExplorer": {"workloads": ["add"], "size": 0.0, "deadline": 0.2},
    "ScalingLab": {"ranks": 2, "waits": True},
    "ShardingExplorer": {"model": "course", "ranks": 2, "strategy": "ddp", "positions": 64},
    "TransferExplorer": {"deadline": 2.0, "search_deadline": 5.0, "nbytes": 2**20, "chunks": 2},
}


def make(name: str, **values: Any) -> Any:
    """Make an instrument, with the number of cores set where it has a control for that."""
    fixed = {"cores": 4} if name == "PipelineTimeline" else {}
    return getattr(widgets, name)(**{**fixed, **values})


def told(instrument: Any) -> list[dict[str, Any]]:
    """Return the controls as plain data, each with its options or bounds, and its value."""
    return [
        {**c.describe(), "value": instrument.values[name], "on_screen": instrument.on_screen(c)}
        for name, c in instrument.controls.items()
    ]


def offered(instrument: Any) -> str:
    """Return title, buttons and controls as text, a line each; names of processors are replaced."""
    lines = [instrument.title, instrument.summary]
    lines += [
        f"[{a.label}] {a.help}{'' if a.measures else ' (beside others)'}"
        for a in instrument.actions
    ]
    for control in told(instrument):
        seen = "" if control["on_screen"] else "(hidden) "
        lines.append(f"{seen}{control['name']}: {control['kind']} {control['label']!r}")
        lines.append(f"  value {control['value']!r}; {control['help']}")
        lines += [f"  {text}" for text in control.get("options", ())]
        if control["kind"] == "number":
            bounds = (control["min"], control["max"], control["unit"], control["integer"])
            lines.append(f"  bounds {bounds}, suggestions {control['suggestions']}")
    return _without_machine("\n".join(lines) + "\n")


def display(instrument: Any) -> str:
    """Return what an instrument shows: message, table, status line, notes, code and picture."""
    shown = instrument.shown
    lines = [f"error: {instrument.error}", f"message: {shown.message}"]
    lines += [" | ".join(map(_cell, row)) for row in (shown.headers, *shown.rows) if row]
    lines += [f"evidence: {evidence.sentence}" for evidence in shown.evidence]
    lines += [f"note {note.code}: {note.sentence}" for note in shown.notes]
    lines += ["code:", instrument.code]
    if shown.figure is not None:
        lines += [line[:400] for line in figure_text(shown.figure).splitlines()]
    return _without_machine("\n".join(lines) + "\n")


def _cell(cell: Any) -> str:
    return cell.value if isinstance(cell, Badge) else str(cell)


def _without_machine(text: str) -> str:
    here = [device.name for device in devices.available()]
    recorded = [each.environment for each in gl.recordings.readable().values()]
    for name in [*here, *(one.device for one in recorded if one.device_kind == "cpu")]:
        text = text.replace(name, "(a processor)")
    return text


def run_cell(
    code: str, names: dict[str, Any] | None = None, file: str = "<cell>"
) -> tuple[dict[str, Any], Any]:
    """Run code as a notebook's cell: return its names, and the value of its last line or None."""
    names = {"__name__": "__main__"} if names is None else names
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    if last is None:
        return names, None
    return names, eval(compile(ast.Expression(last.value), file, "eval"), names)


def settings(control: dict[str, Any], most: int = 7) -> list[Any]:
    """Return values over a control's range: its ends, and a few or all between."""
    kind = control["kind"]
    if kind == "switch":
        return [not control["value"], control["value"]]
    if kind == "number":
        ends = [end for end in (control["min"], control["max"]) if end is not None]
        return [*ends, *_few(control["suggestions"], most)]
    texts = _few(control["options"], most)
    return [[text] for text in texts] if kind == "several" else texts


def _few(options: Any, most: int) -> list[Any]:
    options = list(options)
    if len(options) <= most:
        return options
    step = (len(options) - 1) / (most - 1)
    return [options[round(k * step)] for k in range(most)]
