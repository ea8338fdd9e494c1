"""Which target of moment matching should be the default? Measured in three parts, each a command of its own.

closeness   entropy and spectral gap of LLN attention against softmax's over the temperature, Gaussian inputs (Figure 2)
training    a small encoder learns to fill in masked bytes of Python's standard library
recall      one layer must find the value of a key among pairs: a task that cannot be done without attention

The last two train with LLN attention from the start, and also swap the attention of the model trained with softmax for
LLN without further training.

    python -m lln_lab.experiments.targets --part recall --out docs/results/matching_recall.json
"""

import argparse
import sysconfig
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from lln.attention import lln_attention
from lln.matching import match_moments
from lln.matching.matcher import MomentMatcher
from lln.results import write_result
from lln.writing import refuse_unwritable_file

TAUS = (0.25, 0.5, 0.707, 1.0, 1.41, 2.0, 4.0)
TARGETS = ("paper", "variance", "entropy", "ones")  # "ones": alpha = beta = 1
MASK_BYTE, VOCABULARY = 256, 257


@dataclass(frozen=True)
class Attention:
    """What an encoder attends with: softmax, or LLN under a target."""

    target: str  # "softmax" or one of TARGETS
    subtract_mean_key: bool = False

    @property
    def name(self) -> str:
        return self.target + (" - mean key" if self.subtract_mean_key else "")


# --- closeness -------------------------------------------------------------------------------------------------------


def closeness(
    head_dims: tuple[int, ...] = (16, 32, 64, 128), length: int = 512, seeds: int = 10
) -> list[dict[str, Any]]:
    """Mean entropy (bits) and spectral gap 1 - |lambda_2| of softmax and of LLN under each target, over tau."""
    rows = []
    for head_dim in head_dims:
        for tau in TAUS:
            found: dict[str, list[tuple[float, float]]] = {"softmax": [], **{t: [] for t in TARGETS}}
            for seed in range(seeds):
                random = numpy.random.default_rng(seed)
                q, k = (torch.from_numpy(random.standard_normal((length, head_dim)) * tau**-0.5) for _ in range(2))
                softmax = torch.softmax(q @ k.T * head_dim**-0.5, dim=-1)
                found["softmax"].append((_entropy(softmax), _gap(softmax)))
                for target in TARGETS:
                    alpha, beta = (
                        (1.0, 1.0) if target == "ones" else match_moments(q[None, None], k[None, None], target=target)
                    )
                    found[target].append(_lln_entropy_and_gap(q, k, float(alpha), float(beta)))
            row: dict[str, Any] = {"head_dim": head_dim, "tau": tau, "length": length, "seeds": seeds}
            for name, values in found.items():
                row[name] = dict(zip(("entropy", "gap"), numpy.mean(values, axis=0).tolist(), strict=True))
            rows.append(row)
            print(f"closeness d={head_dim} tau={tau}", flush=True)
    return rows


def _lln_entropy_and_gap(q: Tensor, k: Tensor, alpha: float, beta: float) -> tuple[float, float]:
    peak = (beta * k).amax(dim=0)
    a = alpha * q + peak
    of_q, of_k = (a - a.amax(dim=-1, keepdim=True)).exp(), (beta * k - peak).exp()
    of_q = of_q / (of_q @ of_k.sum(dim=0))[:, None]
    return _entropy(of_q @ of_k.T), _gap(of_k.T @ of_q)  # the d x d product has P's non-zero eigenvalues


def _entropy(p: Tensor) -> float:
    return float(-(p * p.clamp_min(1e-300).log2()).sum(dim=-1).mean())


def _gap(p: Tensor) -> float:
    return float(1 - torch.linalg.eigvals(p).abs().sort(descending=True).values[1])


