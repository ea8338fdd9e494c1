"""A small encoder trained for some steps: by one process, and by several with the sequence and the batch cut."""

import runpy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lln
import lln.parallel

VOCABULARY, WIDTH, TOKENS, BATCH = 17, 16, 90, 4


class Encoder(nn.Module):
    def __init__(self, causal: bool = False, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        options: dict[str, Any] = {"block_size": 8, "learn_mix": True, "causal": causal}
        if not causal:
            options["matching"] = lln.MomentMatcher(2, 8, mode="learnable", subtract_mean_key=True)
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(
            lln.LLNEncoderLayer(WIDTH, 2, 32, dropout=0.0, attention_options=options if i else {"causal": causal})
            for i in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.recompute = recompute
        self.double()

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(positions)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        logits: Tensor = self.head(x)
        return logits


def batches(steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (BATCH, TOKENS), generator=generator) for _ in range(steps)]


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """This process's part of the mean over the whole batch."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (BATCH * TOKENS)


def labels_of(tokens: Tensor) -> Tensor:
    return tokens.flip(1)  # far away, so that attention matters


def alone(steps: int, causal: bool = False) -> list[float]:
    model = Encoder(causal)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = []
    for tokens in batches(steps):
        loss = loss_of(model(tokens, torch.arange(TOKENS)), labels_of(tokens))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def together(group: Any, payload: dict[str, Any]) -> list[float]:
    """Of the whole batch, over four processes: a mesh of two by two, or all of them on the sequence."""
    kind, steps = payload["kind"], payload["steps"]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    data, sequence = mesh["data"], mesh["sequence"]
    model: Any = Encoder(payload.get("causal", False), recompute=kind == "checkpoint")
    if kind == "fsdp":
        for layer in model.layers:
            fully_shard(layer, mesh=data)
        fully_shard(model, mesh=data)
    elif kind == "compile":
        model = torch.compile(model, backend="aot_eager")
    parameters = list(model.parameters())
    if kind == "ddp":
        model = DistributedDataParallel(model)
    optimiser = torch.optim.Adam(parameters, lr=1e-2)
    found = []
    for tokens in batches(steps):
        mine = tokens.chunk(2)[data.get_local_rank()]
        own, labels = (lln.parallel.shard(t, 1, sequence, multiple_of=13) for t in (mine, labels_of(mine)))
        positions = lln.parallel.shard(torch.arange(TOKENS), 0, sequence, multiple_of=13)
        optimiser.zero_grad()
        with lln.parallel.context_parallel(sequence, positions=positions):
            loss = loss_of(model(own, positions), labels)
            # FSDP and DDP divide by the number of their processes
            (loss * {"fsdp": 2, "ddp": 4}.get(kind, 1)).backward()
        if kind == "fsdp":
            lln.parallel.sum_gradients(parameters, sequence)
        elif kind != "ddp":
            lln.parallel.sum_gradients(parameters, dist.group.WORLD)
        optimiser.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append(total.item())
    return found


def split(group: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """A layer whose heads are split over two processes: its output, and the gradient of what goes in."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "heads"))["heads"]
    layer = layer_with_heads(payload["matching"])
    lln.parallel.split_heads(layer, mesh)
    x = payload["x"].requires_grad_()
    out = layer(x)
    out.square().sum().backward()
    return {"out": out.detach(), "gradient": x.grad}


def layer_with_heads(matching: str) -> nn.Module:
    torch.manual_seed(0)
    options = {"matching": matching, "num_key_heads": 2, "learn_mix": True, "block_size": 8}
    layer = lln.LLNEncoderLayer(16, 4, 32, dropout=0.0, attention_options=options).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "mix" in name or "log_" in name:  # every head its own
                parameter.add_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return layer


def example(group: Any, payload: dict[str, Any]) -> list[float]:
    """examples/long_sequence.py on this stretch."""
    found = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "long_sequence.py"))
    losses: list[float] = found["train"](group, payload["tokens"], payload["steps"])
    return losses
