"""What the predictions of this notebook take from the result that ``reveal`` is given."""

from typing import Any
from gpulab.evidence import Badge
from gpulab.lessons import _live
from gpulab.lessons._columns import ColumnLoop
from gpulab.lessons._feeding import Feeding
from gpulab.lessons._five_times import FiveTimes
from gpulab.lessons._retraces import Retraces


_COLUMNS_CLOSE, _FEEDING_CLOSE = 1.6, 2.0


def _ratio(found: ColumnLoop | Feeding, close: float, cell: str) -> float:
    """Return a ratio that a prediction can be held against: measured with an interval that is narrow enough, or modelled."""
    if found.evidence.badge is Badge.MODELLED:
        return found.ratio
    return _live.judged(found.ratio, found.ratio_interval, close, cell)


def _compiled(found: Any) -> Any:
    if not isinstance(found, Retraces):
        return found
    return found.count


outcome = {
    "10.1": lambda found: found.spread_ratio if isinstance(found, FiveTimes) else found,
    "10.3": lambda found: _ratio(found, _COLUMNS_CLOSE, "times the loop") if isinstance(found, ColumnLoop) else found,
    "10.5": lambda found: _ratio(found, _FEEDING_CLOSE, "times both") if isinstance(found, Feeding) else found,
    "10.7": _compiled,
}
