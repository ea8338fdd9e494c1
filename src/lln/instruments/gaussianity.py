"""Are queries and keys Gaussian and centred, as section 3 assumes? Measured in a live model.

mean_share = sum_l m_l^2 / sum_l E[x_l^2]      the part of the power that is the mean vector; 0 when centred
skewness, excess kurtosis, KS distance         of the entries about their feature's mean, in units of the head's one sigma
anisotropy = max_l var_l / mean_l var_l        1 when all features have the same variance
"""

from typing import Any

import torch
from torch import Tensor, nn

from lln.instruments.capture import Captured
from lln.instruments.lognormality import distance_to_normal
from lln.instruments.probe import Probe
from lln.instruments.table import Table


def gaussianity(model: nn.Module, batch: Any, samples: int = 4) -> Table:
    """Runs the model once on `batch` (a dictionary of arguments, a tuple of them, or one) and reports every layer and head.

    The table has, for q and for k, the columns <name>_mean_share, _sigma, _skewness, _kurtosis, _ks, _anisotropy.
    """
    watcher = _InputWatcher(model, every=1, samples=samples, measures=())
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), watcher:
            if isinstance(batch, dict):
                model(**batch)
            else:
                model(*(batch if isinstance(batch, list | tuple) else (batch,)))
    finally:
        model.train(training)
    return watcher.table


class _InputWatcher(Probe):
    """A probe that looks at q and k instead of the matrix."""

    def _rows_of(self, layer: int, call: Captured) -> list[dict[str, Any]]:
        if call.q is None or call.k is None:
            raise RuntimeError(
                f"the queries and keys of layer {layer} ({call.module}) could not be seen, only its matrix"
            )
        attention = call.build()
        counts = call.key_mask if call.key_mask is not None else attention.row_mask
        k = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
        rows = []
        for head in range(call.q.shape[1]):
            row: dict[str, Any] = {
                "step": self._step, "layer": layer, "module": call.module, "kind": call.kind, "length": k.shape[2], "head": head
            }  # fmt: skip
            for name, x in (("q", call.q), ("k", k)):
                fits = counts is not None and counts.shape[1] == x.shape[2]
                vectors = x[:, head][counts] if fits and counts is not None else x[:, head].flatten(0, 1)  # (tokens, D)
                row |= {f"{name}_{what}": value for what, value in describe(vectors).items()}
            rows.append(row)
        return rows


def describe(vectors: Tensor) -> dict[str, float]:
    """How far vectors (tokens, D) are from centred Gaussians with one variance."""
    x = vectors.double()
    mean = x.mean(0)
    off = x - mean
    spread = off.square().mean(0)  # (D,)
    sigma = spread.mean().sqrt()
    if sigma == 0:
        share = 1.0 if bool(mean.any()) else 0.0
        return {"mean_share": share, "sigma": 0.0, "skewness": 0.0, "kurtosis": 0.0, "ks": 0.5, "anisotropy": 1.0}
    scaled = (off / sigma).flatten()
    return {
        "mean_share": (mean.square().sum() / x.square().mean(0).sum()).item(),
        "sigma": sigma.item(),
        "skewness": scaled.pow(3).mean().item(),
        "kurtosis": (scaled.pow(4).mean() - 3).item(),
        "ks": distance_to_normal(scaled.sort().values).item(),
        "anisotropy": (spread.max() / spread.mean()).item(),
    }
