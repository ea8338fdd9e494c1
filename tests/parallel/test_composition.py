"""With data parallelism, sharding, checkpointing and compilation, training is that of one process."""

import pytest
import torch

from tests.parallel.pool import Pool
from tests.parallel.training import alone


@pytest.mark.parametrize(
    ("kind", "steps", "causal"),
    [
        ("fsdp", 20, False),
        ("ddp", 4, False),
        ("ddp", 4, True),
        ("checkpoint", 3, True),
        pytest.param("compile", 2, False, marks=pytest.mark.slow),
    ],
)
def test_losses_are_those_of_one_process(pool: Pool, kind: str, steps: int, causal: bool) -> None:
    expected = alone(steps, causal)
    assert expected[-1] < expected[0] - 1e-4
    found = pool.run("together", [{"kind": kind, "steps": steps, "causal": causal}] * 4)
    for losses in found:
        torch.testing.assert_close(losses, expected, rtol=1e-8, atol=0)
