"""Occupancy of a launch: the resident warps of an SM, the limiting resource, and curves over block
size, registers, shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import _given, devices, figures, models
from gpulab.devices import _datasheets, _facts
from gpulab.errors import DeviceError, InputError, shown
from gpulab.models import Occupancy
from gpulab.widgets._controls import Choice, Control, Number, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument

_OWN = "none"
_KIB = 1024
_FACTS = ("name", "registers", "shared_bytes", "barriers", "max_threads", "spill_bytes")


class OccupancyExplorer(Instrument):
    """Vary a launch within the limits of an SM; ``load`` fills the controls from a compiled kernel.

    ``launch`` is what ``gl.models.occupancy`` returned for the controls.

    Examples
    --------
    >>> o = OccupancyExplorer(threads_per_block=256, registers_per_thread=64,
    ...     compute_capability="9.0")
    >>> o.launch.ratio, o.launch.limiter
    (0.5, 'registers')
    >>> print(o.code)
    import gpulab as gl
    <BLANKLINE>
    o = gl.models.occupancy(256, 64, 0, "9.0")
    gl.figures.occupancy(o)
    """

    title = "Occupancy"
    summary = "How many warps of a launch are resident on one SM, and which resource limits them."
    actions: tuple[Action, ...] = ()

    def __init__(self, **values: Any) -> None:
        # label -> facts, architecture, dynamic shared bytes
        self._kernels: dict[str, tuple[Any, str | None, int]] = {}
        super().__init__(**values)

    def make_controls(self) -> Sequence[Control]:
        """Return the kernel (where one was loaded), block size, registers, shared bytes, compute
        capability and barriers.
        """
        here, known = _capability_here(), models.compute_capabilities()
        return [
            self._kernel_control(),
            Number(
                name="threads_per_block",
                label="Threads of a block",
                default=256,
                minimum=1,
                maximum=1024,
                integer=True,
                suggestions=range(32, 1025, 32),
                help="Arrow keys step by whole warps; a partly filled warp counts as a whole one.",
            ),
            Slider(
                name="registers_per_thread",
                label="Registers of a thread",
                options=range(256),
                default=32,
                help="As the compiler reports them; each warp of 32 threads gets them in units "
                "of 256.",
            ),
            Number(
                name="shared_bytes_per_block",
                label="Shared memory of a block",
                unit="bytes",
                default=0,
                minimum=0,
                maximum=256 * _KIB,
                integer=True,
                suggestions=range(0, 256 * _KIB + 1, _KIB),
                help="Static and dynamic together, without what the driver "
                "adds from 8.0 on. Arrow keys step by KiB.",
            ),
            Choice(
                name="compute_capability",
                label="Compute capability",
                options=[(c, _named(c)) for c in known],
                default=here if here in known else "9.0",
                help="The generation of the GPU decides what an SM holds.",
            ),
            Slider(
                name="barriers_per_block",
                label="Barriers of a block",
                options=range(17),
                default=1,
                help="__syncthreads is one; they can be the limit from compute capability 9.0 on.",
            ),
        ]

    def _kernel_control(self) -> Control:
        options = [(_OWN, "none: your own numbers"), *((label, label) for label in self._kernels)]
        return Choice(
            name="kernel",
            label="Kernel",
            options=options,
            help="A kernel passed to load() fills the controls.",
        )

    def on_screen(self, control: Control) -> bool:
        """Return whether a control is shown: the choice of kernels only if one was loaded."""
        return control.name != "kernel" or bool(self._kernels)

    def load(
        self,
        facts: Any,
        kernel: str | None = None,
        *,
        compute_capability: str | None = None,
        dynamic_shared_bytes: int = 0,
    ) -> OccupancyExplorer:
        """Fill the controls from a compiled kernel, and add it to the list of kernels.

        Parameters
        ----------
        facts : KernelFacts or CompiledModule
            From ``gl.kernels.compile_cuda`` or ``compile_python``: one kernel's figures, or the
            module, whose kernels are all offered.
        kernel : str, optional
            Which kernel of a module to begin with; its first if not given.
        compute_capability : str, optional
            What it was compiled for, such as "9.0" or "sm_90". A module knows; for one kernel's
            figures, None leaves the control as it is.
        dynamic_shared_bytes : int
            What the launch requests in addition to the static shared memory of the source.

        Returns
        -------
        OccupancyExplorer
            The instrument itself, so that a cell can end with this call.

        Raises
        ------
        InputError
            If these are not the facts of a kernel, the module has no such kernel, or a number is
            out of range; nothing is changed then.
        """
        found = _facts_of(facts)
        if kernel is not None and kernel not in found:
            raise InputError(
                f"load: no kernel {shown(kernel)}; expected one of: {', '.join(found)}. Pass one "
                "of these, or none."
            )
        if not _given.is_whole(dynamic_shared_bytes) or dynamic_shared_bytes < 0:
            raise InputError(
                f"load: dynamic_shared_bytes={shown(dynamic_shared_bytes)}; expected a whole "
                "number, 0 or more. Pass bytes."
            )
        arch = (
            compute_capability if compute_capability is not None else getattr(facts, "arch", None)
        )
        capability = models.sm_limits(arch).compute_capability if arch is not None else None
        with self._lock:
            before = dict(self._kernels), dict(self.controls)
            labels = {
                name: name if capability is None else f"{name} ({capability})" for name in found
            }
            self._kernels |= {
                labels[name]: (one, capability, int(dynamic_shared_bytes))
                for name, one in found.items()
            }
            self.replace_control(self._kernel_control())
            try:
                self.set(kernel=labels[kernel if kernel is not None else next(iter(found))])
            except InputError:
                self._kernels, self.controls = before
                raise
        return self

    def changed(self, name: str) -> None:
        """Fill the other controls from a newly chosen kernel."""
        if name != "kernel" or self.values["kernel"] == _OWN:
            return
        for control, value in self._filled(self.values["kernel"]).items():
            self.values[control] = self.controls[control].check(value)

    def _filled(self, label: str) -> dict[str, Any]:
        """Return what a kernel sets: the most threads only where the source promised fewer than are
        asked for.
        """
        facts, capability, dynamic = self._kernels[label]
        filled = {
            "registers_per_thread": facts.registers,
            "shared_bytes_per_block": facts.shared_bytes + dynamic,
            "barriers_per_block": facts.barriers,
        }
        if capability is not None:
            filled["compute_capability"] = capability
        if facts.max_threads is not None and self.values["threads_per_block"] > facts.max_threads:
            filled["threads_per_block"] = facts.max_threads
        return filled

    # What is shown.

    @property
    def launch(self) -> Occupancy:
        """The occupancy of the launch that the controls describe."""
        return self._launch(self.values)

    def _launch(self, values: Mapping[str, Any]) -> Occupancy:
        return models.occupancy(
            values["threads_per_block"],
            values["registers_per_thread"],
            values["shared_bytes_per_block"],
            values["compute_capability"],
            barriers_per_block=values["barriers_per_block"],
        )

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the curves with the launch on them, the blocks that each resource allows, and
        why.
        """
        launch = self._launch(values)
        headers, rows = launch.table()
        told = [row for row in rows if row[0] != "why"]  # the sentence stands over the table
        message = f"{launch.explanation} {self._kernel_words(values)}".strip()
        return Drawing(figures.occupancy(launch), headers, told, [launch.evidence], message=message)

    def _kernel_words(self, values: Mapping[str, Any]) -> str:
        """Return what the compiler said of the chosen kernel, and which controls were moved away
        from it.
        """
        if values["kernel"] == _OWN:
            return ""
        facts, capability, dynamic = self._kernels[values["kernel"]]
        filled = self._filled(values["kernel"])
        moved = [
            self.controls[name].label for name, value in filled.items() if values[name] != value
        ]
        asked = f" and {dynamic:,} of the launch" if dynamic else ""
        where = f", compiled for {capability}" if capability else ""
        words = (
            f"Kernel {facts.name}{where}: {facts.registers} registers a thread, "
            f"{facts.shared_bytes:,} bytes of shared memory{asked}."
        )
        if moved:
            words += f" Changed since: {', '.join(moved)}."
        if facts.max_threads is not None:
            words += f" Its source declares blocks of at most {facts.max_threads:,} threads."
        if facts.spill_bytes:
            words += (
                f" It spills {facts.spill_bytes:,} bytes to memory for lack of registers; "
                "with fewer registers it spills more."
            )
        return words

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.models.occupancy`` and the picture."""
        numbers = ", ".join(
            str(values[name])
            for name in ("threads_per_block", "registers_per_thread", "shared_bytes_per_block")
        )
        barriers = (
            f", barriers_per_block={values['barriers_per_block']}"
            if values["barriers_per_block"] != 1
            else ""
        )
        call = f'o = gl.models.occupancy({numbers}, "{values["compute_capability"]}"{barriers})'
        return f"import gpulab as gl\n\n{call}\ngl.figures.occupancy(o)"


def _capability_here() -> str | None:
    """Return the compute capability of this machine's first NVIDIA GPU, or None."""
    try:
        return next(
            (
                _facts.accelerator(d).compute_capability
                for d in devices.available()
                if d.kind == "cuda"
            ),
            None,
        )
    except DeviceError:  # it vanished: the capability is only a default
        return None


def _named(capability: str) -> str:
    """Return a compute capability with a product of it."""
    part = next(
        (part.name for part in _datasheets.PARTS if part.compute_capability == capability), None
    )
    return capability if part is None else f"{capability}, such as {part}"


def _facts_of(given: Any) -> dict[str, Any]:
    """Return kernel name -> its facts, of a module or of one kernel."""
    found = (
        dict(given.kernels)
        if isinstance(getattr(given, "kernels", None), Mapping)
        else {getattr(given, "name", ""): given}
    )
    if not found or not all(
        hasattr(one, attribute) for one in found.values() for attribute in _FACTS
    ):
        raise InputError(
            f"load: {shown(given)} does not hold the facts of a kernel; expected a CompiledModule "
            "or one of its kernels. "
            'Pass gl.kernels.compile_cuda(source, "sm_90").'
        )
    return found
