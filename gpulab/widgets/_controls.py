"""Controls: label, default, and the validation of each value from the mouse or from Python.

Controls are plain data. The panel in the browser is drawn from ``describe()`` and sends back the
reader's raw input. ``read`` converts that input to a value, or refuses it with a one-sentence
error. A choice is sent as its index and its text, because the list may change before the kernel
receives the message.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gpulab._validate import is_whole
from gpulab.errors import InputError, shown

_MOST_NAMED = 40  # options that an error lists; of more, only the first ones and the last


@dataclass(frozen=True, kw_only=True)
class Control:
    """The base class of all controls.

    Attributes
    ----------
    name : str
        The key in ``instrument.values`` and in ``instrument.set(name=...)``.
    label : str
        What the reader sees, with the unit.
    help : str
        One sentence, shown while the control has the focus or the mouse.
    default : object
        The initial value.
    shows_only : bool
        True if the control changes only what is shown, not what is measured.
    for_actions : tuple of str
        The actions whose results depend on the control; empty means all of them.
    views : tuple of str
        The values of the control named ``view`` for which this control is shown; empty means all of
        them.
    when : callable, optional
        Takes the values of all controls, and returns whether this control is shown.
    in_panel : bool
        False for a control that the instrument draws elsewhere than in the panel on top.
    """

    kind: ClassVar[str]

    name: str
    label: str
    help: str = ""
    default: Any = None
    shows_only: bool = False
    for_actions: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    when: Callable[[Mapping[str, Any]], bool] | None = None
    in_panel: bool = True

    @property
    def initial(self) -> Any:
        """The initial value."""
        return self.default

    def check(self, value: Any) -> Any:
        """Return the validated value, as the instrument stores it.

        Raises
        ------
        InputError
            If the value is not valid for the control; the message is one sentence.
        """
        raise NotImplementedError

    def read(self, raw: Any) -> Any:
        """Return the value for the panel's raw input; raises ``InputError`` as ``check`` does."""
        return self.check(raw)

    def raw(self, value: Any) -> Any:
        """Return the value in the form that the panel expects."""
        return value

    def describe(self) -> dict[str, Any]:
        """Return the control as JSON for the panel."""
        return {"name": self.name, "label": self.label, "help": self.help, "kind": self.kind}


