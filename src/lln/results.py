"""Results are data: every run writes JSON with its command, seed, versions and machine; tables and plots are drawn from it."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch


def provenance(seed: int | None = None) -> dict[str, Any]:
    """What somebody needs to run this again: command, seed, versions, machine, commit. No paths of this machine."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
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


def write_result(path: str | Path, data: dict[str, Any], seed: int | None = None) -> Path:
    """Write `data` beside its provenance, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps({"provenance": provenance(seed), **data}, indent=1) + "\n")
    aside.replace(path)
    return path


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
