"""The memory access of one warp: stride, offset and element size; which sectors it moves and which
banks it uses, lane by lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import figures, models
from gpulab.models import ACCESS_KINDS, AccessPattern
from gpulab.widgets._controls import Choice, Control, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument

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

    def make_controls(self) -> Sequence[Control]:
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
        return _pattern(self.values)

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return sectors and banks, and their counts compared with the ideal."""
        pattern = _pattern(values)
        headers, rows = pattern.table()
        return Drawing(
            figures.access(pattern), headers, rows, [pattern.evidence], message=pattern.explanation
        )

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.models.access_pattern`` or ``named_access`` and the picture."""
        numbers = ", ".join(
            str(values[name]) for name in ("stride_elements", "offset_elements", "element_bytes")
        )
        lanes = f", active_lanes={values['active_lanes']}" if values["active_lanes"] != 32 else ""
        plain = values["kind"] == "strided"
        call = (
            f"access_pattern({numbers}{lanes})"
            if plain
            else f'named_access("{values["kind"]}", {numbers}{lanes})'
        )
        return f"import gpulab as gl\n\na = gl.models.{call}\ngl.figures.access(a)"


def _pattern(values: Mapping[str, Any]) -> AccessPattern:
    return models.named_access(
        values["kind"],
        values["stride_elements"],
        values["offset_elements"],
        values["element_bytes"],
        active_lanes=values["active_lanes"],
    )
