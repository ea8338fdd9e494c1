"""The Trainer of docs/scale-out.md, on stretches: losses and weights of a loop on one process."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.parallel.pool import MOST, Pool

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from tests.hf.models import VOCABULARY, make

PAGE = Path(__file__).parents[2] / "docs" / "scale-out.md"


def test_the_trainer_of_the_guide_trains_as_one_process(pool: Pool, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "class StretchTrainer" in block)
    steps, rate = 3, 0.1
    ids = torch.randint(3, VOCABULARY, (1, 250), generator=torch.Generator().manual_seed(4))

    model = make("llama").double()
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        logits = model(input_ids=ids, position_ids=torch.arange(250)[None]).logits
        loss = F.cross_entropy(logits[0, :-1], ids[0, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())

    payload = {"code": code, "ids": ids[0], "steps": steps, "rate": rate, "folder": str(tmp_path)}
    for found in pool.run("trained", [payload] * MOST):
        torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(losses), rtol=2e-4, atol=0)  # as logged
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(
                found["weights"][name], weight, rtol=1e-7, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
            )
