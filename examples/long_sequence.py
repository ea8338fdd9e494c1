"""One long sequence over many processes: torchrun --nproc-per-node=4 examples/long_sequence.py 1048576

A small encoder learns to fill in masked bytes. Each process holds a stretch of the sequence, and attention exchanges one state
a head. Started without torchrun, one process holds all of it, and the losses are the same.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import lln
import lln.parallel

MASK, STEPS, WIDTH = 256, 5, 16


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(257, WIDTH), nn.Linear(WIDTH, 256)
        self.layers = nn.ModuleList(lln.LLNEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


def train(group: dist.ProcessGroup, length: int, steps: int = STEPS) -> list[float]:
    """The losses of the whole sequence, step by step."""
    torch.manual_seed(0)
    model = Encoder()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    text = torch.arange(97, 123).repeat(-(-length // 26))[None, :length]
    losses = []
    for step in range(steps):
        masked = torch.rand(1, length, generator=torch.Generator().manual_seed(step)) < 0.1
        tokens, labels, chosen = (
            lln.parallel.shard(t, 1, group) for t in (text.masked_fill(masked, MASK), text, masked)
        )
        with lln.parallel.context_parallel(group):
            found = model(tokens)[chosen]
            # this stretch's part of the mean over all masked bytes
            loss = F.cross_entropy(model.head(found), labels[chosen], reduction="sum") / masked.sum()
            optimiser.zero_grad()
            loss.backward()
        lln.parallel.sum_gradients(model.parameters(), group)
        optimiser.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
        if dist.get_rank(group) == 0:
            print(f"step {step}: loss {losses[-1]:.6f}", flush=True)
    return losses


def main(length: int) -> None:
    if "RANK" not in os.environ:  # not started by torchrun: a group of one
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    train(dist.group.WORLD, length)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 65_536)
