"""Cold start: how long the library and the command take from nothing, against a bare `import torch`."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lln.measuring.timing import interleaved

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
    """Median seconds of a fresh interpreter for each, interleaved after a round that fills the disk's cache."""

    def start(name: str) -> None:
        progress(name)
        subprocess.run([sys.executable, "-c", STARTS[name]], check=True, stdout=subprocess.DEVNULL)

    times = interleaved({name: partial(start, name) for name in starts}, repeats=repeats, slow=float("inf"))
    bare = times[BARE].median
    return {
        "repeats": repeats,
        "starts": {name: {"seconds": x.median, "ratio_to_import_torch": x.median / bare} for name, x in times.items()},
    }
