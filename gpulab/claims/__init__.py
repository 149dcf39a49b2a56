"""Published claims about GPU acceleration, their sources, and what recorded machines show.

Each claim names its source and is read as a ratio of two times. ``ledger`` compares it with every
recording: it holds, holds partly, fails, cannot be decided, or is not recorded yet. Nothing is
timed here, and no verdict is written by hand.
"""

from gpulab.claims.verdicts import (
    Claim,
    Comparison,
    Finding,
    Ledger,
    Source,
    Verdict,
    ledger,
)

__all__ = [
    "Claim",
    "Comparison",
    "Finding",
    "Ledger",
    "Source",
    "Verdict",
    "ledger",
]
