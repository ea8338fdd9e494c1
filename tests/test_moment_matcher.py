"""MomentMatcher: sample, running, fixed and learnable alpha and beta."""

import copy
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lln.matching import match_moments, sample_factor
from lln.matching.matcher import MomentMatcher

HEADS, KEY_HEADS, DIM = 4, 2, 8


def inputs(seed: int = 0, length: int = 13, batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, HEADS, length, DIM, generator=generator) * (1 + seed)
    k = torch.randn(batch, KEY_HEADS, length, DIM, generator=generator) + 0.5 * seed
    return q, k


def matcher(mode: str, **options: Any) -> MomentMatcher:
    if mode == "fixed":
        options = {"alpha": 1.5, "beta": 2.0, **options}
    return MomentMatcher(HEADS, DIM, num_key_heads=KEY_HEADS, mode=mode, **options)


MODES = [
    (mode, subtract)
    for mode in ("sample", "running", "fixed", "learnable")
    for subtract in (False, True)
    if (mode, subtract) != ("fixed", True)
]


@pytest.mark.parametrize(("mode", "subtract"), MODES)
def test_shapes_broadcast_to_those_of_attention(mode: str, subtract: bool) -> None:
    q, k = inputs()
    alpha, beta, bias = matcher(mode, subtract_mean_key=subtract)(q, k)
    samples = 2 if mode == "sample" else 1
    assert alpha.shape == (samples, HEADS, 1, 1) and beta.shape == (samples, KEY_HEADS, 1, 1)
    assert bias is None if not subtract else bias.shape == (samples, HEADS, 1, DIM)


@pytest.mark.parametrize("target", ["entropy", "variance", "paper"])
@pytest.mark.parametrize("subtract", [False, True])
def test_sample_mode_is_match_moments(target: str, subtract: bool) -> None:
    q, k = inputs(1)
    mask = torch.arange(13)[None] < torch.tensor([[9], [13]])
    found = matcher("sample", target=target, subtract_mean_key=subtract, scale=0.2)(q, k, mask)
    expected = match_moments(q, k, target=target, key_mask=mask, center_keys=subtract, scale=0.2)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_subtracting_the_mean_key_makes_lln_blind_to_it() -> None:
    q, k = inputs()
    shift = 3 * torch.randn(2, KEY_HEADS, 1, DIM)
    mask = torch.arange(13)[None] < torch.tensor([[9], [13]])

    def logits(k: Tensor) -> Tensor:
        alpha, beta, bias = matcher("sample", subtract_mean_key=True)(q, k, mask)
        keys = (beta * k).repeat_interleave(2, dim=1)
        return torch.logsumexp((alpha * q + bias)[:, :, :, None] + keys[:, :, None], dim=-1)

    torch.testing.assert_close(logits(k), logits(k + shift), rtol=1e-4, atol=1e-4)


def test_packed_sequences_have_a_bias_each() -> None:
    q, k = inputs(batch=1)
    alpha, _, bias = matcher("sample", subtract_mean_key=True)(q, k, None, torch.tensor([0, 4, 13]))
    alone = matcher("sample", subtract_mean_key=True)(q[:, :, 4:], k[:, :, 4:])
    torch.testing.assert_close(alpha[1:], alone[0])
    torch.testing.assert_close(bias[1:], alone[2])


def test_running_statistics_are_used_first_and_updated_after() -> None:
    running = matcher("running", subtract_mean_key=True)
    unit = matcher("learnable")(*inputs())[0]  # matched at T = 1
    alpha, _, bias = running(*inputs(1))
    torch.testing.assert_close(alpha, unit.detach())
    assert not bias.any()
    assert not torch.allclose(running(*inputs(1))[0], alpha)