def pairs(options: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return value and text of each option; where options share a text (two recordings of one
    processor), the value is added to it.
    """
    found = [option if isinstance(option, tuple) else (option, str(option)) for option in options]
    times = Counter(text for _, text in found)
    return [(value, f"{text}, {value}" if times[text] > 1 else text) for value, text in found]


@dataclass(frozen=True, kw_only=True)
class _Options(Control):
    """A control with a list of options, each a value or a pair of value and text."""

    options: Sequence[Any] = ()

    @property
    def initial(self) -> Any:
        """The default, or the first option."""
        values = [value for value, _ in pairs(self.options)]
        return self.default if self.default in values else values[0]

    def check(self, value: Any) -> Any:
        """Return the option that ``value`` names, by value or by its text."""
        # only plain values are compared with ==, since an array compares element by element
        plain = value is None or isinstance(value, (str, int, float, tuple)) or is_whole(value)
        for option, text in pairs(self.options):
            can_equal = plain and bool not in (type(option), type(value))
            is_named = isinstance(value, str) and value == text
            if option is value or is_named or (can_equal and option == value):
                return option
        named = [text for _, text in pairs(self.options)]
        if len(named) > _MOST_NAMED:
            named[3:-1] = ["..."]
        raise InputError(
            f"{self.label}: {shown(value)} is not among the choices; expected one of "
            f"{', '.join(named)}. Choose one of these."
        )

    def read(self, raw: Any) -> Any:
        """Return the option that the panel sent as index and text; the text decides, since the
        options may have changed before the kernel received it.
        """
        sent = raw if isinstance(raw, Mapping) else {}
        return _Options.check(self, str(sent.get("text", "")))

    def raw(self, value: Any) -> int:
        """Return the option's index."""
        return [option for option, _ in pairs(self.options)].index(value)

    def describe(self) -> dict[str, Any]:
        """Return the texts of the options, in order."""
        return {**super().describe(), "options": [text for _, text in pairs(self.options)]}


@dataclass(frozen=True, kw_only=True)
class Choice(_Options):
    """One of several options: a drop-down list, or radio buttons where the options are few."""

    radio: bool = False

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The name of the form that the panel draws: radio buttons or a drop-down list."""
        return "radio" if self.radio else "choice"


@dataclass(frozen=True, kw_only=True)
class Slider(_Options):
    """A slider over listed values, so that sizes can double from step to step."""

    kind = "slider"


@dataclass(frozen=True, kw_only=True)
class Several(_Options):
    """Any number of options, as check boxes; at least ``least`` of them."""

    kind = "several"
    default: Any = ()
    least: int = 0

    @property
    def initial(self) -> tuple[Any, ...]:
        """The defaults that are among the options."""
        return tuple(value for value, _ in pairs(self.options) if value in self.default)

    def check(self, value: Any) -> tuple[Any, ...]:
        """Return the chosen options in the order of the list."""
        wanted = (
            [value] if isinstance(value, str) or not hasattr(value, "__iter__") else list(value)
        )
        chosen = [_Options.check(self, item) for item in wanted]
        if len(chosen) < self.least:
            raise InputError(
                f"{self.label}: {len(chosen)} chosen; expected at least {self.least}. Tick one "
                "more."
            )
        return tuple(option for option, _ in pairs(self.options) if option in chosen)

    def read(self, raw: Any) -> tuple[Any, ...]:
        """Return the options that the panel sent."""
        return self.check(
            [_Options.read(self, item) for item in (raw if isinstance(raw, list) else [raw])]
        )

    def raw(self, value: Any) -> list[int]:  # type: ignore[override]
        """Return the indices."""
        return [_Options.raw(self, item) for item in value]

    def describe(self) -> dict[str, Any]:
        """Return the options, and how many have to be chosen."""
        return {**super().describe(), "least": self.least}


@dataclass(frozen=True, kw_only=True)
class Switch(Control):
    """On or off: a check box."""

    kind = "switch"
    default: bool = False

    def check(self, value: Any) -> bool:
        """Return the value; only True and False are accepted."""
        if not isinstance(value, bool):
            raise InputError(
                f"{self.label}: {shown(value)} is neither on nor off; expected True or False."
            )
        return value


@dataclass(frozen=True, kw_only=True)
class Number(Control):
    """A typed number; the arrow keys step through ``suggestions``, if there are any.

    Attributes
    ----------
    default, minimum, maximum : float or int
        The bounds are inclusive.
    integer : bool
        Whether only whole numbers are accepted.
    unit : str
        Shown after the label.
    suggestions : sequence of numbers
    """

    kind = "number"
    default: float
    minimum: float = -math.inf
    maximum: float = math.inf
    integer: bool = False
    unit: str = ""
    suggestions: Sequence[float] = ()

    def check(self, value: Any) -> float:
        """Return the number; as an int if only whole numbers are accepted."""
        try:
            number = float(str(value))
        except Exception:  # not a number, or an object whose __str__ fails: reported below
            number = math.nan
        fits = math.isfinite(number) and self.minimum <= number <= self.maximum
        if not fits or (self.integer and not number.is_integer()):
            # A browser sends no value for text that it cannot read as a number, such as "64k" or a
            # number with a decimal comma.
            problem = (
                "no number was typed"
                if value is None or (isinstance(value, str) and not value)
                else f"{shown(value)} is not valid"
            )
            raise InputError(
                f"{self.label}: {problem}; expected a {'whole ' * self.integer}number from "
                f"{self.raw(self.minimum)} to {f'{self.raw(self.maximum)} {self.unit}'.rstrip()}. "
                f"Type one, such as {self.raw(self.default)}."
            )
        return int(number) if self.integer else number

    def raw(self, value: Any) -> str:
        """Return the shortest text that reads back as the number, so that the field shows exactly
        the number in use.
        """
        return repr(float(value)).removesuffix(".0")

    def describe(self) -> dict[str, Any]:
        """Return the bounds (None where there is none), the unit and the suggestions."""
        bound = {
            key: (v if math.isfinite(v) else None)
            for key, v in (("min", self.minimum), ("max", self.maximum))
        }
        return {
            **super().describe(),
            "unit": self.unit,
            "integer": self.integer,
            "suggestions": list(self.suggestions),
            **bound,
        }
