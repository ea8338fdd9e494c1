"""Reference values of Figure 2 and Proposition 3.1, computed once from full matrices in float64."""

import json
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from lln.instruments import LLNMatrix, SoftmaxMatrix, entropy, lognormality, spectral_gap
from lln.matching import PAPER_A, PAPER_B

GOLD = json.loads((Path(__file__).parent / "gold.json").read_text())


def draw(length: int, dim: int, sigma: float, seed: int) -> tuple[Tensor, Tensor]:
    random = numpy.random.default_rng(seed)
    q, k = (torch.from_numpy(random.standard_normal((length, dim)) * sigma)[None, None] for _ in range(2))
    return q, k


@pytest.mark.parametrize("row", GOLD["figure_2"], ids=lambda row: f"tau{row['tau']:.2f}-seed{row['seed']}")
def test_entropy_and_gap_of_figure_2(row: dict[str, float]) -> None:
    q, k = draw(512, 64, row["tau"] ** -0.5, int(row["seed"]))
    sigma_q, sigma_k = q.std(), k.std()
    spread = ((sigma_q**2 * sigma_k**2 - PAPER_B) / PAPER_A / 2).sqrt()
    plain = ((sigma_q**2 + sigma_k**2) / 2).sqrt()
    attentions = {
        "softmax": SoftmaxMatrix(q, k),
        "authors": LLNMatrix(q, k, spread / sigma_q, spread / sigma_k),
        "unmatched": LLNMatrix(q, k, plain / sigma_q, plain / sigma_k),
    }
    for name, attention in attentions.items():
        found = spectral_gap(attention, "dense" if name == "softmax" else "auto")
        assert entropy(attention).item() == pytest.approx(row[f"{name}_entropy"], rel=1e-9)
        assert found.gap.item() == pytest.approx(row[f"{name}_gap"], rel=1e-9)


@pytest.mark.parametrize("row", GOLD["proposition_3_1"], ids=lambda row: f"T{row['T']}")
def test_moments_of_log_softmax(row: dict[str, float]) -> None:
    q, k = draw(1024, 64, row["T"] ** 0.25, 0)
    found = lognormality(SoftmaxMatrix(q, k), quantile_entries=1024)
    assert found.mean.item() == pytest.approx(row["mean"], rel=1e-9)
    assert found.variance.item() == pytest.approx(row["variance"], rel=1e-9)
    assert entropy(SoftmaxMatrix(q, k)).item() == pytest.approx(row["entropy"], rel=1e-9)
