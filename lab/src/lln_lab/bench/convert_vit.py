"""What a conversion costs a vision transformer that was written in plain torch: accuracy before, after, and distilled.

The model is trained here, with softmax, on 64 tokens and a class token: the pixels of scikit-learn's handwritten digits
(8 x 8), or patches of 4 x 4 pixels of pictures in colour (CIFAR-10, from a folder). It is converted with blocks of an eighth of
the length, no training, and then distilled: first what the conversion added learns to follow the original, then, if asked for,
all weights of the model.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
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
    neighbours: tuple[int, ...] = (0,)  # of near-far attention: blocks on each side that are near; a row for each
    calibration: int = 4  # batches
    distil_steps: int = 200
    weight_steps: int = 0  # further ones, in which all weights learn
    weight_rate: float = 1e-3
    seeds: tuple[int, ...] = (0, 1, 2)
    attentions: tuple[str, ...] = ("lln_near_far", "lln_diag", "hedgehog")
    flip: bool = False  # pictures in training, left to right, every second time


Part = tuple[Tensor, Tensor]  # tokens (N, 64, features) uint8, labels (N,)
SIZE, PATCH = 32, 4  # of pictures in colour


class TokenTransformer(nn.Module):
    """Pixels or patches as tokens, uint8; positions, torch's encoder, a class token."""

    def __init__(self, plan: Plan, tokens: int, features: int, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(features, plan.width)
        self.position = nn.Parameter(0.5 * torch.randn(1, tokens, plan.width))
        self.first = nn.Parameter(torch.zeros(1, 1, plan.width))
        layer = nn.TransformerEncoderLayer(
            plan.width, plan.heads, 2 * plan.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, plan.layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(plan.width), nn.Linear(plan.width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.embed(pictures.float() / 127.5 - 1) + self.position
        x = self.encoder(torch.cat([self.first.expand(len(x), -1, -1), x], dim=1))
        scores: Tensor = self.head(self.norm(x[:, 0]))
        return scores


def run(
    plan: Plan, tell: Callable[[str], None], folder: Path | None = None, cache: Path | None = None
) -> dict[str, Any]:
    """Accuracies in per cent, a row for each seed and attention. folder: of CIFAR-10; None: the digits."""
    rows = []
    for seed in plan.seeds:
        train, test = _digits(seed) if folder is None else _pictures(folder, cache or folder)
        tell(f"seed {seed}: training on {len(train[1]):,} pictures")
        start = time.process_time()
        model = _trained(plan, train, seed)
        trained = {"train_cpu_seconds": time.process_time() - start, "softmax": _accuracy(model, test)}
        tell(f"seed {seed}: softmax {trained['softmax']:.1f} %")
        kinds: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in plan.attentions if name != "lln_near_far"]
        if "lln_near_far" in plan.attentions:
            kinds += [("lln_near_far", {"neighbours": neighbours}) for neighbours in plan.neighbours]
        rows += [trained | _converted(model, *kind, plan, train, test, seed, tell) for kind in kinds]
    return {
        "plan": asdict(plan),
        "pictures": "digits" if folder is None else folder.name,
        "test_pictures": len(test[1]),
        "rows": rows,
    }


def _converted(
    original: nn.Module, attention: str, near: dict[str, Any], plan: Plan, train: Any, test: Any, seed: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    tell(f"seed {seed}: {attention}")
    model = copy.deepcopy(original)
    chosen = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(seed))
    batches = [train[0][rows] for rows in chosen[: 64 * plan.batch].split(plan.batch)]
    sized = {"block_size": plan.block_size}
    of_call: dict[str, Any] = sized | near if attention == "lln_near_far" else {}
    options = sized if attention == "lln_diag" else {}
    lln.convert(model, batches[: plan.calibration], attention=attention, options=options, **of_call)
    found = {"seed": seed, "attention": attention, **near, "converted": _accuracy(model, test)}
    if any("lln_sites" in name for name, _ in model.named_parameters()):
        start = time.process_time()
        distil(model, batches, steps=plan.distil_steps, loss=_divergence, seed=seed)
        seconds = time.process_time() - start
        found |= {"distilled": _accuracy(model, test), "distil_cpu_seconds": seconds}
    if plan.weight_steps:
        start = time.process_time()
        every = [train[0][rows] for rows in chosen.split(plan.batch)]  # of the training set, without its labels
        whole: dict[str, Any] = {"learn": "everything", "stage": "end_to_end", "end_to_end_lr": plan.weight_rate}
        distil(model, every, steps=plan.weight_steps, passes=1, loss=_divergence, teacher=original, seed=seed, **whole)
        seconds = time.process_time() - start
        found |= {"all weights": _accuracy(model, test), "weights_cpu_seconds": seconds}
    tell(f"seed {seed}: {found}")
    return found


def _divergence(output: Tensor, wanted: Tensor, _: Any) -> Tensor:
    return F.kl_div(output.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


def _trained(plan: Plan, train: Part, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = TokenTransformer(plan, *train[0].shape[1:])
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.rate, total_steps=plan.steps)
    for _ in range(plan.steps):
        rows = torch.randint(len(train[1]), (plan.batch,))
        tokens = train[0][rows]
        if plan.flip and bool(torch.rand(()) < 0.5):
            tokens = _tokens(_as_pictures(tokens).flip(-1))
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(tokens), train[1][rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def _accuracy(model: nn.Module, test: Part) -> float:
    """Percent."""
    found = torch.cat([model(x).argmax(-1) for x in test[0].split(256)])
    return 100 * float((found == test[1]).float().mean())


def _digits(seed: int) -> tuple[Part, Part]:
    """Two thirds to train on, a third to test on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.tensor(found.data * 15).to(torch.uint8)[..., None], torch.tensor(found.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, test = order[: 2 * len(y) // 3], order[2 * len(y) // 3 :]
    return (x[train], y[train]), (x[test], y[test])


def _pictures(folder: Path, cache: Path) -> tuple[Part, Part]:
    """The training and the test pictures of a folder, as patches."""
    from lln_lab.data.missing import missing
    from lln_lab.data.pictures import LAYOUTS, decoded_splits, split_paths

    paths = split_paths(folder)
    if paths is None:
        raise missing("lln bench vit", [folder], LAYOUTS, "CIFAR-10, sorted into folders by class")
    *parts, _ = decoded_splits(folder, paths, cache, SIZE, "RGB")
    train, test = ((_tokens(torch.tensor(part["pixels"])), torch.tensor(part["labels"])) for part in parts)
    return train, test


def _tokens(pictures: Tensor) -> Tensor:
    """(B, 3, 32, 32) -> (B, 64, 48): patches, row by row."""
    side = SIZE // PATCH
    cut = pictures.unflatten(3, (side, PATCH)).unflatten(2, (side, PATCH))  # (B, 3, side, PATCH, side, PATCH)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2).contiguous()


def _as_pictures(tokens: Tensor) -> Tensor:
    side = SIZE // PATCH
    cut = tokens.unflatten(2, (3, PATCH, PATCH)).unflatten(1, (side, side))
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
