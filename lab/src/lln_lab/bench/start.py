"""Cold start: how long the library and the command take from nothing, against a bare `import torch`."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

COMMAND = "import sys; sys.argv = ['lln', {option!r}]; import lln_cli; lln_cli.main()"
FIRST_CALL = "q = torch.randn(1, 2, 64, 16); lln.{function}(q, q, q)"
BARE = "import torch"
STARTS = {
    "python": "pass",
    BARE: "import torch",
    "import lln": "import lln",
    "first lln_attention": f"import torch, lln; {FIRST_CALL.format(function='lln_attention')}",
    "first lln_diag_attention": f"import torch, lln; {FIRST_CALL.format(function='lln_diag_attention')}",
    "lln --help": COMMAND.format(option="--help"),
    "lln --version": COMMAND.format(option="--version"),
}


def run(repeats: int, progress: Callable[[str], None], starts: Sequence[str] = tuple(STARTS)) -> dict[str, Any]:
    """A fresh interpreter for each, interleaved after a round that fills the disk's cache.

    Median seconds, and the least CPU time, which neighbours on the machine change little.
    """
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    for round_ in range(1 + repeats):
        for name in starts:
            progress(name)
            taken = _start(name)
            if round_ > 0:
                runs[name].append(taken)
    seconds = {name: statistics.median(wall for wall, _ in taken) for name, taken in runs.items()}
    cpu = {name: min(cpu for _, cpu in taken) for name, taken in runs.items()}
    return {
        "repeats": repeats,
        "starts": {
            name: {
                "seconds": seconds[name],
                "ratio_to_import_torch": seconds[name] / seconds[BARE],
                "least_cpu_seconds": cpu[name],
                "cpu_ratio_to_import_torch": cpu[name] / cpu[BARE],
            }
            for name in starts
        },
    }


def _start(name: str) -> tuple[float, float]:
    """Seconds, and seconds of CPU time, that a fresh interpreter takes."""
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", STARTS[name]], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system
