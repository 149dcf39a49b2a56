"""Kernels without a run: the memory access of one warp, lane by lane, and the occupancy of a
launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulab import _given, devices, figures, models
from gpulab.devices import _datasheets, _facts
from gpulab.errors import DeviceError, InputError, shown
from gpulab.models import ACCESS_KINDS, AccessPattern, Occupancy
from gpulab.widgets._instrument import (
    Action,
    Choice,
    Control,
    Drawing,
    Instrument,
    Number,
    Slider,
    Values,
    call,
    cell,
)

# Every stride up to beyond a row of 32 banks, then the pitches of usual arrays with and without
# padding.
_STRIDES = (*range(41), 48, 63, 64, 65, 96, 127, 128, 129, 256, 257, 512, 1024)
_ELEMENTS = (
    (1, "1 byte (int8)"),
    (2, "2 bytes (float16)"),
    (4, "4 bytes (float32)"),
    (8, "8 bytes (float64)"),
    (16, "16 bytes (float4)"),
)


class AccessPatterns(Instrument):
    """Let 32 lanes access an array, and count sectors and bank conflicts.

    ``pattern`` is what ``gl.models.named_access`` returned for the controls.

    Examples
    --------
    >>> a = AccessPatterns(stride_elements=32)
    >>> a.pattern.sectors, a.pattern.conflict_ways
    (32, 32)
    >>> print(a.code)
    import gpulab as gl
    <BLANKLINE>
    a = gl.models.access_pattern(32, 0, 4)
    gl.figures.access(a)
    """

    title = "Access patterns"
    summary = (
        "What the 32 lanes of a warp request at once: sectors moved in device memory, and "
        "bank conflicts in shared memory."
    )
    actions: tuple[Action, ...] = ()

    def make_controls(self) -> list[Control]:
        """Return the kind of pattern, stride, offset, element size and active lanes."""
        kinds = [(name, f"{kind.label}: {kind.formula}") for name, kind in ACCESS_KINDS.items()]
        return [
            Choice(
                name="kind",
                label="Lane i takes",
                options=kinds,
                help="The element of each lane, as a kernel would write it.",
            ),
            Slider(
                name="stride_elements",
                label="Stride (elements)",
                options=_STRIDES,
                default=1,
                help="From one lane to the next, or from one row to the next; with 0 all lanes "
                "read one element.",
            ),
            Slider(
                name="offset_elements",
                label="Offset (elements)",
                options=range(33),
                default=0,
                help="Where lane 0 begins; element 0 starts a sector and a row of banks.",
            ),
            Choice(
                name="element_bytes",
                label="Element",
                options=_ELEMENTS,
                default=4,
                help="What each lane requests.",
            ),
            Slider(
                name="active_lanes",
                label="Active lanes",
                options=range(33),
                default=32,
                help="The number of lanes that take part, counted from lane 0.",
            ),
        ]

    @property
    def pattern(self) -> AccessPattern:
        """The access pattern of the warp for the present controls."""
        kind, *numbers, lanes = self.values.values()  # in the order of the controls
        return models.named_access(kind, *numbers, active_lanes=lanes)

    def draw(self, values: Values) -> Drawing:
        """Return sectors and banks, and their counts compared with the ideal."""
        pattern = self.pattern
        return Drawing.of(pattern, figures.access(pattern), pattern.explanation)

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.models.access_pattern`` or ``named_access`` and the picture."""
        kind, *numbers, lanes = values.values()
        some = {"active_lanes": lanes} if lanes != 32 else {}
        made = (
            call("models.access_pattern", *numbers, **some)
            if kind == "strided"
            else call("models.named_access", kind, *numbers, **some)
        )
        return cell(f"a = {made}", "gl.figures.access(a)")


_OWN = "none"
_KIB = 1024
_FACTS = ("name", "registers", "shared_bytes", "barriers", "max_threads", "spill_bytes")


class OccupancyExplorer(Instrument):
    """Vary a launch within the limits of an SM; ``load`` fills the controls from a compiled kernel.

    ``launch`` is what ``gl.models.occupancy`` returned for the controls.

    Examples
    --------
    >>> o = OccupancyExplorer(threads_per_block=256, registers_per_thread=64,
    ...                       compute_capability="9.0")
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

    def make_controls(self) -> list[Control]:
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
        arch = compute_capability or getattr(facts, "arch", None)
        capability = models.sm_limits(arch).compute_capability if arch is not None else None
        labels = {name: f"{name} ({capability})" if capability else name for name in found}
        with self._lock:
            before = dict(self._kernels), dict(self.controls)
            for name, label in labels.items():
                self._kernels[label] = found[name], capability, int(dynamic_shared_bytes)
            self.replace_control(self._kernel_control())
            try:
                self.set(kernel=labels[kernel or next(iter(found))])
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
        numbers, barriers = _arguments(self.values)
        return models.occupancy(*numbers, **barriers)

    def draw(self, values: Values) -> Drawing:
        """Return the curves with the launch on them, the blocks that each resource allows, and
        why.
        """
        launch = self.launch
        message = f"{launch.explanation} {self._kernel_words(values)}".strip()
        headers, rows = launch.table()
        told = [row for row in rows if row[0] != "why"]  # the sentence stands over the table
        return Drawing(figures.occupancy(launch), headers, told, [launch.evidence], message=message)

    def _kernel_words(self, values: Values) -> str:
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

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.models.occupancy`` and the picture."""
        numbers, barriers = _arguments(values)
        if values["barriers_per_block"] == 1:
            barriers = {}
        made = call("models.occupancy", *numbers, **barriers)
        return cell(f"o = {made}", "gl.figures.occupancy(o)")


def _arguments(values: Values) -> tuple[list[Any], dict[str, Any]]:
    """Return what ``gl.models.occupancy`` takes, in the order of the controls."""
    _, *numbers, barriers = values.values()
    return numbers, {"barriers_per_block": barriers}


def _capability_here() -> str | None:
    """Return the compute capability of this machine's first NVIDIA GPU, or None."""
    gpus = [device for device in devices.available() if device.kind == "cuda"]
    try:
        return _facts.accelerator(gpus[0]).compute_capability if gpus else None
    except DeviceError:  # it vanished: the capability is only a default
        return None


def _named(capability: str) -> str:
    """Return a compute capability with a product of it."""
    for part in _datasheets.PARTS:
        if part.compute_capability == capability:
            return f"{capability}, such as {part.name}"
    return capability


def _facts_of(given: Any) -> dict[str, Any]:
    """Return kernel name -> its facts, of a module or of one kernel."""
    kernels = getattr(given, "kernels", None)
    found = dict(kernels) if isinstance(kernels, Mapping) else {getattr(given, "name", ""): given}
    if not found or not all(hasattr(one, name) for one in found.values() for name in _FACTS):
        raise InputError(
            f"load: {shown(given)} does not hold the facts of a kernel; expected a CompiledModule "
            "or one of its kernels. "
            'Pass gl.kernels.compile_cuda(source, "sm_90").'
        )
    return found
