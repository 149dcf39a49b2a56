"""What this machine has, what is wrong with it and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulab import devices, figures
from gpulab.devices import Machine
from gpulab.widgets._controls import Control, Switch
from gpulab.widgets._instrument import Action, Drawing, Instrument
from gpulab.widgets._work import Progress, Stop


class MachineCard(Instrument):
    """Show processors, memories, accelerators, libraries, and problems with their remedies.

    ``result`` is the ``Machine`` that ``gl.machine`` returned; the card calls it when it is made,
    and again at each Refresh.
    """

    title = "This machine"
    summary = "What the course can use here, what is wrong, and how to fix it."
    actions: tuple[Action, ...] = (
        Action("refresh", "Refresh", "Look at the machine again.", measures=False),
    )

    def __init__(self, **values: Any) -> None:
        self._first = devices.machine()
        super().__init__(**values)
        self.publish("refresh", self._first)

    def make_controls(self) -> Sequence[Control]:
        """Return the one switch."""
        return [
            Switch(
                name="problems_only",
                label="Only what needs fixing",
                shows_only=True,
                help="Hide what works; on a machine without problems the table is then empty.",
            )
        ]

    def work(
        self, action: str, values: Mapping[str, Any], progress: Progress, stop: Stop
    ) -> Machine:
        """Run ``gl.machine``."""
        return devices.machine()

    def code_for(self, values: Mapping[str, Any]) -> str:
        """Return the call of ``gl.machine``."""
        return "import gpulab as gl\n\ngl.machine()"

    def draw(self, values: Mapping[str, Any]) -> Drawing:
        """Return the table with the problems first, and the sizes of the memories."""
        m: Machine = self.results.get("refresh", self._first)
        _, rows = m.table()
        severities = ("error: ", "warning: ")
        problems = [list(row) for row in rows if row[0].startswith(severities)]
        others = (
            []
            if values["problems_only"]
            else [list(row) for row in rows if not row[0].startswith(severities)]
        )
        figure = None if values["problems_only"] else figures.machine(m)
        count = len(problems)
        message = (
            "Nothing to fix."
            if count == 0
            else f"{count} thing{'s' if count != 1 else ''} to fix: the first "
            f"row{'s' if count != 1 else ''} of the table."
        )
        return Drawing(
            figure, ("part", "result"), [*problems, *others], [m.evidence], message=message
        )
