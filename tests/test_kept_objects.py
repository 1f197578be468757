"""Object files are kept for what they were compiled from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minitvm.codegen.llvm_text import ModuleText
from minitvm.target import Target
from tests.kept_objects import drop_unused, keeping

_HOST, _OTHER = Target("llvm"), Target("llvm -mcpu=skylake")


def _text(*imports: str, has_plain_loops: bool = False) -> ModuleText:
    text = ModuleText("minitvm", _HOST.triple, "e")
    text.imports.extend(imports)
    text.has_plain_loops = has_plain_loops
    return text


def test_an_equal_text_is_compiled_once(tmp_path: Path) -> None:
    compiled: list[Target] = []

    def compile_text(text: ModuleText, target: Target) -> bytes:
        compiled.append(target)
        return b"object %d" % len(compiled)

    emit_object = keeping(compile_text, tmp_path)
    assert emit_object(_text(), _HOST) == emit_object(_text(), _HOST) == b"object 1"
    assert keeping(compile_text, tmp_path)(_text(), _HOST) == b"object 1"
    assert emit_object(_text(), _OTHER) == b"object 2"
    assert emit_object(_text("declare void @f()"), _HOST) == b"object 3"
    assert emit_object(_text(has_plain_loops=True), _HOST) == b"object 4"
    assert compiled == [_HOST, _OTHER, _HOST, _HOST]


def test_a_text_that_is_refused_is_refused_again(tmp_path: Path) -> None:
    def refuse(text: ModuleText, target: Target) -> bytes:
        raise ValueError("refused")

    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            keeping(refuse, tmp_path)(_text(), _HOST)
    assert not list(tmp_path.iterdir())


def test_what_no_run_uses_is_removed(tmp_path: Path) -> None:
    emit_object = keeping(lambda text, target: b"", tmp_path)
    emit_object(_text(), _HOST)
    emit_object(_text(), _OTHER)
    for each in tmp_path.iterdir():
        os.utime(each, (0, 0))
    emit_object(_text(), _HOST)  # is used
    drop_unused(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
