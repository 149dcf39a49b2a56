"""The list of claims, and how a claim finds its entries in a recording."""

from __future__ import annotations

import difflib
import functools
import importlib
from dataclasses import dataclass

from gpulab.claims._pairs import Compare
from gpulab.claims.results import Claim
from gpulab.errors import InputError, shown

_THEMES = ("_data", "_precision", "_training", "_layers", "_kernels", "_devices")


@dataclass(frozen=True)
class Spec:
    """A claim, and the function that finds the times that it refers to."""

    claim: Claim
    compare: Compare


@functools.cache
def specs() -> tuple[Spec, ...]:
    """Return all claims in the order of the ledger."""
    return tuple(
        one for theme in _THEMES for one in importlib.import_module(f"gpulab.claims.{theme}").CLAIMS
    )


def claims() -> tuple[Claim, ...]:
    """Return all claims in the order of the ledger."""
    return tuple(one.claim for one in specs())


def spec(key: str) -> Spec:
    """Return a claim by its key.

    Raises
    ------
    InputError
        If there is none.
    """
    known = {one.claim.key: one for one in specs()}
    if not isinstance(key, str) or key not in known:
        near = (
            difflib.get_close_matches(key, known, n=3, cutoff=0.4) if isinstance(key, str) else []
        )
        raise InputError(
            f"claims: there is no claim {shown(key)}; expected the key of one of "
            "gl.claims.claims(), such as "
            f"{', '.join(map(repr, near or list(known)[:3]))}."
        )
    return known[key]
