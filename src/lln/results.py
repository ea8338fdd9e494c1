"""Results are data: every run writes JSON with its command, seed, versions and machine; tables and plots are drawn from it."""

import json
import math
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch

from lln.writing import whole


def provenance(seed: int | None = None) -> dict[str, Any]:
    """What somebody needs to run this again: command, seed, versions, machine, commit. No paths of this machine."""
    return {
        "command": _command(),
        "seed": seed,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def write_result(path: str | Path, data: dict[str, Any], seed: int | None = None, *, strict: bool = True) -> Path:
    """Write `data` beside its provenance, whole or not at all.

    strict: numbers that are not finite become null, since JSON has no others; False keeps them, for Python to read again.
    """
    path = Path(path)
    content = {"provenance": provenance(seed), **data}
    text = json.dumps(_finite(content) if strict else content, indent=1, allow_nan=not strict) + "\n"
    with whole(path) as aside:
        aside.write_text(text)
    return path


def _finite(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _command() -> str:
    """As it would be typed, with `lln` for `python -m lln_cli`; paths of this machine are shortened."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = Path(sys.argv[0]).name
    module = spec.name.removesuffix(".__main__") if spec is not None else ""
    if module == "lln_cli":
        name = "lln"
    program = [name] if not module or name == "lln" else ["python", "-m", module]
    return shlex.join([*program, *map(portable, sys.argv[1:])])


def portable(argument: str) -> str:
    """An argument of a command without folders of this machine.

    A path inside the working folder is written relative to it; any other absolute path, and one that starts with "..", is
    cut to its last name: /home/me/data/imdb becomes imdb. So is the value in --option=value.
    """
    option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    path = Path(value)
    if not path.is_absolute() and path.parts[:1] != ("..",):
        return argument
    here, there = Path.cwd(), Path(os.path.abspath(path))
    short = str(there.relative_to(here)) if there.is_relative_to(here) else there.name
    return f"{option}{equals}{short}"


def _commit() -> str | None:
    """The commit of the checkout this package runs from, or None when it is installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
