"""Without a compiler, or with the wrong library, the reason is given in words and nothing breaks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lln.ops.native import build, library
from lln.ops.native.call import available, supports
from tests.native.helpers import random_call


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.build(tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler found"):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_library_attention_still_works(tmp_path: Path) -> None:
    code = (
        "import torch, lln; from lln.ops.native.call import available; from lln.ops.lln import Operands, attention\n"
        "x, s = torch.randn(1, 1, 4, 8), torch.ones(1, 1, 8); print(available());"
        "print(attention.backends.pick('auto', Operands(x, x, x, s, s)).name)"
    )
    reason, chosen = run(code, LLN_NATIVE_LIBRARY=str(tmp_path / "none.so")).splitlines()
    assert "not compiled" in reason and "lln.ops.native.build" in reason
    assert chosen == "chunked"


def test_something_else_in_its_place_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    code = "from lln.ops.native.call import available; print(available())"
    assert "does not load" in run(code, LLN_NATIVE_LIBRARY=str(tmp_path / "text.so"))


def test_the_builder_and_the_loader_mean_the_same_file() -> None:
    assert build.HERE / build.library_name() == library.LIBRARY


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_NATIVE_ISA", "abacus")
    reason = available()
    assert reason is not None and ("portable" in reason or "not compiled" in reason)


def test_tensors_it_cannot_take_are_refused_in_words() -> None:
    x = torch.zeros(1, 1, 2, 4)
    assert supports(x, x, x) is None
    assert "float64" in str(supports(x.double(), x.double(), x.double()))
    assert "meta" in str(supports(x, x, x.to("meta")))


@pytest.mark.skipif(available() is not None, reason="not compiled")
def test_causal_attention_needs_as_many_queries_as_keys() -> None:
    call = random_call(10, causal=True)
    call.q = call.q[:, :, :5]
    with pytest.raises(ValueError, match="5 queries and 10 keys"):
        call.forward()
