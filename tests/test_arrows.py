"""Arrows point inwards: what lies further in knows nothing of what lies further out."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"

# Each part, and what it must not import. `lln` stands for the package itself, which imports the layers.
FURTHER_OUT = {
    "lln.ops": (
        "lln",
        "lln.parallel",
        "lln.matching",
        "lln.attention",
        "lln.layers",
        "lln.zoo",
        "lln.instruments",
        "lln.conversion",
        "lln.onnx",
        "lln.hf",
    ),
    "lln.parallel": ("lln", "lln.matching", "lln.attention", "lln.layers", "lln.zoo", "lln.instruments", "lln.hf"),
    "lln.matching": ("lln", "lln.parallel", "lln.attention", "lln.layers", "lln.zoo", "lln.instruments", "lln.hf"),
    "lln.attention": ("lln", "lln.parallel", "lln.layers", "lln.zoo", "lln.instruments", "lln.hf"),
    "lln.near_far": ("lln", "lln.parallel", "lln.zoo", "lln.instruments", "lln.conversion", "lln.hf"),
    "lln.layers": ("lln", "lln.parallel", "lln.zoo", "lln.instruments", "lln.hf"),
    "lln.conversion": ("lln", "lln.parallel", "lln.layers", "lln.instruments", "lln.onnx", "lln.hf"),
    "lln.onnx": ("lln", "lln.parallel", "lln.layers", "lln.zoo", "lln.instruments", "lln.conversion", "lln.hf"),
    "lln.zoo": ("lln", "lln.parallel", "lln.layers", "lln.instruments", "lln.conversion", "lln.onnx", "lln.hf"),
    "lln.instruments": ("lln", "lln.parallel", "lln.layers", "lln.zoo", "lln.hf"),
    "lln": ("lln_cli",),
    "lln_cli": ("lln_lab",),
}


def modules_of(part: str) -> Iterator[Path]:
    place = SOURCES.joinpath(*part.split("."))
    found = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert all(path.exists() for path in found) and found, f"{part} is not where it was"
    yield from found


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            if node.module == "lln":  # `from lln import hf` names a part, too
                yield from (f"lln.{alias.name}" for alias in node.names)


def belongs(module: str, part: str) -> bool:
    """Whether `module` is the part or inside of it; the package `lln` itself is only its own first file."""
    return module == part or (part != "lln" and module.startswith(f"{part}."))


@pytest.mark.parametrize("part", FURTHER_OUT)
def test_a_part_imports_nothing_that_lies_further_out(part: str) -> None:
    for path in modules_of(part):
        for module in imported(path):
            wrong = [outer for outer in FURTHER_OUT[part] if belongs(module, outer)]
            assert not wrong, f"{path.relative_to(SOURCES)} imports {module}"
