"""`python -m tests.gpu.sheet ARCH SIZE`: every kernel compiled for a GPU that is not here, as JSON, one line a kernel."""

import dataclasses
import json
import sys

import torch

from tests.gpu.compiling import compiled
from tests.gpu.search import launches


def main() -> None:
    arch, size = int(sys.argv[1]), int(sys.argv[2])
    seen = set()
    for causal in (False, True):
        for launch in launches(size, torch.bfloat16, causal):
            if launch.name in seen:
                continue
            seen.add(launch.name)
            found = compiled(launch, arch)
            print(json.dumps({"kernel": launch.name, **dataclasses.asdict(found)}), flush=True)


if __name__ == "__main__":
    main()
