"""Two processes train one model sharded by `fully_shard`, and each also trains the whole one; the losses are written."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lln_lab.experiments.models.roberta import MaskedLanguageModel, Size, configuration

SIZE = Size(layers=2, width=32, heads=2, feed_forward=64, length=32, dropout=0.0)


def model() -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(configuration(SIZE, 300), "lln_diag")


def losses(of: torch.nn.Module) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(of.parameters(), lr=1e-2)
    found = []
    for _ in range(5):
        tokens = torch.randint(5, 300, (4, 32), generator=generator)
        labels = torch.where(torch.arange(32) % 6 == 3, tokens, -100)
        loss = of(tokens, labels=labels).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.item())
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    whole = losses(model())
    sharded, mesh = model(), init_device_mesh("cpu", (2,))
    everything = sum(p.numel() for p in sharded.parameters())
    for layer in sharded.roberta.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    local = sum(p.to_local().numel() for p in sharded.parameters())  # type: ignore[attr-defined]
    found = {"whole": whole, "sharded": losses(sharded), "local": local, "all": everything}
    if distributed.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sharded.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
