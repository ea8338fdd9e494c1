"""A process that is killed while others wait for it: they end in words. Run as a module: rank, world size, port."""

import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist

import lln
import lln.parallel


def main(rank: int, size: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
    x = torch.randn(1, 1, 64, 8, requires_grad=True)
    with lln.parallel.context_parallel(dist.group.WORLD):
        for step in range(1_000_000):
            if rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            lln.lln_attention(x, x, x, 1.0, 1.0).sum().backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