@pytest.mark.parametrize("subtract", [False, True])
def test_the_first_batch_sets_the_statistics(subtract: bool) -> None:
    running = matcher("running", subtract_mean_key=subtract).double()
    q, k = inputs(1)
    running(q, k)
    pooled_q, pooled_k = (x.transpose(0, 1).flatten(1, 2)[None] for x in (q, k))  # the batch as one long sample
    expected = statistics_as_one_sample(q, k, subtract)
    torch.testing.assert_close(running.running.var_q, expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(running.running.var_k, expected[1], rtol=1e-5, atol=0)
    torch.testing.assert_close(running.running.mean_key, pooled_k.mean(2)[0], rtol=1e-5, atol=1e-6)
    factor = sample_factor(q, k, center_keys=subtract).mean(dim=0)  # both samples have as many tokens
    torch.testing.assert_close(running.running.log_factor, factor.float(), rtol=1e-4, atol=1e-5)
    running.running.log_factor.zero_()
    matched = match_moments(pooled_q, pooled_k, method="table", center_keys=subtract)
    running.length = pooled_k.shape[2]
    torch.testing.assert_close(running.eval()(q, k)[0], matched[0], rtol=1e-5, atol=0)


def statistics_as_one_sample(q: Tensor, k: Tensor, subtract: bool) -> tuple[Tensor, Tensor]:
    of_q = q.unflatten(1, (KEY_HEADS, -1)).transpose(0, 1).flatten(1)
    of_k = k.transpose(0, 1).flatten(1, 2)  # (Hk, B N, D)
    var_k = of_k.var(dim=1, correction=0).mean(-1) if subtract else of_k.flatten(1).var(dim=1, correction=0)
    return of_q.var(dim=1, correction=0), var_k


@pytest.mark.parametrize("subtract", [False, True])
def test_with_a_bias_corrected_momentum_every_batch_counts_by_its_weight(subtract: bool) -> None:
    """After two batches the statistics are those of a mixture with weights (1 - m) / (2 - m) and 1 / (2 - m)."""
    momentum = 0.25
    running = matcher("running", subtract_mean_key=subtract, momentum=momentum)
    batches = [inputs(1), inputs(2)]
    for q, k in batches:
        running(q, k)
    weight = torch.tensor([1 - momentum, 1.0]) / (2 - momentum)
    keys = [k.transpose(0, 1).flatten(1, 2) for _, k in batches]
    mean = sum(w * k.mean(1) for w, k in zip(weight, keys, strict=True))
    about = mean if subtract else mean.mean(-1, keepdim=True)
    variance = sum(w * (k - about[:, None]).square().mean((1, 2)) for w, k in zip(weight, keys, strict=True))
    torch.testing.assert_close(running.running.mean_key, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(running.running.var_k, variance, rtol=1e-5, atol=0)


def test_padding_does_not_count_in_running_statistics() -> None:
    q, k = inputs(1)
    mask = torch.arange(13)[None] < torch.tensor([[9], [13]])
    clean, poisoned = matcher("running"), matcher("running")
    clean(q, k, mask)
    outside = ~mask[:, None, :, None]
    poisoned(q.masked_fill(outside, torch.nan), k.masked_fill(outside, torch.nan), mask)
    for one, other in zip(clean.state_dict().values(), poisoned.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_batch_of_nothing_but_padding_changes_nothing() -> None:
    running = matcher("running")
    before = copy.deepcopy(running.state_dict())
    running(*inputs(1), torch.zeros(2, 13, dtype=torch.bool))
    for name, value in running.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_eval_freezes_and_the_state_dict_restores() -> None:
    running = matcher("running", subtract_mean_key=True)
    running(*inputs(1))
    other = matcher("running", subtract_mean_key=True)
    other.load_state_dict(running.state_dict())
    running.eval(), other.eval()
    before = copy.deepcopy(running.state_dict())
    for one, two in zip(running(*inputs(3)), other(*inputs(4)), strict=True):
        assert torch.equal(one, two)
    assert all(torch.equal(v, before[n]) for n, v in running.state_dict().items())


def test_statistics_stay_in_float32_when_the_model_is_cast() -> None:
    running = matcher("running").to(torch.bfloat16)
    assert running.running.var_q.dtype == torch.float32 and running.running.batches.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_loses_no_digit_of_the_statistics(dtype: torch.dtype) -> None:
    running = matcher("running", subtract_mean_key=True)
    running(*inputs(1))
    before = {name: x.clone() for name, x in running.running.named_buffers()}
    running.to(dtype)
    for name, x in running.running.named_buffers():
        assert torch.equal(x, before[name]) and x.dtype == before[name].dtype, name


def test_a_model_made_in_half_precision_has_statistics_in_float32() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        running = matcher("running")
    finally:
        torch.set_default_dtype(torch.float32)
    assert running.running.var_q.dtype == torch.float32


class Block(nn.Module):
    """A layer whose output depends on alpha and beta, so that gradients show which were used."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.project = nn.Linear(DIM, DIM)
        self.matcher = matcher(mode, subtract_mean_key=mode != "fixed")

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = self.project(q), self.project(k)
        alpha, beta, bias = self.matcher(q, k)
        shift = 0 if bias is None else bias
        return (alpha * q + shift).exp() @ (beta * k).repeat_interleave(2, dim=1).exp().sum(2)[..., None]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradient_checkpointing_neither_updates_twice_nor_changes_gradients(reentrant: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    plain = Block("running")
    checkpointed = copy.deepcopy(plain)
    run: Callable[..., Tensor] = torch.compile(checkpointed, backend="aot_eager") if compiled else checkpointed
    for seed in (1, 2):
        q, k = (0.1 * x for x in inputs(seed))
        plain(q, k).log().sum().backward()
        checkpoint(run, q.requires_grad_(), k, use_reentrant=reentrant).log().sum().backward()
    for (name, one), (_, two) in zip(plain.named_parameters(), checkpointed.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, msg=name)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, checkpointed.state_dict()[name], msg=name)


@pytest.mark.parametrize(("mode", "subtract"), MODES)
def test_every_mode_compiles_in_training(mode: str, subtract: bool) -> None:
    eager = matcher(mode, subtract_mean_key=subtract)
    compiled = copy.deepcopy(eager)
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for seed in (1, 2):
        q, k = inputs(seed)
        for one, other in zip(run(q.requires_grad_(), k), eager(q, k), strict=True):
            assert (one is None and other is None) or torch.allclose(one, other)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(value, compiled.state_dict()[name], msg=name)


@pytest.mark.parametrize("mode", ["sample", "running"])
def test_it_exports_with_a_dynamic_length(mode: str) -> None:
    layer = matcher(mode, subtract_mean_key=True).eval()
    dynamic = torch.export.Dim("length", min=2, max=1 << 20)
    exported = torch.export.export(layer, inputs(), dynamic_shapes=({2: dynamic}, {2: dynamic}, None, None)[:2])
    longer = inputs(1, length=57)
    for one, other in zip(exported.module()(*longer), layer(*longer), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("per_feature", [False, True])
def test_learnable_values_learn_and_stay_positive(per_feature: bool) -> None:
    learnable = matcher("learnable", per_feature=per_feature)
    alpha, beta, _ = learnable(*inputs())
    assert alpha.shape == (1, HEADS, 1, DIM if per_feature else 1)
    (alpha.sum() - beta.sum()).backward()
    assert learnable.log_alpha.grad is not None and (learnable.log_alpha.grad > 0).all()
    assert learnable.log_beta.grad is not None and (learnable.log_beta.grad < 0).all()


def test_learnable_starts_where_it_is_told() -> None:
    learnable = matcher("learnable", alpha=torch.tensor([1.0, 2.0, 3.0, 4.0]), beta=0.5)
    alpha, beta, _ = learnable(*inputs())
    torch.testing.assert_close(alpha.flatten(), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(beta.flatten(), torch.tensor([0.5, 0.5]))


def _gradients_in_parallel(rank: int, run: Callable[..., Tensor]) -> list[Tensor | None]:
    """Of a layer that each process calls twice, on inputs of its own, before one backward pass."""
    torch.manual_seed(0)
    block = Block("running")
    parallel = nn.parallel.DistributedDataParallel(block)
    for seed in (1, 2):
        q, k = (0.1 * x for x in inputs(2 * seed + rank))
        first, second = run(parallel, q.requires_grad_(), k), run(parallel, q.detach().requires_grad_(), k)
        (first.log().sum() + second.log().sum()).backward()
    return [parameter.grad for parameter in block.parameters()]


def _one_process(rank: int, port: int, path: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    running = matcher("running", subtract_mean_key=True)
    for seed in (1, 2):
        q, k = inputs(seed, batch=6)
        mine = slice(0, 2) if rank == 0 else slice(2, 6)
        running(q[mine], k[mine])
    q, k = inputs(3, batch=6)
    q[2:] = torch.nan  # what one process cannot use, no process does
    running(q[mine], k[mine])
    torch.save(running.state_dict(), f"{path}/{rank}.pt")
    plain = _gradients_in_parallel(rank, lambda layer, q, k: layer(q, k))
    torch.testing.assert_close(_gradients_in_parallel(rank, partial(checkpoint, use_reentrant=False)), plain)
    torch.distributed.destroy_process_group()


def test_over_processes_statistics_are_pooled_and_recomputation_changes_nothing(tmp_path: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_one_process, args=(port, str(tmp_path)), nprocs=2)
    alone = matcher("running", subtract_mean_key=True)
    for seed in (1, 2):
        alone(*inputs(seed, batch=6))
    for rank in (0, 1):
        for name, value in torch.load(tmp_path / f"{rank}.pt").items():
            torch.testing.assert_close(value, alone.state_dict()[name], msg=f"{rank} {name}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ema"}, "unknown mode 'ema': choose one of 'sample', 'running', 'fixed', 'learnable'"),
        ({"target": "mean"}, "unknown target 'mean'"),
        ({"num_key_heads": 3}, "num_heads must be a multiple of num_key_heads, got 4 and 3"),
        ({"momentum": 0.0}, "momentum must be in"),
        ({"length": 0}, "length must be at least 1"),
        ({"mode": "fixed"}, "mode 'fixed' needs alpha and beta"),
        ({"mode": "fixed", "alpha": 1.0}, "give alpha and beta together"),
        ({"mode": "fixed", "alpha": 1.0, "beta": 1.0, "subtract_mean_key": True}, "knows no mean key"),
        ({"mode": "sample", "alpha": 1.0, "beta": 1.0}, "finds alpha and beta itself"),
        (
            {"mode": "fixed", "alpha": torch.ones(3), "beta": 1.0},
            r"alpha must be a number, or a tensor of shape \(4,\)",
        ),
        ({"mode": "learnable", "alpha": 1.0, "beta": -1.0}, "beta must be positive"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MomentMatcher(HEADS, DIM, **options)


def test_foreign_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="made for 4 query heads, 2 key heads and head size 8"):
        matcher("sample")(torch.randn(1, 3, 5, 8), torch.randn(1, 3, 5, 8))
