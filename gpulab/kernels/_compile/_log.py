"""Read what the compilers print: the assembler's figures for each kernel, and errors with their
place in the source.

The figures come from ``ptxas -v``, the only source of spills. Errors come in three forms: the C++
front end's with file, line and a caret; the assembler's about a line of PTX (inline assembly); and
the assembler's about a whole kernel or file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"ptxas info\s*: Used (\d+) registers(.*)")
_DIAGNOSTIC = re.compile(
    r"^(?:(?P<file>.+?)\((?P<line>\d+)\)|At end of source): (?:catastrophic )?(?P<kind>error|warning|note)(?: #[\w-]+)?: (?P<text>.*)$"
)
_PTX_ERROR = re.compile(
    r"ptxas (?:application ptx input|[^,\n]*), line (\d+); (?:error|fatal)\s*: (.*)"
)
_ASSEMBLER_ERROR = re.compile(r"ptxas (?:error|fatal)\s*: (.*)")
_ASSEMBLER_WARNING = re.compile(r"ptxas warning\s*: (.*)")


@dataclass(frozen=True)
class Usage:
    """What the assembler printed for one kernel, with the functions that it calls without
    inlining.
    """

    registers: int
    barriers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class Diagnostic:
    """One error, warning or note of the C++ front end; ``column`` counts from 0 in bytes, as its
    caret does.
    """

    kind: str
    text: str
    file: str | None
    line: int | None
    shown: str = ""
    column: int | None = None


def usage(log: str) -> dict[str, Usage]:
    """Return the figures of each kernel (by its name in the machine code) in a log of ``ptxas
    -v``.
    """
    parts = _ENTRY.split(log)
    return {
        symbol: _usage(text)
        for symbol, text in zip(parts[1::2], parts[2::2], strict=True)
        if _USED.search(text)
    }


def _usage(text: str) -> Usage:
    """The figures in the part of the log from one kernel to the next: its own, then those of the
    functions that it calls.
    """
    frames = [tuple(map(int, found)) for found in _FRAME.findall(text)]
    registers, rest = _USED.findall(text)[0]
    barriers = re.search(r"used (\d+) barriers", rest)
    stack = re.search(r"(\d+) bytes cumulative stack size", rest)
    return Usage(
        registers=int(registers),
        barriers=int(barriers.group(1)) if barriers else 0,
        stack_bytes=int(stack.group(1)) if stack else frames[0][0],
        spill_store_bytes=sum(frame[1] for frame in frames),
        spill_load_bytes=sum(frame[2] for frame in frames),
    )


def diagnostics(log: str) -> list[Diagnostic]:
    """Return the front end's messages in their order, each with the source line and the caret under
    it.
    """
    lines = log.splitlines()
    found = []
    for i, text in enumerate(lines):
        match = _DIAGNOSTIC.match(text)
        if not match:
            continue
        shown, column = "", None
        if i + 2 < len(lines) and lines[i + 2].strip() == "^":
            # The source is indented by two; a caret stands under its place, with tabs kept.
            shown, column = lines[i + 1][2:], len(lines[i + 2]) - 3
        number = match["line"]
        found.append(
            Diagnostic(
                match["kind"],
                match["text"],
                match["file"],
                int(number) if number else None,
                shown,
                column,
            )
        )
    return found


def ptx_error(log: str) -> tuple[int, str] | None:
    """Return (line of the PTX, message) of the assembler's first error about one; None if there is
    none.
    """
    found = _PTX_ERROR.search(log)
    return (int(found.group(1)), found.group(2)) if found else None


def assembler_error(log: str) -> str | None:
    """Return the assembler's first error about a whole kernel or file; None if there is none."""
    found = _ASSEMBLER_ERROR.search(log)
    return found.group(1).strip() if found else None


def warnings(log: str) -> tuple[str, ...]:
    """Return what the compilers warned of, one line each."""
    front = [
        f"line {d.line}: {d.text}" if d.line else d.text
        for d in diagnostics(log)
        if d.kind == "warning"
    ]
    return (*front, *(text.strip() for text in _ASSEMBLER_WARNING.findall(log)))
