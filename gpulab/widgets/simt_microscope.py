"""A kernel in the SIMT microscope: counts by line, and the steps of one warp by lane."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import traitlets

from gpulab import kernels
from gpulab.errors import InputError, StoppedError, shown
from gpulab.figures import palette
from gpulab.kernels import Simulation
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Control,
    Drawing,
    Instrument,
    Number,
    Progress,
    Stop,
    Values,
)
from gpulab.widgets._panels import Panel, script
from gpulab.widgets._simt_kernels import EXAMPLES, Launch
from gpulab.widgets._simt_views import (
    COLUMNS,
    LANES,
    Walk,
    show_source,
    table_of,
    verdict,
    warps_of,
)

_OWN = "own"
_RUNS = ("kernel", "block_number")  # the controls that begin another run
_COLORS = {
    "lane": palette.BLUISH_GREEN,
    "touched": palette.SKY_BLUE,
    "conflict": palette.ORANGE,
    "look": palette.VERMILLION,
    "guide": palette.GREY,
}


class MicroscopePanel(Panel):
    """The source with its counts, and the step of a warp: its lanes, and the sectors and banks that
    they touch.
    """

    _esm = script("simt_microscope.js")
    _css = (pathlib.Path(__file__).parent / "simt_microscope.css").read_text(encoding="utf-8")

    columns = traitlets.List(list(COLUMNS)).tag(sync=True)
    colors = traitlets.Dict(_COLORS).tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)  # names the table for a screen reader
    source: traitlets.List[Any] = traitlets.List().tag(sync=True)  # show_source()
    position = traitlets.Dict().tag(sync=True)  # Walk.show()


class SimtMicroscope(Instrument):
    """Run a kernel as warps in lockstep, and look at each line, each step, each lane.

    Parameters
    ----------
    kernel : callable or str, optional
        A kernel as ``gpulab.kernels.simulate`` takes it, or the name of one of the microscope's own
        (``example_names()``). By default the first of these is shown.
    grid, block : int or tuple of up to 3 int, optional
        Blocks of the grid and threads of a block; required for your own kernel.
    *args : ndarray or number
        The kernel's arguments. The microscope works on copies: your arrays do not change.
    dynamic_shared_bytes : int
        As for ``simulate``.
    **values
        Initial values of controls: ``block_number`` (the block that is followed), ``warp``,
        ``step`` (from 1).

    Notes
    -----
    Edit the kernel in its own cell and run that; then press Run here (or call ``run()``), which
    reads the newest function of that name.

    Examples
    --------
    >>> m = SimtMicroscope("transpose_tiled", step=6)
    >>> m.words[1].rpartition("; ")[2]
    '32 wavefronts instead of 1'
    """

    title = "SIMT microscope"
    summary = (
        "One kernel, warp by warp: what each line executes and moves, and which lanes, "
        "sectors and banks each step uses."
    )
    actions: tuple[Action, ...] = (
        Action(
            "run",
            "Run",
            "Read the kernel again and run it on fresh copies of its arrays.",
            measures=False,
        ),
    )

    # of a kernel of the learner's: whether its name stood for it when it was given, so that Run may
    # read the newest one
    _follows: bool

    def __init__(
        self,
        kernel: Any = None,
        grid: Any = None,
        block: Any = None,
        *args: Any,
        dynamic_shared_bytes: int = 0,
        **values: Any,
    ) -> None:
        self._own: Launch | None = None
        if isinstance(kernel, str):
            values = {"kernel": kernel, **values}
        elif kernel is not None:
            self._own = Launch(kernel, grid, block, args, dynamic_shared_bytes)
            self._follows = self._own.newest() is self._own
        self._microscope = MicroscopePanel(later=True)
        self._microscope.on_msg(self._on_message)
        self._examples: dict[str, Launch] = {}
        self._outputs: Mapping[str, np.ndarray] = {}
        self._walk: Walk | None = None
        # what the work leaves for ``ended``
        self._found: tuple[Walk, Mapping[str, np.ndarray]] | None = None
        self._rows: Sequence[Sequence[str]] = ()
        self._again: object = None  # another one with each wish to run the same thing once more
        self._tried: tuple[Any, ...] | None = None
        step = values.pop("step", None)
        super().__init__(**values)
        self._microscope.open_now()
        self.children = (self._panel, self._microscope, self._results)
        self._run_if_wanted()
        if step is not None:
            self.set(step=step)

    # Controls.

    def make_controls(self) -> list[Control]:
        """Return the kernel, the block and the warp that are followed; the step has its own buttons
        below them.
        """
        return [
            self._kernel_control(),
            self._block_control(),
            self._warp_control(),
            self._step_control(),
        ]

    def _kernel_control(self) -> Control:
        own = [(_OWN, f"{self._own.name} (yours)")] if self._own else []
        options = [*own, *((name, example.label) for name, example in EXAMPLES.items())]
        words = (
            "Edit your kernel in its own cell, run that cell, and press Run here."
            if self._own
            else "The code at the end is the kernel's cell: copy it, change it, and open it in "
            "the microscope as the last line shows."
        )
        return Choice(name="kernel", label="Kernel", options=options, help=words)

    def _block_control(self) -> Control:
        most = self.launch.blocks - 1
        return Number(
            name="block_number",
            label="Block",
            default=0,
            minimum=0,
            maximum=most,
            integer=True,
            help=f"The block to follow, 0 to {most:,}, where x varies fastest; the counts are "
            "summed over all blocks.",
        )

    def _warp_control(self) -> Control:
        threads = min(self.launch.threads, 1024)  # a larger block is refused by the simulation
        options = [
            (w, f"{w}: threads {LANES * w} to {min(LANES * w + LANES, threads) - 1}")
            for w in range(warps_of((threads,)))
        ]
        words = "The warp to follow: 32 threads with consecutive numbers."
        return Choice(name="warp", label="Warp", options=options, help=words, shows_only=True)

    def _step_control(self) -> Control:
        most = len(self._walk.steps(self._shown_warp)) if self._walk is not None else 0
        return Number(
            name="step",
            label="Step",
            default=1,
            minimum=1,
            maximum=max(most, 1),
            integer=True,
            shows_only=True,
        )

    def in_panel(self, control: Control) -> bool:
        """Return whether a control is in the panel on top; the step has its own slider below it."""
        return control.name != "step"

    def changed(self, name: str) -> None:
        """Adjust the block and the warp to another kernel, and the step to another warp."""
        if name == "kernel":
            self.replace_control(self._block_control())
            self.replace_control(self._warp_control())
            self.values["step"] = 1
        elif name == "warp":
            self._follow_warp()

    @property
    def _shown_warp(self) -> int:
        """The chosen warp, or the last one that the result has: for a moment a new kernel's
        controls stand over the old result.
        """
        assert self._walk is not None
        return min(int(self.values["warp"]), self._walk.warps - 1)

    def _follow_warp(self) -> None:
        """Stay at the same moment of the block: the new warp's first step that is not before it."""
        place = self._place
        self.replace_control(self._step_control())
        if self._walk is None or place is None:
            return
        steps = self._walk.steps(self._shown_warp)
        if len(steps):
            self.values["step"] = min(int(np.searchsorted(steps, place)), len(steps) - 1) + 1

    # What is driven from Python.

    @property
    def launch(self) -> Launch:
        """The kernel in the microscope, with its launch."""
        first = _OWN if self._own else next(iter(EXAMPLES))
        # none before the controls are made
        name = getattr(self, "values", {}).get("kernel", first)
        if name == _OWN:
            assert self._own is not None
            return self._own
        if name not in self._examples:
            self._examples[name] = EXAMPLES[name].launch()
        return self._examples[name]

    @property
    def step(self) -> int:
        """The step of the chosen warp, from 1."""
        return int(self.values["step"])

    @property
    def warp(self) -> int:
        """The warp of the block, from 0."""
        return int(self.values["warp"])

    @property
    def result(self) -> Any:
        """The ``Simulation``, with the trace of the block; None if the run failed."""
        self.wait()
        return super().result

    @property
    def steps(self) -> int:
        """The number of steps of the chosen warp."""
        self.wait()
        return int(self._microscope.position.get("steps", 0))

    @property
    def line(self) -> int:
        """The current line of the warp."""
        self.wait()
        return int(self._microscope.position.get("line", 0))

    @property
    def words(self) -> list[str]:
        """A description of the picture: the lanes, then each access of the step."""
        self.wait()
        position = self._microscope.position
        if not position:
            return []
        accesses = (f"{each['title']}: {each['words']}" for each in position["accesses"])
        return [position["words"], *accesses]

    @property
    def outputs(self) -> Mapping[str, np.ndarray]:
        """The arrays after the kernel, by the names of its parameters. They are copies; your arrays
        are unchanged.
        """
        self.wait()
        return self._outputs

    def go_to(self, line: int) -> None:
        """Go to the warp's next step at a line; after the last one, go to the first.

        Raises
        ------
        InputError
            If the warp never executes the line.
        """
        self.wait()
        with self._lock:
            step = self._next_at(line)
        if step is None:
            raise InputError(
                f"Warp {self.warp} never executes line {shown(line)}; expected one of its lines. "
                "Choose another line or warp."
            )
        self.set(step=step)

    def _next_at(self, line: Any) -> int | None:
        """Return the warp's next step at a line, or None."""
        if self._walk is None:
            return None
        return self._walk.next_at(self._shown_warp, self.step, line)

    @staticmethod
    def example_names() -> list[str]:
        """Return the names of the microscope's own kernels."""
        return list(EXAMPLES)

    # Runs begin by themselves: at the start, and when another kernel or block is chosen.

    def set(self, **values: Any) -> None:
        """Set controls by name, as the mouse would; another kernel or block is run at once."""
        if "step" in values or "warp" in values:
            # they are those of the new run
            if first := {name: values.pop(name) for name in _RUNS if name in values}:
                self.set(**first)
            self.wait()
        self._apply(values)

    def _apply(self, values: Values) -> None:
        super().set(**values)
        self._run_if_wanted()

    def run(self, action: str | None = None, wait: bool = False) -> None:
        """Read the kernel again and run it; a run in progress is restarted."""
        with self._lock:
            self._again = object()
            if self._own is not None and self._follows:
                self._own = self._own.newest()
            if not self.running or action not in (None, "run"):
                super().run(action)
        if wait:
            self.wait()

    def _wanted(self) -> tuple[Any, ...]:
        return self.values["kernel"], self.values["block_number"], self._again

    def _run_if_wanted(self) -> None:
        with self._lock:
            if not self.running and self._wanted() != self._tried:
                super().run("run")
                if self._walk is None:
                    self._redraw()

    def _stale(self, action: str) -> bool:
        """What is on the screen belongs to the controls, or a run is under way."""
        return False

    # The work.

    def work(self, action: str, values: Values, progress: Progress, stop: Stop) -> Simulation:
        """Run ``gl.kernels.simulate`` for the present controls; if they change meanwhile, start
        again.
        """
        while True:
            with self._lock:
                wanted = self._tried = self._wanted()
                launch, number = self.launch, self.values["block_number"]
            try:
                return self._simulate(
                    launch,
                    number,
                    progress,
                    lambda wanted=wanted: stop() or self._wanted() != wanted,  # type: ignore[misc]
                )
            except StoppedError:
                if stop():
                    raise

    def _simulate(
        self, launch: Launch, block_number: int, progress: Progress, stop: Stop
    ) -> Simulation:
        begun, name, reached = time.monotonic(), launch.name, 0.0

        def batch_done(share: float, words: str) -> None:
            nonlocal reached
            reached = share
            progress(share, f"{name}: {words}")

        def now_and_then() -> None:
            progress(reached, f"{name}: simulating for {time.monotonic() - begun:.0f} s")
            if stop():
                raise StoppedError(f"{name}: stopped; nothing was counted.")

        arguments = launch.copies()
        s = kernels.simulate(
            launch.kernel,
            launch.grid,
            launch.block,
            *arguments,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
            trace=block_number,
            stop=now_and_then,
            progress=batch_done,
        )
        if stop():
            raise StoppedError(f"{name}: stopped.")
        both = zip(launch.parameters, arguments, strict=False)
        self._found = Walk(s), {name: np.asarray(array) for name, array in both if np.ndim(array)}
        return s

    def ended(self, action: str) -> None:
        """Show the new result; the step is kept if it is still valid."""
        if self._found is not None:
            self._walk, self._outputs = self._found
            s = self._walk.simulation
            label = f"Source of {s.kernel} with its counts"
            self._microscope.write(source=show_source(s), label=label)
            self._rows = table_of(s, self._outputs)
        self.replace_control(self._warp_control())
        self.replace_control(self._step_control())

    def failed(self, action: str) -> None:
        """Remove the old result from the screen: it belongs to another kernel, or to an older
        version of this one.
        """
        self.results.clear()
        self._walk, self._outputs, self._rows = None, {}, ()
        self.replace_control(self._step_control())
        self._send_controls()
        self._redraw()

    def _end(self, *args: Any) -> None:
        with self._lock:
            super()._end(*args)
            self._run_if_wanted()  # a control may have moved in the last moment of the work

    # What is shown.

    _place: int | None = None  # of the step that is shown, in the trace of the block

    def draw(self, values: Values) -> Drawing:
        """Show the step; return the totals, the findings and the arrays as a table."""
        if self._walk is None:
            self._place = None
            self._microscope.write(source=[], position={})
            waits = "Nothing to show: choose another kernel, or press Run."
            running = "The simulation is running."
            return Drawing(message=waits if self._working is None else running)
        s, warp = self._walk.simulation, self._shown_warp
        steps = self._walk.steps(warp)
        step = min(values["step"], max(len(steps), 1))
        self._place = int(steps[step - 1]) if len(steps) else None
        self._microscope.write(position=self._walk.show(warp, step))
        headers = ("", "count", "meaning")
        return Drawing(None, headers, self._rows, [s.evidence], (), verdict(s))

    def _set_from_panel(self, name: str, raw: Any) -> None:
        """Leave out a step that the browser sent before it heard of a shorter walk: the slider has
        no field that a refusal could mark.
        """
        most = cast("Number", self.controls["step"]).maximum
        if name != "step" or not isinstance(raw, int) or raw <= most:
            super()._set_from_panel(name, raw)

    def _handle(self, content: Any) -> None:
        if content.get("do") != "line":
            super()._handle(content)
            return
        newest = self._is_new(content, "step", content.get("seq"))
        if newest and (step := self._next_at(content.get("line"))) is not None:
            self._apply({"step": step})

    def close(self) -> None:
        """Stop the work and close the widgets."""
        if hasattr(self, "_results"):  # one that was refused while it was made has none yet
            self._microscope.close()
            super().close()

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.kernels.simulate`` and the step that is shown."""
        launch, place = self.launch, self._place
        launched = launch.code()
        if launch.dynamic_shared_bytes:
            launched += f", dynamic_shared_bytes={launch.dynamic_shared_bytes}"
        if values["kernel"] == _OWN:
            head = "import numpy as np\n\n" if "np." in launched else ""
            head += (
                "import gpulab as gl\n\n# Arrays change in place here, as on a GPU; the microscope "
                "works on copies.\n"
            )
        else:
            head = EXAMPLES[values["kernel"]].cell
        lines = [
            f"{head}s = gl.kernels.simulate({launched}, trace={values['block_number']})",
            "print(s.listing())",
        ]
        if place is not None:
            first = LANES * values["warp"]
            lanes = f"list(a.elements[{first}:{first + LANES}])"
            lines += [
                f"step = s.trace[{place}]",
                f"print(step.line, [(a.array, a.kind, {lanes}) for a in step.accesses])",
            ]
        return "\n".join(
            [*lines, f"# The same in the microscope: gl.widgets.SimtMicroscope({launched})"]
        )
