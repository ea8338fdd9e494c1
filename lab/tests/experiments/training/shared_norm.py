"""Half a batch in each of two processes: torchrun … -m lab.tests.experiments.training.shared_norm FOLDER"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as distributed

from lln_lab.experiments.models.batch_norm import BatchNorm


def step(norm: BatchNorm, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The gradient of x for the mean loss of the samples at hand."""
    x = x.clone().requires_grad_(True)
    (norm(x) - target).square().mean().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    random = torch.Generator().manual_seed(0)
    x, target = torch.randn(2, 8, 5, generator=random) * 3 + 1
    norm = BatchNorm(5)
    half = slice(4 * rank, 4 * rank + 4)
    gradient = step(norm, x[half], target[half]) / 2  # the mean over processes, as DDP takes it
    gathered = [torch.empty_like(gradient) for _ in range(2)]
    distributed.all_gather(gathered, gradient)
    distributed.all_reduce(norm.weight.grad)
    own = {"x": torch.cat(gathered), "weight": norm.weight.grad / 2, "mean": norm.running_mean, "var": norm.running_var}
    distributed.destroy_process_group()
    whole = BatchNorm(5)
    wanted = {
        "x": step(whole, x, target),
        "weight": whole.weight.grad,
        "mean": whole.running_mean,
        "var": whole.running_var,
    }
    if rank == 0:
        errors = {name: float((own[name] - wanted[name]).detach().abs().max()) for name in own}  # type: ignore[operator]
        (folder / "norm.json").write_text(json.dumps({"errors": errors, "size": float(wanted["x"].abs().max())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