# --- training and swap -----------------------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Bidirectional self-attention whose kind can be changed after training."""

    def __init__(self, width: int, heads: int, kind: Attention) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.use(kind)

    def use(self, kind: Attention) -> None:
        self.kind = kind
        self.matcher: MomentMatcher | None = None
        if kind.target in ("paper", "variance", "entropy"):
            head_dim = self.out.in_features // self.heads
            self.matcher = MomentMatcher(
                self.heads, head_dim, target=kind.target, subtract_mean_key=kind.subtract_mean_key
            )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
        if self.kind.target == "softmax":
            mixed = functional.scaled_dot_product_attention(q, k, v)
        elif self.matcher is not None:
            alpha, beta, bias = self.matcher(q, k)
            mixed = lln_attention(q, k, v, alpha, beta, feature_bias=bias)
        else:
            mixed = lln_attention(q, k, v, 1.0, 1.0)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """Pre-norm encoder over bytes; a convolution over neighbours lets a short run get beyond byte frequencies."""

    def __init__(self, kind: Attention, layers: int = 2, width: int = 128, heads: int = 4, length: int = 256) -> None:
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.neighbours = nn.Conv1d(width, width, kernel_size=5, padding=2)
        self.attention = nn.ModuleList(SelfAttention(width, heads, kind) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.read = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.byte(tokens) + self.position[: tokens.shape[1]]
        x = x + self.neighbours(x.transpose(1, 2)).transpose(1, 2)
        for attention, norm, mlp in zip(self.attention, self.norm, self.mlp, strict=True):
            x = x + attention(norm(x))
            x = x + mlp(x)
        logits: Tensor = self.read(x)
        return logits

    def use(self, kind: Attention) -> None:
        for attention in self.attention:
            assert isinstance(attention, SelfAttention)
            attention.use(kind)


@dataclass(frozen=True)
class Budget:
    steps: int = 200
    batch: int = 4
    length: int = 256
    learning_rate: float = 2e-3
    masked: float = 0.15
    test_batches: int = 16


def standard_library() -> tuple[Tensor, Tensor]:
    """(training, test) bytes: every tenth source file of Python's standard library is for testing."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(p for p in folder.glob("*.py") if p.is_file())
    read = [p.read_bytes() for p in files]
    train = b"".join(text for i, text in enumerate(read) if i % 10)
    test = b"".join(text for i, text in enumerate(read) if not i % 10)
    return tuple(torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in (train, test))  # type: ignore[return-value]


def batches(text: Tensor, count: int, budget: Budget, seed: int) -> Any:
    """(tokens with masks, bytes, where the masks are), the same for every kind of attention."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(text) - budget.length, (budget.batch, 1), generator=generator)
        true = text[starts + torch.arange(budget.length)]
        masked = torch.rand(true.shape, generator=generator) < budget.masked
        yield true.masked_fill(masked, MASK_BYTE), true, masked


def train(kind: Attention, budget: Budget, seed: int, text: Tensor) -> tuple[Encoder, float]:
    """The trained encoder and the seconds it took."""
    torch.manual_seed(seed)
    model = Encoder(kind, length=budget.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=budget.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, budget.learning_rate, total_steps=budget.steps, pct_start=0.1
    )
    began = time.perf_counter()
    for tokens, true, masked in batches(text, budget.steps, budget, seed):
        loss = functional.cross_entropy(model(tokens)[masked], true[masked])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model, time.perf_counter() - began


@torch.no_grad()
def test_loss(model: Encoder, budget: Budget, text: Tensor) -> float:
    """Bits per masked byte, the same test batches for everyone."""
    losses = [
        functional.cross_entropy(model(tokens)[masked], true[masked]).item()
        for tokens, true, masked in batches(text, budget.test_batches, replace(budget, batch=16), seed=10_000)
    ]
    return float(numpy.mean(losses) / numpy.log(2))


def training_and_swap(budget: Budget, seeds: int) -> list[dict[str, Any]]:
    """Test loss of each attention trained from the start, and of the softmax model with its attention swapped."""
    train_text, test_text = standard_library()
    kinds = [Attention(target, centred) for target in TARGETS for centred in (False, True)][:-1]  # "ones" as it is
    rows = []
    for seed in range(seeds):
        softmax, seconds = train(Attention("softmax"), budget, seed, train_text)
        rows.append(
            {"attention": "softmax", "seed": seed, "trained": test_loss(softmax, budget, test_text), "seconds": seconds}
        )
        for kind in kinds:
            softmax.use(kind)
            swapped = test_loss(softmax, budget, test_text)
            model, seconds = train(kind, budget, seed, train_text)
            row = {
                "attention": kind.name,
                "seed": seed,
                "trained": test_loss(model, budget, test_text),
                "swapped": swapped,
            }
            rows.append({**row, "seconds": seconds})
            print(row, flush=True)
    return rows


# --- recall ----------------------------------------------------------------------------------------------------------


class Recall(nn.Module):
    """One attention layer that must find, among pairs (key, value), the value of a key that is asked for."""

    def __init__(self, kind: Attention, symbols: int, width: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(symbols, width), nn.Embedding(symbols + 1, width)
        self.norm, self.attention = nn.LayerNorm(width), SelfAttention(width, heads, kind)
        self.read = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, symbols))

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        x = self.key(keys) + self.value(values)
        logits: Tensor = self.read(x + self.attention(self.norm(x)))
        return logits


