"""What is asked of nvJitLink and what its answers mean, with a stand-in that answers as its reference says."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gpulab.errors import CompileError
from gpulab.kernels._compile import _jitlink

DONE, REFUSED = 0, 4  # NVJITLINK_SUCCESS, NVJITLINK_ERROR_PTX_COMPILE


class JitLink:
    """nvJitLink: each call noted, texts by name, and the codes that some calls return."""

    def __init__(self, texts: dict[str, bytes], **codes: int) -> None:
        self.texts, self.codes, self.log, self.flags = texts, codes, [], []

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("nvJitLink")
        if what.startswith("Get"):
            return self._size(what[3:-4]) if what.endswith("Size") else self._text(what[3:])

        def call(*given: Any) -> int:
            self.log.append(what)
            if what == "Create":
                self.flags.append(list(given[2]))
                given[0]._obj.value = 7
            return self.codes.get(what, DONE)

        return call

    def _size(self, what: str) -> Any:
        def tell(_: Any, size: Any) -> int:
            size._obj.value = len(self.texts.get(what, b""))
            return self.codes.get(f"Get{what}Size", DONE)

        return tell

    def _text(self, what: str) -> Any:
        def copy(_: Any, buffer: Any) -> int:
            ctypes.memmove(buffer, self.texts[what], len(self.texts[what]))
            return DONE

        return copy


def test_a_link_gives_code_text_and_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked twice, for machine code and for PTX, with the flags of a launch; texts end before their NUL; each linker is destroyed."""
    linker = JitLink({"LinkedCubin": b"\x7fELF\0", "LinkedPtx": b".version 9\0", "InfoLog": b" Used 8 registers \0"})
    monkeypatch.setattr(_jitlink, "library", lambda: linker)
    assert _jitlink.link(b"code", "sm_90", ["-lineinfo"]) == (b"\x7fELF\0", ".version 9", "Used 8 registers")
    assert linker.log == ["Create", "AddData", "Complete", "Destroy"] * 2
    assert linker.flags == [
        [b"-arch=sm_90", b"-lto", b"-verbose", b"-Xptxas=-v", b"-lineinfo"], [b"-arch=sm_90", b"-lto", b"-ptx", b"-lineinfo"],
    ]  # fmt: skip


@pytest.mark.parametrize(("step", "called"), [("Create", 1), ("AddData", 2), ("Complete", 3)])
def test_a_refusal_is_told_with_the_log(monkeypatch: pytest.MonkeyPatch, step: str, called: int) -> None:
    """No step follows one that failed but the last; the linker's words are in the message, or its number where it has none."""
    for texts, words in (({"ErrorLog": b"too much\nshared data\0"}, "too much shared data"), ({}, "error 4")):
        linker = JitLink(texts, **{step: REFUSED})
        monkeypatch.setattr(_jitlink, "library", lambda linker=linker: linker)
        with pytest.raises(CompileError, match=rf"refused the code for sm_90 \({words}\)") as told:
            _jitlink.link(b"code", "sm_90")
        assert linker.log == [*["Create", "AddData", "Complete"][:called], "Destroy"]
        assert told.value.log == "too much\nshared data" * bool(texts)


def test_a_text_that_cannot_be_had_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its size is refused, the text is not asked for."""
    linker = JitLink({"LinkedCubin": b"code", "InfoLog": b"lost"}, GetInfoLogSize=REFUSED)
    monkeypatch.setattr(_jitlink, "library", lambda: linker)
    assert _jitlink.link(b"code", "sm_90") == (b"code", "", "")
