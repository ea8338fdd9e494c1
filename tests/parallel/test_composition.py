"""With data parallelism, sharding, checkpointing and compilation, training is that of one process."""

import pytest
import torch

from tests.parallel.pool import Pool, Raised
from tests.parallel.training import alone, layer_with_heads


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


@pytest.mark.parametrize("matching", ["sample", "learnable"])
def test_heads_split_over_processes_give_the_same_layer(pool: Pool, matching: str) -> None:
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    out = layer_with_heads(matching)(whole)
    out.square().sum().backward()
    for found in pool.run("split", [{"matching": matching, "x": x}] * 4):
        torch.testing.assert_close(found["out"], out.detach(), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(found["gradient"], whole.grad, rtol=1e-7, atol=1e-9)


def test_running_statistics_of_split_heads_are_refused(pool: Pool) -> None:
    with pytest.raises(Raised, match="running statistics are pooled over all processes"):
        pool.run("split", [{"matching": "running", "x": torch.zeros(1, 4, 16, dtype=torch.float64)}] * 4)


def test_the_example_has_the_losses_of_one_process(pool: Pool) -> None:
    (alone,) = pool.run("example", [{"tokens": 500, "steps": 2}])
    assert alone[1] < alone[0]
    for losses in pool.run("example", [{"tokens": 500, "steps": 2}] * 3):
        torch.testing.assert_close(losses, alone, rtol=1e-5, atol=0)
