"""Hooks of `mkdocs build`: MathJax goes into the site, so that formulas need no network.

The files are those of MathJax 3.2.2 (Apache License 2.0) in the package sphinx-mathjax-offline; of it one file is taken, which
draws formulas as SVG and loads nothing else.
"""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

PACKAGE, FILE = "sphinx-mathjax-offline", "tex-svg.js"


def on_post_build(config: Any, **_: Any) -> None:
    target = Path(config["site_dir"]) / "assets" / "mathjax" / FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(mathjax(), target)


def mathjax() -> Path:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"the documentation needs {PACKAGE} for its formulas: pip install -e '.[docs]'") from None
    return Path(str(next(file for file in files if file.name == FILE).locate()))
