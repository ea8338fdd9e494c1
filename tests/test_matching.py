"""Moment matching: LLN attention gets the concentration softmax attention would have."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from lln.attention import lln_attention
from lln.matching import match_moments
from lln.ops.moments import MatchOperands, match, table
from lln.ops.moments.table import calibrated_range, load

# q, k from numpy.random.default_rng(seed); alpha, beta, var(log P) under the published constants
PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_matching.json").read_text())


def gaussian(head_dim: int, length: int, t: float, seed: int) -> tuple[Tensor, Tensor]:
    """q (1, 1, N, D) and k (1, 1, N, D) in float64, with sigma_q^2 sigma_k^2 = t shared unequally."""
    generator = torch.Generator().manual_seed(1000 + seed)
    q = torch.randn(1, 1, length, head_dim, generator=generator, dtype=torch.float64) * (0.5 * t**0.5)
    k = torch.randn(1, 1, length, head_dim, generator=generator, dtype=torch.float64) * 2.0
    return q, k


def log_softmax_matrix(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.log_softmax(scale * q @ k.transpose(-1, -2), dim=-1)


def log_lln_matrix(q: Tensor, k: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    b = beta * k
    peak = b.amax(dim=-2, keepdim=True)
    a = alpha * q + peak
    kernel = (a - a.amax(dim=-1, keepdim=True)).exp() @ (b - peak).exp().transpose(-1, -2)
    return torch.log_softmax(kernel.log(), dim=-1)


def entropy(log_p: Tensor) -> float:
    return float(-(log_p.exp() * log_p).sum(-1).mean() / math.log(2))


def measured(head_dim: int, length: int, t: float, target: str, seeds: int, rows: int = 128) -> tuple[float, float]:
    """Mean over seeds of the measure (variance or entropy) of LLN attention, and of softmax attention."""
    measure = entropy if target == "entropy" else (lambda log_p: float(log_p.var()))
    found = []
    for seed in range(seeds):
        q, k = gaussian(head_dim, length, t, seed)
        alpha, beta = match_moments(q, k, target=target)
        some = q[:, :, :rows]
        found.append((measure(log_lln_matrix(some, k, alpha, beta)), measure(log_softmax_matrix(some, k))))
    lln, softmax = numpy.mean(found, axis=0)
    return float(lln), float(softmax)


QUICK_GRID = [(16, 256, 4.0), (32, 1024, 1.0), (64, 256, 0.25), (64, 1024, 4.0), (128, 1024, 1.0), (128, 256, 4.0)]
FULL_GRID = [(d, n, t) for d in (16, 32, 64, 128) for n in (256, 512, 1024, 4096) for t in (0.25, 0.5, 1.0, 2.0, 4.0)]
TOLERANCE = {"variance": 0.05, "entropy": 0.03}


@pytest.mark.parametrize("target", ["variance", "entropy"])
@pytest.mark.parametrize(("head_dim", "length", "t"), QUICK_GRID)
def test_concentration_is_softmaxs_on_average(head_dim: int, length: int, t: float, target: str) -> None:
    lln, softmax = measured(head_dim, length, t, target, seeds=32)
    assert abs(lln / softmax - 1) < TOLERANCE[target], (lln, softmax)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["variance", "entropy"])
@pytest.mark.parametrize(("head_dim", "length", "t"), FULL_GRID)
def test_concentration_is_softmaxs_over_the_whole_grid(head_dim: int, length: int, t: float, target: str) -> None:
    lln, softmax = measured(head_dim, length, t, target, seeds=48, rows=256)
    assert abs(lln / softmax - 1) < TOLERANCE[target], (lln, softmax)


@pytest.mark.parametrize("target", ["variance", "entropy"])
@pytest.mark.parametrize(("head_dim", "t"), [(12, 1.0), (24, 0.01), (48, 0.25), (80, 1.0), (192, 4.0)])
def test_head_sizes_between_the_tables_are_matched_too(head_dim: int, t: float, target: str) -> None:
    lln, softmax = measured(head_dim, 512, t, target, seeds=32)
    assert abs(lln / softmax - 1) < TOLERANCE[target], (lln, softmax)


@pytest.mark.parametrize(("head_dim", "t", "seed"), [(16, 1.0, 0), (64, 1.0, 1), (64, 0.25, 2), (128, 1.0, 3)])
def test_a_single_instance_has_softmaxs_entropy(head_dim: int, t: float, seed: int) -> None:
    q, k = gaussian(head_dim, 1024, t, seed)
    alpha, beta = match_moments(q, k, target="entropy")
    ratio = entropy(log_lln_matrix(q, k, alpha, beta)) / entropy(log_softmax_matrix(q, k))
    assert abs(ratio - 1) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("length", [1024, 4096])
@pytest.mark.parametrize("t", [0.25, 0.5, 1.0])
def test_every_single_instance_has_softmaxs_entropy(head_dim: int, length: int, t: float) -> None:
    for seed in range(8):
        q, k = gaussian(head_dim, length, t, seed)
        alpha, beta = match_moments(q, k, target="entropy")
        some = q[:, :, :512]
        ratio = entropy(log_lln_matrix(some, k, alpha, beta)) / entropy(log_softmax_matrix(some, k))
        assert abs(ratio - 1) < 0.03, (seed, ratio)


@pytest.mark.parametrize("target", ["variance", "entropy"])
@pytest.mark.parametrize(("length", "t"), [(300, 0.1), (300, 4.0), (2600, 1.0)])
def test_matching_the_instance_is_exact(length: int, t: float, target: str) -> None:
    q, k = gaussian(16, length, t, 5)
    alpha, beta = match_moments(q, k, target=target, method="instance")
    lln, softmax = log_lln_matrix(q, k, alpha, beta), log_softmax_matrix(q, k)
    if target == "entropy":
        assert abs(entropy(lln) / entropy(softmax) - 1) < 0.01
    else:
        assert abs(float(lln.var() / softmax.var()) - 1) < 0.01


def test_matching_the_instance_takes_inputs_that_are_not_gaussian() -> None:
    q, k = gaussian(16, 200, 1.0, 0)
    q, k = q + 0.4 * q.sign(), k * k.abs() + 1.5
    alpha, beta = match_moments(q, k, method="instance", target="entropy", center_keys=True, scale=0.1)
    found = entropy(log_lln_matrix(q, k - k.mean(2, keepdim=True), alpha, beta))
    assert abs(found / entropy(log_softmax_matrix(q, k, scale=0.1)) - 1) < 1e-5


@pytest.mark.parametrize(
    "case", PUBLISHED["cases"], ids=lambda c: f"D{c['d']}-q{c['sigma_q']}-k{c['sigma_k']}-{c['seed']}"
)
def test_the_papers_target_gives_the_published_values(case: dict[str, float]) -> None:
    random = numpy.random.default_rng(int(case["seed"]))
    shape = (int(case["N"]), int(case["d"]))
    q = torch.from_numpy(random.standard_normal(shape) * case["sigma_q"])[None, None]
    k = torch.from_numpy(random.standard_normal(shape) * case["sigma_k"])[None, None]
    alpha, beta = match_moments(q, k, target="paper")
    assert alpha.item() == pytest.approx(case["alpha_authors"], rel=1e-9)
    assert beta.item() == pytest.approx(case["beta_authors"], rel=1e-9)
    variance = log_lln_matrix(q, k, alpha, beta).var().item()
    assert variance == pytest.approx(case["var_log_lln_authors"], rel=1e-9)


@pytest.mark.parametrize("target", ["variance", "entropy"])
@pytest.mark.parametrize("head_dim", [8, 64, 256])
def test_the_narrow_limit_is_that_of_theory(head_dim: int, target: str) -> None:
    """log P of LLN then is linear in q and k with slope 1/d, so s = 2 d T: alpha sigma_q beta sigma_k = d T."""
    q, k = gaussian(head_dim, 2048, 1e-7, 0)
    alpha, beta = match_moments(q, k, target=target, method="table")
    t = float(q.var(correction=0) * k.var(correction=0))
    assert float(alpha * beta * t**0.5 / (head_dim * t)) == pytest.approx(1.0, rel=0.03)


def test_alpha_and_beta_share_the_spread_equally() -> None:
    q, k = gaussian(32, 128, 1.0, 0)
    alpha, beta = match_moments(q, k, method="table", scale=0.3)
    torch.testing.assert_close(alpha.square() * q.var(correction=0), beta.square() * k.var(correction=0))


@pytest.mark.parametrize("target", ["variance", "entropy", "paper"])
def test_scale_is_as_if_queries_were_scaled(target: str) -> None:
    q, k = gaussian(16, 64, 1.0, 0)
    alpha, beta = match_moments(q, k, target=target, scale=0.5)
    scaled_alpha, scaled_beta = match_moments(q * 0.5 * 16**0.5, k, target=target)
    torch.testing.assert_close(beta, scaled_beta)
    torch.testing.assert_close(alpha, scaled_alpha * 0.5 * 16**0.5)


@pytest.mark.parametrize("target", ["variance", "entropy"])
@pytest.mark.parametrize("method", ["table", "instance"])
def test_padding_and_batch_mates_have_no_influence(target: str, method: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 4, 20, 8, generator=generator)
    k = torch.randn(3, 2, 20, 8, generator=generator)
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[0, :7] = False
    mask[2, 3:9] = False
    q[~mask[:, None].expand(3, 4, 20)] = math.nan
    k[~mask[:, None].expand(3, 2, 20)] = math.inf
    q[1] *= 30
    alpha, beta = match_moments(q, k, target=target, method=method, key_mask=mask)
    for i in range(3):
        alone = match_moments(q[i : i + 1, :, mask[i]], k[i : i + 1, :, mask[i]], target=target, method=method)
        torch.testing.assert_close(alpha[i : i + 1], alone[0], rtol=1e-6, atol=0)
        torch.testing.assert_close(beta[i : i + 1], alone[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", ["sample", "table", "instance"])
def test_packed_sequences_are_matched_one_by_one(method: str) -> None:
    q, k = torch.randn(1, 4, 30, 8) * 2, torch.randn(1, 2, 30, 8)
    alpha, beta = match_moments(q, k, method=method, cu_seqlens=torch.tensor([0, 11, 30]))
    assert alpha.shape == (2, 4, 1, 1) and beta.shape == (2, 2, 1, 1)
    for i, piece in enumerate((slice(0, 11), slice(11, 30))):
        alone = match_moments(q[:, :, piece], k[:, :, piece], method=method)
        torch.testing.assert_close(alpha[i : i + 1], alone[0])
        torch.testing.assert_close(beta[i : i + 1], alone[1])


@pytest.mark.parametrize(
    ("target", "method", "per"),
    [(target, "table", per) for target in ("variance", "entropy", "paper") for per in ("head", "tensor")]
    + [("entropy", "sample", "head"), ("variance", "instance", "head"), ("entropy", "instance", "head")],
)
def test_inputs_without_spread_give_finite_values(target: str, method: str, per: str) -> None:
    some = torch.randn(2, 1, 6, 8)
    zeros, constant = torch.zeros_like(some), torch.full_like(some, 3.0)
    nothing = torch.zeros(2, 6, dtype=torch.bool)
    cases = [(zeros, some, None), (some, zeros, None), (zeros, zeros, None), (constant, constant, None)]
    cases += [
        (some[:, :, :1], some[:, :, :1], None),
        (some[..., :1, :1], some[..., :1, :1], None),
        (some, some, nothing),
    ]
    cases += [(1e18 * some, 1e18 * some, None), (1e-18 * some, 1e-18 * some, None), (some, some[:, :, :1], None)]
    for q, k, mask in cases:
        for value in match_moments(q, k, target=target, method=method, per=per, key_mask=mask):
            assert torch.isfinite(value).all()


@pytest.mark.parametrize("target", ["variance", "entropy"])
def test_above_the_calibrated_range_the_spread_is_that_of_its_edge(target: str) -> None:
    _, highest = calibrated_range(target, 64)
    q, k = gaussian(64, 256, 1.0, 0)
    q, k = q / q.std(correction=0), k / k.std(correction=0)
    edge, above = (match_moments(q * (t * highest) ** 0.5, k, target=target, method="table") for t in (1.0, 100.0))
    torch.testing.assert_close(edge[0], above[0] * 10)
    torch.testing.assert_close(edge[1], above[1])


def test_whole_tensor_statistics_give_one_value_for_all() -> None:
    q, k = torch.randn(3, 4, 20, 8), torch.randn(3, 2, 20, 8)
    q[0] *= 5
    alpha, beta = match_moments(q, k, per="tensor")
    assert alpha.shape == (3, 4, 1, 1) and beta.shape == (3, 2, 1, 1)
    assert alpha.unique().numel() == beta.unique().numel() == 1
    assert match_moments(q, k, per="head")[0].unique().numel() > 1
    assert match_moments(q, k, target="paper")[0].unique().numel() == 1


def test_centred_keys_do_not_see_a_shift_of_all_keys() -> None:
    q, k = gaussian(16, 64, 1.0, 0)
    shift = 5 * torch.arange(16.0, dtype=torch.float64)
    for one, other in zip(
        match_moments(q, k, center_keys=True), match_moments(q, k + shift, center_keys=True), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert match_moments(q, k, method="table")[1] > 2 * match_moments(q, k + shift, method="table")[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_come_in_float32_at_least(dtype: torch.dtype) -> None:
    x = torch.randn(1, 1, 9, 8, dtype=dtype)
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(value.dtype == wanted for value in match_moments(x, x))


@pytest.mark.parametrize("target", ["variance", "entropy", "paper"])
def test_gradients_flow_through_the_statistics_if_asked(target: str) -> None:
    q, k = (0.8 * torch.randn(1, 2, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert not any(value.requires_grad for value in match_moments(q, k, target=target, method="table"))
    attached = match_moments(q, k, target=target, method="table", detach=False)
    for one, other in zip(attached, match_moments(q, k, target=target, method="table"), strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradcheck(
        lambda q, k: match_moments(q, k, target=target, method="table", detach=False), (q, k)
    )


def test_gradients_of_inputs_without_spread_are_finite() -> None:
    q = torch.zeros(1, 1, 4, 8, requires_grad=True)
    sum(value.sum() for value in match_moments(q, q, detach=False)).backward()
    assert q.grad is not None and torch.isfinite(q.grad).all()


@pytest.mark.parametrize("target", ["entropy", "paper"])
def test_it_compiles_without_a_graph_break_for_any_length(target: str) -> None:
    compiled = torch.compile(
        lambda q, k, mask: match_moments(q, k, target=target, key_mask=mask),
        fullgraph=True, dynamic=True, backend="aot_eager",
    )  # fmt: skip
    for length in (5, 9):
        q, k = torch.randn(2, 4, length, 8, requires_grad=True), torch.randn(2, 2, length, 8)
        mask = torch.arange(length)[None] < torch.tensor([[3], [length]])
        expected = match_moments(q, k, target=target, key_mask=mask)
        for one, other in zip(compiled(q, k, mask), expected, strict=True):
            torch.testing.assert_close(one, other)


def test_the_table_is_an_operator_that_keeps_torchs_contracts() -> None:
    t, keys = torch.rand(2, 3, dtype=torch.float64), torch.full((2, 3), 100.0, dtype=torch.float64)
    torch.library.opcheck(torch.ops.lln.matched_ratio, (t, keys, "entropy", 24))


def test_vmap_over_matching_is_a_loop() -> None:
    q, k = torch.randn(3, 2, 2, 9, 8), torch.randn(3, 2, 1, 9, 8)
    mapped = torch.vmap(match_moments)(q, k)
    for i in range(3):
        for one, other in zip(mapped, match_moments(q[i], k[i]), strict=True):
            torch.testing.assert_close(one[i], other)


def test_the_table_covers_what_is_promised() -> None:
    table = load()
    assert table["head_dims"][0] <= 8 and table["head_dims"][-1] >= 256
    grid = table["log2_length"]
    assert 2.0 ** (grid["first"] + grid["step"] * (grid["points"] - 1)) >= 65536
    assert table["seeds"][1] - table["seeds"][0] + 1 >= 64
    for target in ("variance", "entropy"):
        for head_dim in (8, 64, 256):
            low, high = calibrated_range(target, head_dim)
            assert low <= 1e-3 and high >= 16


Q = torch.randn(2, 4, 6, 8)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Q, Q), {"target": "mean"}, "unknown target 'mean': choose one of 'entropy', 'variance', 'paper'"),
        ((Q, Q), {"per": "batch"}, "unknown per 'batch': choose one of 'head', 'tensor'"),
        ((Q, Q), {"method": "exact"}, "unknown method 'exact': choose one of 'sample', 'table', 'instance'"),
        ((Q, Q), {"method": "instance", "target": "paper"}, "has nothing to find"),
        ((Q, Q), {"method": "sample", "target": "variance"}, "matches the entropy, not target 'variance'"),
        ((Q, Q), {"method": "sample", "per": "tensor"}, "needs per='head'"),
        ((Q, Q), {"method": "instance", "per": "tensor"}, "needs per='head'"),
        ((Q[0], Q), {}, r"must be \(batch, heads, length, head size\)"),
        ((Q, Q[:1]), {}, "must agree in batch and head size"),
        ((Q, Q[:, :3]), {}, "query heads must be a multiple of key heads, got 4 and 3"),
        ((Q, Q), {"key_mask": torch.ones(2, 5, dtype=torch.bool)}, r"shape \(batch, keys\) = \(2, 6\), got \(2, 5\)"),
        ((Q, Q), {"key_mask": torch.ones(2, 6)}, "got torch.float32"),
        (
            (Q, Q),
            {"cu_seqlens": torch.tensor([0, 6])},
            r"packed sequences have shape \(1, heads, total length, head size\)",
        ),
        (
            (Q[:1], Q[:1]),
            {"cu_seqlens": torch.tensor([0, 6]), "key_mask": torch.ones(1, 6, dtype=torch.bool)},
            "not both",
        ),
    ],
)
def test_mistakes_are_named(arguments: tuple[Tensor, Tensor], options: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        match_moments(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_first_call_inside_a_transform_leaves_nothing_of_it_behind(dtype: torch.dtype) -> None:
    """Tensors that are made inside torch.func, and kept, could not be read after it."""
    q, k = torch.randn(2, 1, 2, 20, 8, dtype=dtype)
    table.kept.clear()
    torch.func.grad(lambda x: match_moments(x, k, detach=False)[0].sum())(q)
    torch.func.jvp(lambda x: lln_attention(x, k, k), (q,), (q,))
    for method in ("table", "sample"):
        assert all(bool(x.isfinite().all()) for x in match_moments(q, k, method=method))


@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_padding_has_no_influence_where_queries_are_other_tokens(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, n, 8, generator=generator) for n in (30, 200))
    mask = torch.arange(200)[None] >= 5
    found = []
    for fill in (0.0, torch.nan, 50.0):
        keys = torch.where(mask[:, None, :, None], k, fill)
        found.append(match(MatchOperands(q, keys, mask, None, "sample", "entropy", "head", 0.35, False), backend))
    assert all(torch.equal(x, y) for one in found[1:] for x, y in zip(found[0], one, strict=True))


@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_attention_to_one_key_alone_does_not_make_alpha_boundless(backend: str) -> None:
    """q = k: softmax looks at its own key alone. Features of their own follow it only as alpha grows, and gradients with it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 300, 256, generator=generator) * torch.tensor([1.0, 0.3, 4.0]).view(1, 3, 1, 1)
    scale = 256**-0.5
    alpha, beta, (softmax, lln) = _on_a_sample(x, x, scale, backend)
    for found in (alpha, beta):
        steepest = scale * 256 * x.std(dim=(2, 3))
        assert bool((found <= 1.05 * steepest).all())  # deviations are of a sample
        torch.testing.assert_close(found[0, [0, 2]].float(), steepest[0, [0, 2]], rtol=0.05, atol=0)
    # what came of it is told, and is that of the bounded alpha
    q = x.double()
    kernel = (((alpha[..., None, None] * q).exp()) @ ((beta[..., None, None] * q).exp()).mT)[0, 0]
    p = kernel / kernel.sum(dim=-1, keepdim=True)
    entropy = float(torch.special.entr(p).sum(dim=-1).mean())
    assert float(softmax[0, 0]) < 0.01 < 0.3 < entropy
    assert float(lln[0, 0]) == pytest.approx(entropy, rel=0.25)


@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_narrow_inputs_are_matched_up_to_the_bound(backend: str) -> None:
    """Gaussian inputs come to the bound from below as they get narrow: it must not bind before."""
    generator = torch.Generator().manual_seed(0)
    q, k = 0.02 * torch.randn(2, 1, 4, 400, 64, generator=generator)
    alpha, beta, _ = _on_a_sample(q, k, 0.125, backend)
    for found, x in ((alpha, k), (beta, q)):
        torch.testing.assert_close(found.float(), 8 * x.std(dim=(2, 3)), rtol=0.1, atol=0)


def _on_a_sample(q: Tensor, k: Tensor, scale: float, backend: str) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """alpha, beta (S, H), and the entropies of softmax and of LLN, in nats."""
    found = match(MatchOperands(q, k, None, None, "sample", "entropy", "head", scale, False), backend)
    softmax, lln = found.entropies.unbind(-1)
    return found.alpha, found.beta, (softmax, lln)
