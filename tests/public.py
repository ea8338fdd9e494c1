"""The public names: what the packages below list in `__all__`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("lln", "lln.zoo", "lln.instruments", "lln.parallel", "lln.onnx", "lln.hf")


def names(package: str) -> list[str]:
    """`__all__` of a package, read and not imported: lln.hf needs transformers."""
    source = (ROOT / "src" / Path(*package.split(".")) / "__init__.py").read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            found: list[str] = ast.literal_eval(node.value)
            return found
    raise AssertionError(f"{package} has no __all__")
