"""Near-far attention on the q, k and v of a pretrained encoder: how well the far mass is estimated, and what each term does.

layers  the estimate of the far mass less the true one, mean and root mean square over queries, for each layer; from the
        variances of single features (diagonal) and from the variance of the scores themselves (full covariance)
real    squared error of the output over softmax's power, term by term, the mean over layers and texts; texts cut at several
        lengths, and all scores multiplied by a factor, so that softmax is flatter or sharper than the model's own
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.near_far.mass import excess
from lln_lab.bench.near_far_terms import errors

LENGTHS = (128, 256, 512)
FACTORS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0)


@torch.no_grad()
def of_model(name: str, data: str, count: int, block_size: int, seed: int) -> dict[str, Any]:
    """Over `count` texts of 512 tokens."""
    from transformers import AutoModel, AutoTokenizer

    from lln.hf.conversion.text_file import TextFile
    from lln_lab.bench.attention_of import attention_of

    tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()
    texts, _ = TextFile(Path(data), max_length=LENGTHS[-1], seed=seed).choose(tokenizer, count)
    masses: dict[int, list[dict[str, Tensor]]] = {}
    real: dict[tuple[int, float], list[dict[str, float]]] = {(n, t): [] for n in LENGTHS for t in FACTORS}

    def attention(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        masses.setdefault(id(module), []).append(_mass(q, k, scale, block_size))
        for (length, factor), found in real.items():
            cut = slice(None), slice(None), slice(length)
            found.append(errors(q[cut], k[cut], v[cut], factor * scale, block_size))
        return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).contiguous(), None

    with attention_of(model, attention):
        for text in texts:
            model(**tokenizer(text, truncation=True, max_length=LENGTHS[-1], return_tensors="pt"))
    return {
        "layers": [_summed_up(parts) for parts in masses.values()],
        "real": [
            {"length": n, "factor": t, "error": {x: sum(one[x] for one in found) / len(found) for x in found[0]}}
            for (n, t), found in real.items()
        ],
    }


def _summed_up(parts: list[dict[str, Tensor]]) -> dict[str, Any]:
    joined = {name: torch.cat([part[name].flatten() for part in parts]) for name in parts[0]}
    x = {name: float(joined.pop(name).mean()) for name in ("x_diagonal", "x_full")}
    return x | {n: {"mean": float(e.mean()), "rms": float(e.square().mean().sqrt())} for n, e in joined.items()}


def _mass(q: Tensor, k: Tensor, scale: float, block_size: int) -> dict[str, Tensor]:
    """Estimates of the log of the far mass less the true one, each (B, H, N); dense and literal."""
    q, k = q.double(), k.double()
    block = torch.arange(q.shape[2]) // block_size
    far = block[:, None] != block[None]
    scores = scale * q @ k.mT
    true = scores.masked_fill(~far, -torch.inf).logsumexp(dim=-1)
    share = far.double() / far.sum(dim=-1, keepdim=True)
    log_count, mean = far.sum(dim=-1).double().log(), (share * scores).sum(dim=-1)
    centre = k.mean(dim=2, keepdim=True)
    variance = share @ (k - centre).square() - (share @ (k - centre)).square()
    diagonal = scale**2 * (q.square() * variance).sum(dim=-1)
    full = (share * (scores - mean[..., None]).square()).sum(dim=-1)
    estimates = {
        "without spread": torch.zeros_like(full),
        "diagonal, log-normal mean": diagonal / 2,
        "diagonal, bounded": excess(diagonal, log_count)[0],
        "full, log-normal mean": full / 2,
        "full, bounded": excess(full, log_count)[0],
    }
    found = {name: log_count + mean + energy - true for name, energy in estimates.items()}
    return found | {"x_diagonal": diagonal, "x_full": full}
