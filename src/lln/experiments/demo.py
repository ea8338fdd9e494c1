"""The demo: softmax, LLN and LLN+Diag trained side by side on the standard library's sources, and timed against the length.

A small encoder predicts masked bytes (15 %, as RoBERTa does) with the same seed, data order and budget for all three.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import lln_attention, lln_diag_attention
from lln.calibration import fit_line
from lln.data import standard_library
from lln.instruments.temperature import lln_temperature, temperature
from lln.modules import LLNAttention, LLNDiagAttention

MASK, VOCABULARY = 256, 257
METHODS = ("softmax", "lln", "lln_diag")
TITLES = {"softmax": "softmax", "lln": "LLN", "lln_diag": "LLN+Diag"}


@dataclass(frozen=True)
class Settings:
    width: int = 128
    heads: int = 4
    layers: int = 3
    length: int = 512
    batch: int = 8
    steps: int = 150
    learning_rate: float = 2e-3
    seed: int = 0
    longest: int = 16_384


class SoftmaxAttention(LLNAttention):
    """The same projections around scaled_dot_product_attention."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Layer(nn.Module):
    def __init__(self, attention: LLNAttention) -> None:
        super().__init__()
        width = attention.embed_dim
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))[0]
        return x + self.feed_forward(self.norm2(x))


class Encoder(nn.Module):
    def __init__(self, method: str, settings: Settings) -> None:
        super().__init__()
        kind = {"softmax": SoftmaxAttention, "lln": LLNAttention, "lln_diag": LLNDiagAttention}[method]
        self.method = method
        self.embed = nn.Embedding(VOCABULARY, settings.width)
        self.position = nn.Embedding(settings.length, settings.width)
        self.layers = nn.ModuleList(Layer(kind(settings.width, settings.heads)) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def temperature(self, tokens: Tensor, line: tuple[float, float]) -> float:
        """Mean over layers, samples and heads: eq. 5 for softmax, eq. 11 for LLN with the line fitted at this head size."""
        seen: list[Tensor] = []
        hooks = [
            layer.attention.register_forward_hook(
                lambda module, inputs, _: seen.append(_measure(module, inputs[0], line))
            )
            for layer in self.layers
            if isinstance(layer, Layer)
        ]
        self(tokens)
        for hook in hooks:
            hook.remove()
        return float(torch.stack(seen).mean())


def _measure(attention: LLNAttention, x: Tensor, line: tuple[float, float]) -> Tensor:
    q = attention.q_proj(x).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    k = attention.k_proj(x).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    if isinstance(attention, SoftmaxAttention):
        return temperature(q, k)
    alpha, beta, _ = attention.matcher(q, k)
    return lln_temperature(q, k, alpha, beta, a=line[0], b=line[1])


def train(method: str, settings: Settings, on_step: Callable[[int, float], None]) -> dict[str, Any]:
    """Loss curves, temperature before and after, and the median time of a step."""
    torch.manual_seed(settings.seed)
    model = Encoder(method, settings)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.learning_rate, settings.steps + 1, pct_start=0.1)
    train_text, valid_text = standard_library.split(standard_library.read_bytes())
    order, held_out = torch.Generator().manual_seed(settings.seed), torch.Generator().manual_seed(settings.seed + 1)
    validation = [_masked(valid_text, settings, held_out) for _ in range(4)]
    line = fit_line(settings.width // settings.heads, (1.0, 16.0))

    temperatures, losses, times = [model.temperature(validation[0][0], line)], [], []
    for step in range(settings.steps):
        tokens, targets, chosen = _masked(train_text, settings, order)
        start = time.perf_counter()
        loss = F.cross_entropy(model(tokens)[chosen], targets[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
        on_step(step, losses[-1])
    temperatures.append(model.temperature(validation[0][0], line))
    with torch.no_grad():
        held_out_loss = statistics.fmean(
            F.cross_entropy(model(tokens)[chosen], targets[chosen]).item() for tokens, targets, chosen in validation
        )
    return {
        "loss": losses,
        "validation_loss": held_out_loss,
        "temperature_before": temperatures[0],
        "temperature_after": temperatures[1],
        "seconds_per_step": statistics.median(times),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _masked(text: Tensor, settings: Settings, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens with 15 % replaced by the mask, the original bytes, and which positions were replaced."""
    targets = standard_library.windows(text, settings.batch, settings.length, generator)
    chosen = torch.rand(targets.shape, generator=generator) < 0.15
    return targets.masked_fill(chosen, MASK), targets, chosen


def time_against_length(
    settings: Settings, on_measured: Callable[[str, int], None], heads: int = 2, head_dim: int = 64
) -> dict[str, dict[str, float]]:
    """Forward + backward of the attention alone, in seconds: the best of three interleaved runs after a warm-up.

    A run that takes longer than a second is not repeated.
    """
    functions: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "softmax": F.scaled_dot_product_attention,
        "lln": lln_attention,
        "lln_diag": lln_diag_attention,
    }
    lengths = [2**power for power in range(8, 31) if 2**power <= settings.longest]
    times: dict[str, dict[str, float]] = {name: {} for name in functions}
    generator = torch.Generator().manual_seed(settings.seed)
    for length in lengths:
        inputs = [torch.randn(1, heads, length, head_dim, generator=generator, requires_grad=True) for _ in range(3)]
        for repeat in range(4):
            for name, function in functions.items():
                best = times[name].get(str(length))
                if best is not None and best > 1.0:
                    continue
                start = time.perf_counter()
                torch.autograd.grad(function(*inputs).sum(), inputs)
                taken = time.perf_counter() - start
                if repeat > 0 or taken > 1.0:
                    times[name][str(length)] = taken if best is None else min(best, taken)
                on_measured(name, length)
    return times


def run(
    settings: Settings,
    on_step: Callable[[str, int, float], None],
    on_measured: Callable[[str, int], None],
) -> dict[str, Any]:
    training = {
        name: train(name, settings, lambda step, loss, name=name: on_step(name, step, loss))  # type: ignore[misc]
        for name in METHODS
    }
    return {"settings": asdict(settings), "training": training, "times": time_against_length(settings, on_measured)}
