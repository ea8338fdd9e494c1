"""transformers is wrapped in one file, and what is wrapped is what was tried."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from packaging.requirements import Requirement
from transformers import BertConfig, BertModel, PreTrainedConfig

import lln.hf
from lln.hf.patches import FIRST_UNTRIED, PATCHES, TRIED, Patch, bare, install, refuse_missing, warn_of_untried

SOURCES = Path(lln.hf.__file__).parent
METADATA = Path(__file__).parents[2] / "pyproject.toml"


def current(patch: Patch) -> Any:
    return bare(inspect.getattr_static(patch.owner, patch.name))


def without_annotations(function: Any) -> str:
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.owner.__name__}.{patch.name}")
def test_what_is_wrapped_has_the_signature_it_had_when_it_was_tried(patch: Patch) -> None:
    wrapper = current(patch)
    assert wrapper.lln_patch
    original = wrapper.__wrapped__
    assert not hasattr(original, "lln_patch")  # wrapped once
    assert original.__module__.startswith("transformers.")
    assert without_annotations(original) == patch.signature


def test_every_patch_says_why() -> None:
    assert all(len(patch.why.split()) > 5 for patch in PATCHES)


def test_no_other_file_changes_transformers() -> None:
    found = [f"{path.name}:{line}" for path in SOURCES.rglob("*.py") for line in assignments_to_transformers(path)]
    assert {name.split(":")[0] for name in found} <= {"patches.py"}, found


def test_the_search_for_such_changes_finds_them(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "import transformers\nfrom transformers import PreTrainedModel as M, masking_utils\n"
        "M.post_init = 1\nsetattr(masking_utils, 'and_masks', 1)\ntransformers.a.b = 1\nother.c = 1\n"
    )
    assert assignments_to_transformers(file) == [3, 4, 5]


def assignments_to_transformers(path: Path) -> list[int]:
    """Lines that assign to an attribute of something imported from transformers."""
    tree = ast.parse(path.read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers":
            imported |= {name.asname or name.name for name in node.names}
        if isinstance(node, ast.Import):
            imported |= {n.asname or n.name.split(".")[0] for n in node.names if n.name.startswith("transformers")}
    lines = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            given = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets = [target.value for target in given if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            targets = node.args[:1]
        lines += [target.lineno for target in targets if _root(target) in imported]
    return sorted(lines)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_installing_again_wraps_nothing_twice() -> None:
    before = [current(patch) for patch in PATCHES]
    install(lln.hf.register())
    assert [current(patch) for patch in PATCHES] == before


def test_what_transformers_has_no_more_is_refused_in_words() -> None:
    moved = SimpleNamespace(__name__="PreTrainedModel", was_a_property="eager")
    gone = [Patch(moved, name, "(self)", "", lambda original, names: original) for name in ("gone", "was_a_property")]
    with pytest.raises(
        ImportError, match=r"has no function PreTrainedModel.gone, PreTrainedModel.was_a_property.*transformers<5"
    ):
        refuse_missing(gone)


@pytest.mark.parametrize("version", ["5.23.0", "5.40.1", "6.0.0.dev0"])
def test_a_newer_version_is_told_of(version: str) -> None:
    with pytest.warns(UserWarning, match=f"transformers {re.escape(version)} is newer than what lln.hf was tried with"):
        warn_of_untried(version)


@pytest.mark.parametrize("version", TRIED)
def test_a_version_that_was_tried_is_not(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untried(version)


def test_importing_under_a_newer_version_warns_once() -> None:
    code = (
        "import warnings, transformers; transformers.__version__ = '5.99.0'\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always'); import lln.hf; lln.hf.register(); from lln.hf import convert\n"
        "print(sum('newer than what lln.hf was tried with' in str(w.message) for w in told))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"


def test_the_metadata_allows_what_was_tried_and_nothing_newer() -> None:
    extra = tomllib.loads(METADATA.read_text())["project"]["optional-dependencies"]["hf"]
    allowed = next(r for r in map(Requirement, extra) if r.name == "transformers").specifier
    assert all(allowed.contains(version) for version in TRIED)
    assert not allowed.contains(FIRST_UNTRIED)
    assert min(allowed, key=str).version == FIRST_UNTRIED
    assert transformers.__version__ in TRIED, f"run tests/hf with {transformers.__version__}, then add it to TRIED"


def test_what_is_read_with_a_default_is_there() -> None:
    """Were these to move, `lln.hf` would quietly go on without them."""
    BertModel._can_set_attn_implementation()
    assert hasattr(BertModel, "_can_set_attn_implementation_cached_value")
    config = BertConfig()
    config._attn_implementation = "lln"
    assert config._attn_implementation_internal == "lln"
    assert isinstance(inspect.getattr_static(PreTrainedConfig, "_attn_implementation"), property)
