"""What a conversion costs a vision transformer that was written in plain torch: accuracy before, after, and distilled.

The model is trained here, with softmax, on scikit-learn's handwritten digits: 8 x 8 pictures, a pixel a token, 64 tokens and a
class token. It is converted with blocks of an eighth of the length, no training, and then distilled.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lln
from lln.conversion import distil


@dataclass(frozen=True)
class Plan:
    width: int = 64
    heads: int = 4
    layers: int = 3
    steps: int = 600
    batch: int = 64
    rate: float = 2e-3
    block_size: int = 8
    calibration: int = 4  # batches
    distil_steps: int = 200
    seeds: tuple[int, ...] = (0, 1, 2)
    attentions: tuple[str, ...] = ("lln_near_far", "lln_diag", "hedgehog")


class PixelTransformer(nn.Module):
    """Pixels as tokens, positions, torch's encoder, a class token."""

    def __init__(self, plan: Plan, tokens: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(1, plan.width)
        self.position = nn.Parameter(0.5 * torch.randn(1, tokens, plan.width))
        self.first = nn.Parameter(torch.zeros(1, 1, plan.width))
        layer = nn.TransformerEncoderLayer(
            plan.width, plan.heads, 2 * plan.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, plan.layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(plan.width), nn.Linear(plan.width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.embed(pictures[..., None]) + self.position
        x = self.encoder(torch.cat([self.first.expand(len(x), -1, -1), x], dim=1))
        scores: Tensor = self.head(self.norm(x[:, 0]))
        return scores


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    rows = []
    for seed in plan.seeds:
        tell(f"seed {seed}: training")
        train, test = _digits(seed)
        model = _trained(plan, train, seed)
        rows += [_converted(model, attention, plan, train, test, seed, tell) for attention in plan.attentions]
    return {"plan": asdict(plan), "test_pictures": len(test[1]), "rows": rows}


def _converted(
    original: nn.Module, attention: str, plan: Plan, train: Any, test: Any, seed: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    tell(f"seed {seed}: {attention}")
    model = copy.deepcopy(original)
    batches = list(train[0].split(plan.batch))
    near: dict[str, Any] = {"block_size": plan.block_size} if attention == "lln_near_far" else {}
    options = {"block_size": plan.block_size} if attention == "lln_diag" else {}
    lln.convert(model, batches[: plan.calibration], attention=attention, options=options, **near)
    found = {
        "seed": seed,
        "attention": attention,
        "softmax": _accuracy(original, test),
        "converted": _accuracy(model, test),
    }
    if any("lln_sites" in name for name, _ in model.named_parameters()):
        start = time.process_time()
        distil(model, batches, steps=plan.distil_steps, loss=_divergence, seed=seed)
        found |= {"distilled": _accuracy(model, test), "distil_cpu_seconds": time.process_time() - start}
    return found


def _divergence(output: Tensor, wanted: Tensor, _: Any) -> Tensor:
    return F.kl_div(output.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


def _trained(plan: Plan, train: tuple[Tensor, Tensor], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = PixelTransformer(plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.rate, total_steps=plan.steps)
    for _ in range(plan.steps):
        rows = torch.randint(len(train[1]), (plan.batch,))
        loss = F.cross_entropy(model(train[0][rows]), train[1][rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def _accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """Percent."""
    found = torch.cat([model(x).argmax(-1) for x in test[0].split(256)])
    return 100 * float((found == test[1]).float().mean())


def _digits(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Two thirds to train on, a third to test on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
    return (x[train], y[train]), (x[test], y[test])
