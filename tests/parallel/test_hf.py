"""An encoder and a causal model of Hugging Face on stretches: losses and gradients of one process."""

import pytest
import torch

from tests.parallel.pool import Pool

pytest.importorskip("transformers")
from tests.hf.models import VOCABULARY, make
from tests.parallel.hf_jobs import gradients, loss_of


@pytest.mark.parametrize("attention", ["lln_diag", "lln_near_far"])
@pytest.mark.parametrize(
    ("family", "padding"), [("bert", "right"), ("bert", "none"), ("llama", "none"), ("llama", "left")]
)
def test_losses_and_gradients_are_those_of_one_process(pool: Pool, family: str, padding: str, attention: str) -> None:
    tokens, size = 60, 3
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, VOCABULARY, (2, tokens), generator=generator)
    mask = torch.ones(2, tokens, dtype=torch.int64)
    if padding == "right":
        mask[1, 37:] = 0
    if padding == "left":
        mask[1, :23] = 0
    positions = torch.arange(tokens).expand(2, -1) if padding != "left" else (mask.cumsum(1) - 1).clamp_min(0)
    width = VOCABULARY if family == "llama" else 32
    # a causal model predicts the next token: labels are moved before they are cut
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], dim=1) if family == "llama" else ids % width
    labels = torch.where(mask.bool(), labels, -100)
    inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
    options = {"neighbours": 1, "first_tokens": 3} if attention == "lln_near_far" else {}
    total = int((labels != -100).sum())

    model = make(family, attention, **options).double()
    loss = loss_of(model, labels, total, **inputs)
    loss.backward()
    expected = gradients(model)
    payload = {
        "model": (family, attention, options),
        "inputs": inputs | {"labels": labels},
        "total": total,
        "multiple_of": 7,
    }
    found = pool.run("hugging_face", [payload] * size)
    torch.testing.assert_close(sum(f["loss"] for f in found), loss.detach(), rtol=1e-10, atol=0)
    for f in found:
        for name, gradient in f["gradients"].items():
            torch.testing.assert_close(
                gradient, expected[name], rtol=1e-7, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
            )
