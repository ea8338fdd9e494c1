"""What was compiled once is not compiled again, so that a long list of kernels can be stopped and gone on with."""

import json
from dataclasses import asdict
from pathlib import Path

from lln.writing import whole
from lln_lab.gpu.compiling import Compiled, Launch, compiled


class Cache:
    """A file for each kernel, named by what determines its code: source, types, sizes, options, target, Triton's version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, launch: Launch, target: str) -> bool:
        return self._path(launch, target).exists()

    def _path(self, launch: Launch, target: str) -> Path:
        return self.folder / f"{launch.name}-{target}-{launch.key(target)}.json"

    def compiled(self, launch: Launch, target: str) -> Compiled | None:
        """None: the compiler gave up on it, which asks for more shared memory or registers than there are."""
        path = self._path(launch, target)
        if not path.exists():
            try:
                found = asdict(compiled(launch, target))
            except Exception as reason:  # of any kind: compilers fail in many ways
                found = {"failed": f"{type(reason).__name__}: {reason}"[-500:]}
            with whole(path) as aside:
                aside.write_text(json.dumps(found) + "\n")
        told = json.loads(path.read_text())
        return None if "failed" in told else Compiled(**told)
