"""One warp's access: a stride, an offset, an element; which sectors it moves and which banks it meets, lane by lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import figures, models
from gpulab.models import ACCESS_KINDS, AccessPattern
from gpulab.widgets._controls import Choice, Control, Slider
from gpulab.widgets._instrument import Action, Drawing, Instrument

# Every stride up to beyond a row of 32 banks, then the pitches of usual arrays with and without padding.
_STRIDES = (*range(41), 48, 63, 64, 65, 96, 127, 128, 129, 256, 257, 512, 1024)
_ELEMENTS = ((1, "1 byte (int8)"), (2, "2 bytes (float16)"), (4, "4 bytes (float32)"), (8, "8 bytes (float64)"), (16, "16 bytes (float4)"))


class AccessPatterns(Instrument):
    """Walk through an array with 32 lanes, and count what moves.

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
    summary = "What 32 lanes ask for at once: the sectors of device memory that move, and the banks of shared memory that wait."
    actions: tuple[Action, ...] = ()

    def make_controls(self) -> Sequence[Control]:
        """Return the kind of pattern, stride, offset, element size and active lanes."""
        kinds = [(name, f"{kind.label}: {kind.formula}") for name, kind in ACCESS_KINDS.items()]
        return [
            Choice(name="kind", label="Lane i takes", options=kinds, help="The element of each lane, as a kernel would write it."),
            Slider(name="stride_elements", label="Stride (elements)", options=_STRIDES, default=1,
                   help="From one lane to the next, or from one row to the next; 0 is one element for all."),
            Slider(name="offset_elements", label="Offset (elements)", options=range(33), default=0,
                   help="Where lane 0 begins; element 0 starts a sector and a row of banks."),
            Choice(name="element_bytes", label="Element", options=_ELEMENTS, default=4, help="What each lane asks for."),
            Slider(name="active_lanes", label="Active lanes", options=range(33), default=32, help="Lanes from 0 on that take part."),
        ]  # fmt: skip

    @property
    def pattern(self) -> AccessPattern:
        """What the warp touches with the controls as they are."""
        return _pattern(self.values)

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return sectors and banks, and their counts beside the ideal."""
        pattern = _pattern(values)
        headers, rows = pattern.table()
        return Drawing(figures.access(pattern), headers, rows, [pattern.evidence], message=pattern.explanation)

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.models.access_pattern`` or ``named_access`` and the picture."""
        numbers = ", ".join(str(values[name]) for name in ("stride_elements", "offset_elements", "element_bytes"))
        lanes = f", active_lanes={values['active_lanes']}" if values["active_lanes"] != 32 else ""
        plain = values["kind"] == "strided"
        call = f"access_pattern({numbers}{lanes})" if plain else f'named_access("{values["kind"]}", {numbers}{lanes})'
        return f"import gpulab as gl\n\na = gl.models.{call}\ngl.figures.access(a)"


def _pattern(values: Mapping[str, Any]) -> AccessPattern:
    return models.named_access(
        values["kind"], values["stride_elements"], values["offset_elements"], values["element_bytes"], active_lanes=values["active_lanes"]
    )
