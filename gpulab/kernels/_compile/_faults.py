"""Turn what the compilers say into an error that shows the line of the source, a caret, and their
words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpulab.errors import CompileError, InputError, MissingLibraryError, pip_command
from gpulab.kernels._compile import _libraries, _log, _names, _nvrtc

_WIDEST = 120  # characters of a source line that a message shows
_ADVICE = "Fix it and run it again."
# The front end sees that something is missing only at the next word, which may stand lines below.
_MISSING = re.compile(r'expected an? (?:";"|"\)"|"\]"|",")')
_NAME_MAP = "__nv_name_map"


def fault(
    source: str, arch: str, flags: Sequence[str], names: Sequence[str], output: _nvrtc.Output
) -> Exception:
    """Return the error for a run of the compiler that failed."""
    log = output.log
    if output.code == _nvrtc.INVALID_OPTION:
        said = " ".join(log.replace("nvrtc: error:", "").split())
        return InputError(
            f"compile_cuda: {said}; expected options of NVRTC {_nvrtc.version()}, such as "
            "'-use_fast_math'. Fix or remove it."
        )
    errors = [diagnostic for diagnostic in _log.diagnostics(log) if diagnostic.kind == "error"]
    wrong_names = [name for name in names if any(d.file == _NAME_MAP for d in errors)]
    if wrong_names and errors[0].file == _NAME_MAP:
        return InputError(
            f"compile_cuda: names={list(names)} asks for a kernel that is not in the source "
            f"({errors[0].text}); expected a template's name "
            'with its arguments, such as "tile<16>". Correct the name.'
        )
    if errors:
        return _of_front_end(source, errors, log)
    if (found := _log.ptx_error(log)) is not None:
        line = _line_of_ptx(source, flags, names)
        return _error(f"in inline assembly: {found[1]}", source, (line, None), log)
    refused = _log.assembler_error(log)
    if refused is None:
        text = " ".join(log.split())[:300]
        if "builtins" in text:
            return MissingLibraryError(
                f"compile_cuda: {text}; expected NVRTC with all its files. Run "
                f"{pip_command('install --force-reinstall nvidia-cuda-nvrtc')}."
            )
        return CompileError(
            f"compile_cuda: the compiler failed for {arch} ({text}); expected code or an error. "
            "Try another arch.",
            log=log,
        )
    place = _place_of_assembler(source, refused)
    return _error(_readable(refused), source, place or (None, None), log)


def _of_front_end(
    source: str, errors: Sequence[_log.Diagnostic], log: str
) -> CompileError | MissingLibraryError:
    """The first error that stands in the source itself, else the first."""
    first = next((error for error in errors if error.file == _nvrtc.FILE), errors[0])
    text = first.text
    if first.file not in (_nvrtc.FILE, None):
        if "open source file" in text:
            return MissingLibraryError(
                f"compile_cuda: {first.file} includes a header that is not installed ({text}); "
                "expected all headers of its release. "
                f"NVIDIA's come with {pip_command('install nvidia-cuda-crt nvidia-cuda-cccl')}, "
                "those of CUDA 12 with "
                "nvidia-cuda-nvcc-cu12 and nvidia-cuda-cccl-cu12."
            )
        return CompileError(
            _block(
                f"in {first.file}, line {first.line}: {text}",
                first.shown,
                first.column,
                None,
                len(errors),
            ),
            log=log,
        )
    if "could not open source file" in text or "cannot open source file" in text:
        text += ". " + _about_headers()
    lines = source.split("\n")
    # at the end of the source: the note names the bracket that is still open
    if first.line is None:
        note = next(
            (d for d in _log.diagnostics(log) if d.kind == "note" and d.line is not None), None
        )
        line, at = (
            (note.line, note.column)
            if note is not None and note.line is not None
            else (len(lines), None)
        )
        text += (
            ' before the end of the source; this one is still open: "{"'
            if note is not None
            else " before the end of the source"
        )
    else:
        line, at = first.line, first.column
    column = (
        _characters(lines[line - 1], at) if at is not None and 1 <= line <= len(lines) else None
    )
    if first.line is not None and column is not None and _MISSING.match(text):
        line, column = _after_previous_word(source, line, column)
    return _error(text, source, (line, column), log, len(errors))


def _characters(line: str, column: int) -> int:
    """The compiler counts bytes from 0; return characters from 1."""
    return len(line.encode()[: max(column, 0)].decode(errors="ignore")) + 1


def _after_previous_word(source: str, line: int, column: int) -> tuple[int, int]:
    """The place right behind the last word before (line, column), where the missing sign
    belongs.
    """
    blank = _names.blanked(source)
    start = sum(len(text) for text in blank.split("\n")[: line - 1]) + line - 1 + column - 1
    end = len(blank[:start].rstrip())
    if end == 0:
        return line, column
    if blank.count("\n", 0, end) + 1 == line:
        return line, column  # on the same line the compiler's own caret is clear
    above, place = _names.place(source, end - 1)
    return above, place + 1


def _about_headers() -> str:
    if not _libraries.include_folders():
        return (
            "CUDA's own headers come with "
            f"{pip_command('install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl')}"
        )
    return (
        "CUDA's own headers are there; the C++ standard library is not (for <cstdint> take "
        "<cuda/std/cstdint>)"
    )


def _line_of_ptx(source: str, flags: Sequence[str], names: Sequence[str]) -> int | None:
    """The source line of the assembler's first error: compile again with line marks, and look for
    the last one above it.
    """
    marked = (*flags, "-lineinfo")
    again = _log.ptx_error(_nvrtc.compile_program(source, marked, names).log)
    portable = [
        flag.replace("=sm_", "=compute_")
        for flag in marked
        if not flag.startswith("--ptxas-options")
    ]
    ptx = _nvrtc.compile_program(source, portable, names).ptx
    if again is None or not ptx:
        return None
    marks = [re.match(r"\s*\.loc\s+\d+\s+(\d+)", text) for text in ptx.splitlines()[: again[0]]]
    found = [int(mark.group(1)) for mark in marks if mark]
    return found[-1] if found else None


def _place_of_assembler(source: str, said: str) -> tuple[int, int] | None:
    """Where an error about a whole kernel or file comes from: the kernel, the function without a
    body, the constants.
    """
    named = re.search(r"(?:Entry function|extern function|function) '([^']+)'", said)
    if named:
        return _names.kernel_place(source, _names.without_types(_names.demangled(named.group(1))))
    if "constant data" in said:
        return _names.line_of(source, r"\b__constant__\b")
    return None


def _readable(said: str) -> str:
    """The assembler's words with C++ names and decimal numbers."""
    said = re.sub(r"'(_Z\w+)'", lambda match: f"'{_names.demangled(match.group(1))}'", said)
    return re.sub(r"\b0x[0-9a-f]+\b", lambda match: f"{int(match.group(), 16):,}", said)


def _error(
    text: str, source: str, place: tuple[int | None, int | None], log: str, count: int = 1
) -> CompileError:
    (line, column), lines = place, source.split("\n")
    shown = lines[line - 1] if line is not None and line <= len(lines) else ""
    where = "" if line is None else f"line {line}{'' if column is None else f', column {column}'}: "
    return CompileError(
        _block(where + text, shown, None if column is None else column - 1, line, count),
        line,
        column,
        log,
    )


def _block(text: str, line: str, column: int | None, number: int | None, count: int) -> str:
    """The message: what is wrong, the line, the caret, what to do."""
    more = f" ({count} errors; this is the first)" if count > 1 else ""
    head = f"compile_cuda: {text.rstrip('.')}.{more}"
    if not line.strip():
        return f"{head} {_ADVICE}"
    start = 0 if column is None or column < _WIDEST - 20 else column - _WIDEST // 2
    shown = line[start : start + _WIDEST].replace("\t", " ")
    margin = f"{number if number is not None else '':>5} | "
    caret = "" if column is None else f"\n{' ' * 5} | {' ' * (column - start)}^"
    return f"{head}\n{margin}{shown}{caret}\n{_ADVICE}"
