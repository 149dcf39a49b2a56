"""Kernels without a run: the memory access of one warp, and the occupancy of a launch."""

from __future__ import annotations

from typing import Any

from gpulab import devices, figures, models
from gpulab.devices import datasheets, device_facts
from gpulab.errors import DeviceError
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
        "What the 32 lanes of a warp request at once: sectors moved in device memory, and bank "
        "conflicts in shared memory."
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


_KIB = 1024


class OccupancyExplorer(Instrument):
    """Vary a launch within the limits of an SM.

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

    def make_controls(self) -> list[Control]:
        """Return block size, registers, shared bytes, compute capability and barriers."""
        here, known = _capability_here(), models.compute_capabilities()
        return [
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
                help="As the compiler reports them; each warp of 32 threads gets them in units of "
                "256.",
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
        headers, rows = launch.table()
        facts = [row for row in rows if row[0] != "why"]  # the sentence stands over the table
        return Drawing(
            figures.occupancy(launch),
            headers,
            facts,
            [launch.evidence],
            message=launch.explanation,
        )

    def code_for(self, values: Values) -> str:
        """Return the call of ``gl.models.occupancy`` and the picture."""
        numbers, barriers = _arguments(values)
        if values["barriers_per_block"] == 1:
            barriers = {}
        made = call("models.occupancy", *numbers, **barriers)
        return cell(f"o = {made}", "gl.figures.occupancy(o)")


def _arguments(values: Values) -> tuple[list[Any], dict[str, Any]]:
    """Return what ``gl.models.occupancy`` takes, in the order of the controls."""
    *numbers, barriers = values.values()
    return numbers, {"barriers_per_block": barriers}


def _capability_here() -> str | None:
    """Return the compute capability of this machine's first NVIDIA GPU, or None."""
    gpus = [device for device in devices.available() if device.kind == "cuda"]
    try:
        return device_facts.accelerator(gpus[0]).compute_capability if gpus else None
    except DeviceError:  # it vanished: the capability is only a default
        return None


def _named(capability: str) -> str:
    """Return a compute capability with a product of it."""
    for part in datasheets.PARTS:
        if part.compute_capability == capability:
            return f"{capability}, such as {part.name}"
    return capability
