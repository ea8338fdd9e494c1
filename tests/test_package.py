"""What the package promises as a package."""

import importlib.metadata
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import lln

ROOT = Path(__file__).parents[1]

USE_THE_CORE = """
    import sys
    import torch, torch._dynamo  # what torch itself loads is its own affair
    before = set(sys.modules)
    import lln, lln.zoo
    x = torch.randn(1, 2, 30, 8)
    lln.lln_diag_attention(x, x, x)
    lln.LLNEncoderLayer(16, 2)(torch.randn(1, 5, 16))
    lln.zoo.build("softmax", embed_dim=16, num_heads=2, max_length=8)(torch.randn(1, 5, 16))
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
    assert loaded <= {"lln", "torch", "numpy"}, loaded
"""


def test_the_core_needs_torch_and_numpy_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(USE_THE_CORE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_there_and_documented() -> None:
    for name in lln.__all__:
        if name != "__version__":
            assert getattr(lln, name).__doc__, f"{name} has no docstring"
    assert lln.__version__ == importlib.metadata.version("lln-attention")


def test_the_package_is_typed_and_ships_its_table() -> None:
    package = Path(lln.__file__).parent
    assert (package / "py.typed").exists()
    assert list((package / "ops" / "moments" / "table").glob("*.json"))


def test_every_file_asks_for_the_same_python() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = settings["project"]["requires-python"].removeprefix(">=")
    assert settings["tool"]["mypy"]["python_version"] == oldest
    assert settings["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"Programming Language :: Python :: {oldest}" in settings["project"]["classifiers"]
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())
    assert lab["project"]["requires-python"] == settings["project"]["requires-python"]
    for name in ("README.md", "Makefile"):
        assert f"with Python {oldest}" in (ROOT / name).read_text(), name


def test_the_laboratory_goes_with_this_version_of_the_library() -> None:
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert lab["version"] == lln.__version__ and f"lln-attention[cli,hf]=={lln.__version__}" in lab["dependencies"]


def test_the_library_knows_nothing_of_the_laboratory() -> None:
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        named = re.findall(r"^\s*(?:import|from) (lln_lab|lab\.)", path.read_text(), flags=re.MULTILINE)
        assert not named, f"{path.relative_to(ROOT)} imports {named[0]}"
