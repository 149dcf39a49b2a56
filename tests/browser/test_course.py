"""The course in JupyterLab: every cell of every notebook, its outputs, both themes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lab_driver import Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SECONDS = 540  # a notebook alone takes under a minute; in tests, programs share the cores
CHECKED = "nbval-check-output"
# What the text around the cells says of values on any machine; the kernel evaluates it at the end.
HELD = {
    "00": ["honest > cpu.samples_seconds.min() / 10", "len(means) == len(samples) // 3"],
    "06": ["waiting < now"],
    "07": ["badly.ratio < well.ratio - 0.1", "torch.equal(images.cpu(), job.train[:][0])"],
    "11": ["12 < peaks[2048] / peaks[512] < 17", "together == alone", "len(run.findings) == 0"],
}
# What cells print on any machine: a pattern for each cell's id.
PRINTED = {
    "01": {
        "in-flight": r"H200: 340 ns x 4,182\.6 GB/s = 1,386\.9 KiB in flight \(RECORDED\)"
        r"|MEASURED[\s\S]*MEASURED"
    },
    "02": {"link": r"64\.0 MiB: .* ms"},
    "03": {
        "reveal-fused": r"the answer: [1-9][\d.]*x",
        "library-times": r"exp +0\.125 FLOP[\s\S]*\nfft +(6\.25|7\.5) [\s\S]*\nsolve +171 [\s\S]*"
        r"\ndepthwise +2\.11 ",
        "linear": r"batch of   1: .* 0\.5 FLOP per byte[\s\S]*batch of 256: .* 114 FLOP per byte",
        "sweep": r"512 multiply-adds: .* 128 FLOP per byte",
        "gains-recorded": r"\(RECORDED\): +[1-9][\d.,]*x",
    },
    "05": {
        "compare": r"^(\S+ .* peak [1-9][^,]*B, \S+, \S+, \S+\n+){5}$",
        "reveal-naive": r"the answer: the loss becomes nan",
        "reveal-ones": r"the answer: 2,048\b",
        "reveal-epsilon": r"the answer: no, whatever",
        "reveal-small": r"the answer: it learns nothing",
        "reveal-norms": r"the answer: in float32 on CUDA",
        "reveal-blocks": r"the answer: (100|99\.9) %",
    },
    "06": {
        "faster": r"the answer: [1-9][\d.]*x",
        "reveal-waits": r"the answer: 3 waits",
        "reveal-bytes": r"the answer: activations",
        "reveal-again": r"the answer: out of memory again",
    },
    "07": {
        "int4": r"1024 weights a scale: 4\.02 bits[\s\S]* 128 weights a scale: 4\.12 bits[\s\S]*"
        r" 32 weights a scale: 4\.50 bits",
        "cell-099": r"  1 groups: +(0\.6040|59\.19\d*) GFLOP[\s\S]*"
        r"128 groups: +(0\.0047|0\.4624) GFLOP",
    },
    "08": {
        "two": r"memory: 104 GiB .*\ntime: +172 days",
        "by-hand": r"the answer: the same",
        "reveal-overlap": r"the answer: during",
        "reveal-traffic": r"the answer: 1\.5",
        "reveal-skipped": r"the answer: the others wait",
    },
    "09": {"reveal-together": r"the answer: [\d.]+x"},
    "10": {
        "retraces-torch": r"^4 programs",
        "reveal-retraces": r"the answer: 4 programs",
        "five": r"H200\* +227 us +13\.6 us +68\.8 us +1\.02 ms +67\.9 us",
        "tf-refused": r"^\w+Error: .*(CUDA|NVIDIA)",
    },
    "11": {
        "slow": r"same num_heads[^\n]*\n+the flash kernel takes it",
        "flex": r"True",
        "causal": r"the answer: 1 key\b",
    },
}
# These cells are not compared: even their words differ between runs or processors.
VARIES = (
    "accuracy", "barrier", "cache", "compile", "dead", "detail", "flight", "gain", "ladder",
    "left-out", "levels", "lora-run", "masked-form", "merge", "oom", "pairs", "predict-free",
    "profiler", "progress", "ranks", "report", "reveal-most", "reveal-overlap", "service", "slow",
    "speedup-use", "stale", "still", "support", "tf-refused", "timer", "ways", "workers", "write",
)  # fmt: skip
# A match means live numbers: a measurement, or a time or decimals that are neither RECORDED nor
# MODELLED. Only the words of such a text are compared.
_LIVE = re.compile(
    r"MEASURED| against | on cpu|\bcpu:|\bcores?\b"
    r"|\A(?s:(?!.*(RECORDED|MODELLED)).*\d(\.\d|e-| [num]?s\b))"
)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(tab: Tab, name: str, approved: Any) -> None:
    """All cells run without error; checked cells show their kept outputs; all is readable.

    The approved text is what the cells show on a machine without a GPU. It proves that each output
    announced in the text around them is there, and that each number not measured here is right.

    Every second notebook is checked in the dark theme, the others in the light one: they show the
    same kinds of output.
    """
    theme = ("light", "dark")[NOTEBOOKS.index(name) % 2]
    tab.open(name, theme=theme)
    tab.run_all(SECONDS)
    shown = tab.page.evaluate("() => window.__lab.codeCells()")
    assert tab.complaints() == []
    cells = json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]
    kept = [cell for cell in cells if cell["cell_type"] == "code"]
    for number, (before, now) in enumerate(zip(kept, shown, strict=True)):
        if CHECKED in before["metadata"].get("tags", ()):
            assert _plain(now["outputs"]) == _plain(before["outputs"]), f"code cell {number}"
    texts = {now["id"]: _text(now["outputs"]).replace("Overwriting", "Writing") for now in shown}
    for cell, pattern in PRINTED.get(name[:2], {}).items():
        assert re.search(pattern, texts[cell]), f"{cell}: {texts[cell]}"
    cpu = tab.kernel("d = gl.devices.default(); print(d.is_cpu and d.name.partition(' (')[0])")
    if cpu != "False":  # outputs on a GPU differ between machines
        forms = [
            _form(cell, text.replace(cpu, "CPU"))
            for cell, text in texts.items()
            if text.strip() and cell not in VARIES and "not attempted" not in text
        ]
        assert "\n".join(forms) == approved
    for expression in HELD.get(name[:2], ()):
        assert tab.kernel(f"print(bool({expression}))") == "True", expression
    assert tab.unreadable(cut=False, themes=[theme]) == []


def _joined(text: Any) -> Any:
    return "".join(text) if isinstance(text, list) else text


def _plain(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each stream's text, joined from its pieces, and the results."""
    found: dict[str, Any] = {"results": []}
    for output in outputs:
        if output["output_type"] == "stream":
            found[output["name"]] = found.get(output["name"], "") + _joined(output["text"])
        else:
            data = {kind: _joined(value) for kind, value in output.get("data", {}).items()}
            found["results"].append((output["output_type"], data))
    return found


def _text(outputs: list[dict[str, Any]]) -> str:
    """Return what a cell prints and shows, as text."""
    shown = _plain(outputs)
    return "".join(
        [shown.get("stdout", ""), *(d.get("text/plain", "") for _, d in shown["results"])]
    )


def _form(cell: str, text: str) -> str:
    """Return the part of a cell's output that is the same on every machine.

    With live numbers this is each line's words before its number, otherwise the whole output.
    """
    # the number of a prediction, and the bar of %px, which appears after two seconds
    text = re.sub(r"\b\d\d\.\d{1,2}(?=[:'])|%px: [^]]*\]", "", text)
    if _LIVE.search(text) and not cell.startswith("predict"):
        text = re.sub(r"(?<=the answer:).*|(?<= against ).*| *[-+<\[(]*\d.*", "", text)
    lines = text.strip().splitlines()  # ranks print in any order
    return "\n".join([f"## {cell}", *(sorted(lines) if "rank 0" in text else lines), ""])