def recall(seeds: int, steps: int, pairs: int = 32, batch: int = 16) -> list[dict[str, Any]]:
    """Share of right answers, trained with each attention, and trained with softmax and then swapped.

    Every sample has `pairs` pairs in random order, then every key again without its value.
    """
    kinds = [Attention(target, centred) for target in TARGETS for centred in (False, True)][:-1]
    rows = []
    for seed in range(seeds):
        softmax = _train_recall(Attention("softmax"), seed, steps, pairs, batch)
        rows.append({"attention": "softmax", "seed": seed, "trained": _right_answers(softmax, pairs)})
        for kind in kinds:
            softmax.attention.use(kind)
            model = _train_recall(kind, seed, steps, pairs, batch)
            swapped, trained = _right_answers(softmax, pairs), _right_answers(model, pairs)
            rows.append({"attention": kind.name, "seed": seed, "trained": trained, "swapped": swapped})
            print(rows[-1], flush=True)
    return rows


def _draw_pairs(generator: torch.Generator, count: int, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    keys = torch.rand(count, pairs, generator=generator).argsort(dim=1)
    values = torch.randint(pairs, (count, pairs), generator=generator)
    asked = torch.full_like(values, pairs)
    return torch.cat([keys, keys], dim=1), torch.cat([values, asked], dim=1), values


def _train_recall(kind: Attention, seed: int, steps: int, pairs: int, batch: int) -> Recall:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Recall(kind, pairs)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        keys, values, true = _draw_pairs(generator, batch, pairs)
        loss = functional.cross_entropy(model(keys, values)[:, pairs:].flatten(0, 1), true.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def _right_answers(model: Recall, pairs: int) -> float:
    keys, values, true = _draw_pairs(torch.Generator().manual_seed(10_000), 64, pairs)
    return float((model(keys, values)[:, pairs:].argmax(dim=-1) == true).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/matching.json"))
    parser.add_argument("--part", choices=("closeness", "training", "recall"), required=True)
    parser.add_argument("--seeds", type=int, default=None, help="10 for closeness, 3 for the others")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    try:
        refuse_unwritable_file(options.out)
    except OSError as reason:
        parser.error(reason.strerror or str(reason))
    torch.set_num_threads(1)
    if options.part == "closeness":
        seeds = options.seeds or 10
        data: dict[str, Any] = {"closeness": closeness(seeds=seeds)}
    elif options.part == "recall":
        seeds = options.seeds or 3
        data = {"steps": options.steps, "recall": recall(seeds, options.steps)}
    else:
        seeds = options.seeds or 3
        budget = Budget(steps=options.steps)
        data = {"budget": vars(budget), "training": training_and_swap(budget, seeds)}
    print(write_result(options.out, {"part": options.part, "seeds": seeds, **data}, seed=0))


if __name__ == "__main__":
    main()
