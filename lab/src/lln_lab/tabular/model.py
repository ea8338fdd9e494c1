"""TabPFN v1 (Hollmann et al., arXiv 2207.01848): a transformer that reads a training set and labels test rows in one pass.

    h_i = W_x x_i + b_x + [i is a training row] (W_y y_i + b_y)
    12 times:  h_i = norm(h_i + attention of row i over the training rows)
               h_i = norm(h_i + W_2 gelu(W_1 h_i))
    logits_i = W_o gelu(W_h h_i)

Rows are a set: there are no positions, so nothing is near, and a test row reads the training rows only. In a linear attention
what it reads is a state whose size does not depend on their number.

Names of weights are those of the published checkpoint, which the user brings: the file in `tabpfn/models_diff` of the
package's release 0.1.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Those of the published model by default."""

    features: int = 100
    classes: int = 10
    width: int = 512
    heads: int = 4
    hidden: int = 1024
    layers: int = 12


class RowLayer(nn.Module):
    """Attention over the training rows, then a feed-forward layer; normalised after each."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(sizes.width, sizes.heads, batch_first=True)
        self.linear1 = nn.Linear(sizes.width, sizes.hidden)
        self.linear2 = nn.Linear(sizes.hidden, sizes.width)
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)

    def forward(self, h_BNE: Tensor, training: int) -> Tensor:
        seen = h_BNE[:, :training]
        h = self.norm1(h_BNE + self.self_attn(h_BNE, seen, seen, need_weights=False)[0])
        normed: Tensor = self.norm2(h + self.linear2(F.gelu(self.linear1(h))))
        return normed


class TabPFN(nn.Module):
    """x (B, N, features up to 100), y (B, training rows) -> logits of the other rows, (B, N - training, 10)."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes = sizes or Sizes()
        self.encoder = nn.Linear(sizes.features, sizes.width)
        self.y_encoder = nn.Linear(1, sizes.width)
        self.transformer_encoder = nn.ModuleDict(
            {"layers": nn.ModuleList(RowLayer(sizes) for _ in range(sizes.layers))}
        )
        self.decoder = nn.Sequential(
            nn.Linear(sizes.width, sizes.hidden), nn.GELU(), nn.Linear(sizes.hidden, sizes.classes)
        )

    @property
    def layers(self) -> nn.ModuleList:
        """In order."""
        layers = self.transformer_encoder["layers"]
        assert isinstance(layers, nn.ModuleList)
        return layers

    def embed(self, x: Tensor, y: Tensor) -> Tensor:
        """The rows before the first layer. Fewer features than the model has are scaled up, and the rest are zero."""
        used = x.shape[-1]
        if used > self.sizes.features:
            raise ValueError(f"this model takes up to {self.sizes.features} features, got {used}")
        wide = F.pad(x * (self.sizes.features / used), (0, self.sizes.features - used))
        h: Tensor = self.encoder(wide)
        return torch.cat([h[:, : y.shape[1]] + self.y_encoder(y[..., None].to(h)), h[:, y.shape[1] :]], dim=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x, y)
        for layer in self.layers:
            h = layer(h, y.shape[1])
        logits: Tensor = self.decoder(h[:, y.shape[1] :])
        return logits


def from_checkpoint(path: Path) -> TabPFN:
    """The published weights; only tensors and plain values are read from the file, no code."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    found = torch.load(path, map_location="cpu", weights_only=True)
    weights = found[0] if isinstance(found, (tuple, list)) else found
    weights = {name.removeprefix("module."): x for name, x in weights.items() if not name.endswith("criterion.weight")}
    model = TabPFN()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path} is not a checkpoint of TabPFN v1: {error}") from None
    return model.eval()


def standardised(x: Tensor, training: int) -> Tensor:
    """Columns about the mean and in units of the spread of the training rows, (N, features); constant columns are left out.

    What lies further than 4 spreads out, taken once more without such values, is pulled in logarithmically.
    """
    x = _in_spreads(x.double(), x[:training].double()).clamp(-100, 100)
    x = x[:, (x[:training] != x[:1]).any(dim=0)]
    mean, spread = x[:training].mean(dim=0), x[:training].std(dim=0)
    inside = torch.where((x[:training] - mean).abs() <= 4 * spread, x[:training], torch.nan)
    mean = inside.nanmean(dim=0)
    spread = ((inside - mean).square().nansum(dim=0) / (inside.isfinite().sum(dim=0) - 1).clamp_min(1)).sqrt()
    soft = torch.log1p(x.abs())
    return torch.minimum(torch.maximum(x, mean - 4 * spread - soft), mean + 4 * spread + soft).float()


def _in_spreads(x: Tensor, of: Tensor) -> Tensor:
    return (x - of.mean(dim=0)) / (of.std(dim=0) + 1e-6)


@torch.inference_mode()
def classify(model: TabPFN, x: Tensor, y: Tensor) -> Tensor:
    """Classes of the rows of x (N, features) beyond the len(y) that have one: one pass, no ensemble."""
    classes = int(y.max()) + 1
    if classes > model.sizes.classes:
        raise ValueError(f"this model tells up to {model.sizes.classes} classes apart, got {classes}")
    logits = model(standardised(x, len(y))[None], y[None])
    return logits[0, :, :classes].argmax(dim=-1)
