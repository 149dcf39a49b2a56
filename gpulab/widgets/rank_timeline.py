"""A real training run over several ranks, with any strategy: which rank computed, communicated or waited, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures, networks, parallel
from gpulab.evidence import Note
from gpulab.parallel import StrategyResult
from gpulab.units import format_bytes, format_seconds
from gpulab.widgets._controls import Choice, Control, Slider
from gpulab.widgets._instrument import Action, Drawing
from gpulab.widgets._ranks import OnRanks
from gpulab.widgets._work import Progress, Stop

_WORDS = {
    "single": "every rank does all the work", "data": "data parallel by hand", "ddp": "DDP", "ddp-no-overlap": "DDP without overlap",
    "ddp-no-sync": "DDP, accumulated", "zero1": "ZeRO 1", "zero2": "ZeRO 2 (FSDP2)", "zero3": "ZeRO 3 (FSDP2)",
    "tensor": "tensor parallel", "sequence": "tensor and sequence parallel", "split": "split by hand",
    "pipeline-gpipe": "pipeline, GPipe", "pipeline-1f1b": "pipeline, 1F1B",
}  # fmt: skip
_MICROBATCHED = ("ddp-no-sync", "pipeline-gpipe", "pipeline-1f1b")
_BUCKETED = ("ddp", "ddp-no-overlap", "ddp-no-sync", "zero1")
_PYTORCHS_BUCKET = 25 * 1024  # KiB
_STEPS = 6
_CONTEXT = 64  # characters of the task's windows


class RankTimeline(OnRanks):
    """Train a small transformer over ranks and look at the last steps, rank by rank.

    ``result`` is a ``gpulab.parallel.StrategyResult``.

    Examples
    --------
    >>> print(RankTimeline(strategy="split", ranks=2).code)
    import gpulab as gl
    <BLANKLINE>
    r = gl.parallel.train(2, "split", steps=6, batch_size=16)
    gl.figures.rank_timeline(r.timeline, steps=2)
    """

    stops_by_itself = True
    title = "Ranks at work"
    summary = "A small transformer trained over real ranks: when each rank computes, communicates and waits for another one."
    actions: tuple[Action, ...] = (Action("run", "Run on ranks", f"Start the ranks, train {_STEPS} steps, and keep the ranks running."),)

    def make_controls(self) -> Sequence[Control]:
        """Return the strategy, the ranks, the model, the batch and its parts, then the number of steps drawn."""
        strategies = [(name, f"{name}: {_WORDS[name]}" if name in _WORDS else name) for name in parallel.strategies()]
        buckets = [(k, f"{k} KiB") for k in (16, 64, 256)] + [(_PYTORCHS_BUCKET, "25 MiB (PyTorch's)")]
        return [
            Choice(name="strategy", label="Strategy", options=strategies, default="ddp", help="How the work is divided among the ranks."),
            Slider(name="ranks", label="Ranks", options=(2, 3, 4), default=2, help="Processes, each with one thread."),
            Slider(name="layers", label="Layers", options=(2, 4, 8), default=2, help="Of the transformer; each stage needs at least one."),
            Slider(name="width", label="Width", options=(32, 64, 128, 256), default=64, help="Features of a token; the work of a layer "
                   "grows with the square of the width."),
            Slider(name="batch_size", label="Batch", options=(4, 8, 16, 32, 64), default=16, help="Windows of 64 characters per step, "
                   "over all ranks."),
            Slider(name="microbatches", label="Microbatches", options=(1, 2, 4, 8, 16), default=4, help="Parts of the batch that a rank "
                   "processes one after another."),
            Slider(name="bucket_kib", label="Gradients sent together", options=buckets, default=64, help="The size of DDP's buckets. If "
                   "one bucket holds all gradients, none can be sent early."),
            Slider(name="shown_steps", label="Steps drawn", options=(1, 2, 3), default=2, shows_only=True, help="Of the last three steps."),
        ]  # fmt: skip

    def on_screen(self, control: Control) -> bool:
        """Return whether the control applies to the strategy."""
        known = {"microbatches": _MICROBATCHED, "bucket_kib": _BUCKETED}.get(control.name)
        return known is None or self.values["strategy"] in known

    def _arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what ``gl.parallel.train`` takes after the ranks, but the model."""
        given = {"strategy": values["strategy"], "steps": _STEPS, "batch_size": values["batch_size"]}
        if values["strategy"] in _MICROBATCHED:
            given["microbatches"] = values["microbatches"]
        if values["strategy"] in _BUCKETED:
            given["bucket_bytes"] = values["bucket_kib"] * 1024
        return given

    def _sizes(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Return what differs from the task's own transformer."""
        return {name: values[name] for name, usual in (("width", 64), ("layers", 2)) if values[name] != usual}

    def _model(self, values: Mapping[str, Any]) -> Any:
        """Return the transformer, or None for the task's own."""
        if not self._sizes(values):
            return None
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return networks.transformer(**self._shape(values))

    def _shape(self, values: Mapping[str, Any]) -> dict[str, Any]:
        from gpulab.training import task

        vocabulary = int(task("prose-transformer").train.targets.max()) + 1
        return {"vocabulary": vocabulary, "width": values["width"], "layers": values["layers"], "context": _CONTEXT}

    def work(self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop) -> StrategyResult:
        """Run ``gl.parallel.train``."""
        with self.ranks(values["ranks"], progress, stop) as ranks:
            return parallel.train(ranks, model=self._model(values), **self._arguments(values), progress=progress, stop=stop)

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the lanes, each rank's seconds, bytes and memory, and whether the result equals that of one process."""
        r: StrategyResult | None = self.result
        if r is None:
            return Drawing(message="Press Run on ranks: it starts processes on this machine that train with this strategy.")
        headers = ("per step", "computes", "messages", "overlapped with compute", "waits", "payload", "memory")
        rows = [_row(r, rank) for rank in range(r.ranks)]
        return Drawing(
            figures.rank_timeline(r.timeline, values["shown_steps"]),
            headers,
            rows,
            [r.evidence],
            [*r.notes, *_shared_cores(r)],
            _verdict(r),
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.parallel.train`` and its figure."""
        given = self._arguments(values)
        first = f'{values["ranks"]}, "{given.pop("strategy")}"'
        words = "".join(f", {name}={value!r}" for name, value in given.items())
        figure = f"gl.figures.rank_timeline(r.timeline, steps={values['shown_steps']})"
        if not self._sizes(values):
            return f"import gpulab as gl\n\nr = gl.parallel.train({first}{words})\n{figure}"
        shape = ", ".join(f"{name}={value}" for name, value in self._shape(values).items())
        return (
            "import gpulab as gl\nimport torch\n\ntorch.manual_seed(0)\n"
            f"model = gl.networks.transformer({shape})\nr = gl.parallel.train({first}, model=model{words})\n{figure}"
        )


def _row(r: StrategyResult, rank: int) -> tuple[str, ...]:
    """Return a rank's seconds a step with their shares, its bytes and its memory."""
    steps = max(1, len(r.timeline.steps))
    whole = r.timeline.end_seconds / steps
    seconds = {**r.seconds(rank), "beside": r.timeline.overlap_seconds(rank) / steps}
    told = [f"{format_seconds(seconds[kind])} ({seconds[kind] / whole:.0%})" for kind in ("compute", "communication", "beside", "idle")]
    report = r.reports[rank]
    return (f"rank {rank}", *told, format_bytes(sum(report.payload_bytes.values())), format_bytes(report.peak_bytes))


def _verdict(r: StrategyResult) -> str:
    """Return what the run shows, in words."""
    same = "computes what one process computes" if r.agrees else "does not compute what one process computes"
    if r.has_note("diverged"):
        same = "diverges, as one process does"
    total = [sum(r.timeline.seconds(rank)[kind] for rank in range(r.ranks)) for kind in ("compute", "communication", "idle")]
    whole = r.ranks * r.timeline.end_seconds
    beside = sum(r.timeline.overlap_seconds(rank) for rank in range(r.ranks))
    hidden = f", {beside / total[1]:.0%} of that overlapped with compute" if total[1] > 0 else ""
    return (
        f"{r.strategy} on {r.ranks} ranks {same} (losses differ by at most {r.loss_difference:.1g}). The ranks compute "
        f"{total[0] / whole:.0%} of the time, messages move {total[1] / whole:.0%}{hidden}, and they wait {total[2] / whole:.0%}."
    )


def _shared_cores(r: StrategyResult) -> list[Note]:
    """Return a note where there are more ranks than cores."""
    cores = devices.environment("cpu").cores
    if r.ranks <= cores:
        return []
    sentence = (
        f"{r.ranks} ranks share {cores} core{'s' if cores > 1 else ''} and take turns on them: bytes, memory and the order of events are "
        "as on that many devices, times are not. Use fewer ranks for realistic times."
    )
    return [Note("contended", sentence)]
