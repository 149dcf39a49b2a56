"""The names of kernels: from the mangled ones in machine code to what the source says, and where it
says it.

C++ decorates a name with its types (``_Z4tileILi16EEvPf``). The platform's C++ library undoes that
where there is one; elsewhere the plain name is read off, which is enough to tell kernels apart
unless they are instances of one template. Source: Itanium C++ ABI, section 5.1 "External Names".
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable
from typing import Any

_COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)


@functools.cache
def _demangler() -> Any:
    """The C++ library's own demangler, or None (on Windows)."""
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function


def demangled(symbol: str) -> str:
    """Return what the C++ library makes of a name; the plain name where there is no such library;
    the name itself if it is not C++.

    Examples
    --------
    >>> demangled("saxpy")
    'saxpy'
    """
    if not symbol.startswith("_Z"):
        return symbol
    function = _demangler()
    if function is None:
        return plain_name(symbol)
    found = function(symbol.encode(), None, None, None)
    if not found:
        return plain_name(symbol)
    text = ctypes.string_at(found).decode()
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(found)
    return text


def plain_name(symbol: str) -> str:
    """Return a mangled name without its types, template arguments as ``<...>``.

    Examples
    --------
    >>> plain_name("_ZN2ns3twoEPd"), plain_name("_Z4tileILi16EEvPf")
    ('ns::two', 'tile<...>')
    """
    at = 3 if symbol.startswith("_ZN") else 2
    parts = []
    while (number := re.compile(r"L?(\d+)").match(symbol, at)) is not None:
        length, at = int(number.group(1)), number.end()
        parts.append(symbol[at : at + length])
        at += length
    return ("::".join(parts) + ("<...>" if symbol[at : at + 1] == "I" else "")) or symbol


def without_types(name: str) -> str:
    """Return a demangled function name without its return type and parameters.

    Examples
    --------
    >>> without_types("void tile<16>(float*)"), without_types("ns::two(double*)")
    ('tile<16>', 'ns::two')
    """
    if name.endswith(")"):
        depth, at = 0, len(name) - 1
        while at >= 0:
            depth += {")": 1, "(": -1}.get(name[at], 0)
            if depth == 0:
                break
            at -= 1
        name = name[:at]
    return name.removeprefix("void ")


def shown_names(symbols: Iterable[str], asked: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return symbol -> the name that the result files it under.

    As it was asked for; else without its types where that is unique; else with them.
    """
    given = {symbol: name for name, symbol in asked}
    full = {symbol: given.get(symbol) or demangled(symbol) for symbol in symbols}
    short = {symbol: given.get(symbol) or without_types(name) for symbol, name in full.items()}
    chosen = {s: short[s] if list(short.values()).count(short[s]) == 1 else full[s] for s in full}
    return {s: name if list(chosen.values()).count(name) == 1 else s for s, name in chosen.items()}


def blanked(source: str) -> str:
    """Return the source with comments and literals turned into blanks, every character at its
    place.
    """
    return _COMMENT_OR_TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), source)


def line_of(source: str, pattern: str) -> tuple[int, int] | None:
    """Return (line, column), from 1, of the first match of a regular expression outside comments;
    None if there is none.
    """
    found = re.search(pattern, blanked(source))
    return place(source, found.start()) if found else None


def place(source: str, at: int) -> tuple[int, int]:
    """Return (line, column), from 1, of a character of the source."""
    return source.count("\n", 0, at) + 1, at - (source.rfind("\n", 0, at) + 1) + 1


def kernel_place(source: str, name: str) -> tuple[int, int] | None:
    """Return (line, column) of a kernel's name in its definition; None where a macro made it."""
    plain = re.escape(
        re.split(r"[<(]", name.replace("(anonymous namespace)::", ""))[0].split("::")[-1]
    )
    return line_of(source, rf"(?<=[\s*&)])\b{plain}(?=\s*\()") or line_of(source, rf"\b{plain}\b")
