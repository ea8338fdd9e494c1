"""One suite over every member: padding, causality, equivariance, independence, lengths, dtypes, gradients, saving."""

import copy

import pytest
import torch
from torch import Tensor, nn

from lln.zoo.multihead import MultiHead
from tests.zoo.variants import EMBED, HEADS, LONGEST, MECHANISMS, VARIANTS, Variant, heads_of, masks, sample

EVERY = pytest.mark.parametrize("variant", VARIANTS, ids=str)
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def run(module: nn.Module, variant: Variant, x: Tensor, mask: Tensor | None = None) -> Tensor:
    out: Tensor = module(x, mask, is_causal=variant.only_causal)
    return out


@EVERY
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_count(variant: Variant, side: str) -> None:
    module, x = variant.build(), sample()
    mask = masks(*x.shape[:2])[side]
    assert mask is not None
    out = run(module, variant, x, mask)
    for b in range(len(x)):
        alone = run(module, variant, x[b : b + 1, mask[b]])
        torch.testing.assert_close(out[b : b + 1, mask[b]], alone, **EXACT)


@EVERY
@pytest.mark.parametrize("kind", ["right", "left", "holes"])
def test_nan_in_padding_does_not_leak(variant: Variant, kind: str) -> None:
    module, x = variant.build(), sample()
    mask = masks(*x.shape[:2])[kind]
    assert mask is not None
    poisoned = x.masked_fill(~mask[..., None], torch.nan).requires_grad_()
    out = run(module, variant, poisoned, mask)
    clean = run(module, variant, x.masked_fill(~mask[..., None], 7.0), mask)
    torch.testing.assert_close(out[mask], clean[mask], **EXACT)
    out[mask].square().sum().backward()
    assert poisoned.grad is not None and poisoned.grad.isfinite().all()
    assert not poisoned.grad[~mask].any()
    for name, parameter in module.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("variant", MECHANISMS, ids=str)
def test_nan_in_padded_heads_does_not_leak(variant: Variant) -> None:
    """The mechanism by itself, as a function of q, k and v."""
    module, x = variant.build(), sample()
    assert isinstance(module, MultiHead)
    mask = masks(*x.shape[:2])["holes"]
    assert mask is not None
    x = x * mask[..., None]
    inputs = {"inputs": x} if module.mechanism.needs_inputs else {}
    heads = heads_of(module, x)
    clean = module.mechanism(*heads, mask, mask, variant.only_causal, **inputs)
    dirty = [t.detach().masked_fill(~mask[:, None, :, None], torch.nan).requires_grad_() for t in heads]
    out = module.mechanism(*dirty, mask, mask, variant.only_causal, **inputs)
    kept = mask[:, None, :, None].expand_as(out)
    torch.testing.assert_close(out[kept], clean[kept], **EXACT)
    out[kept].sum().backward()
    assert all(t.grad is None or t.grad.isfinite().all() for t in dirty)


@pytest.mark.parametrize("variant", MECHANISMS, ids=str)
def test_rows_without_keys_give_zeros(variant: Variant) -> None:
    module, x = variant.build(), sample()
    assert isinstance(module, MultiHead)
    nothing = torch.zeros(x.shape[:2], dtype=torch.bool)
    q, k, v = (t.detach().requires_grad_() for t in heads_of(module, x))
    inputs = {"inputs": x} if module.mechanism.needs_inputs else {}
    out = module.mechanism(q, k, v, nothing, None, variant.only_causal, **inputs)
    assert not out.any()
    out.sum().backward()
    assert all(t.grad is None or not t.grad.any() for t in (q, k, v))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.card.causal], ids=str)
def test_the_future_changes_no_earlier_output(variant: Variant) -> None:
    module, x = variant.build(max_length=300), sample(2, 290)
    before = module(x, is_causal=True)
    for first in (1, 5, 128, 289):
        changed = x.clone()
        changed[:, first:] = 3 * torch.randn_like(x[:, first:])
        after = module(changed, is_causal=True)
        if variant.name == "tnn":  # an FFT mixes all positions, and cancels the later ones up to rounding
            torch.testing.assert_close(after[:, :first], before[:, :first], rtol=0, atol=1e-12)
        else:
            assert torch.equal(after[:, :first], before[:, :first])
        assert not torch.equal(after[:, first:], before[:, first:])


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.card.causal], ids=str)
def test_causality_is_refused_where_there_is_none(variant: Variant) -> None:
    with pytest.raises(ValueError, match="no causal form"):
        variant.build()(sample(), is_causal=True)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.card.bidirectional], ids=str)
def test_looking_ahead_is_refused_where_there_is_only_a_causal_form(variant: Variant) -> None:
    with pytest.raises(ValueError, match="only a causal form"):
        variant.build()(sample())


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.card.cross], ids=str)
def test_context_is_refused_without_cross_attention(variant: Variant) -> None:
    with pytest.raises(ValueError, match="no cross-attention"):
        variant.build()(sample(), context=sample())


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.card.equivariant and not v.only_causal], ids=str)
def test_permuting_the_sequence_permutes_the_output(variant: Variant) -> None:
    module, x = variant.build(), sample()
    order = torch.randperm(x.shape[1])
    torch.testing.assert_close(run(module, variant, x[:, order]), run(module, variant, x)[:, order], **EXACT)


@EVERY
def test_samples_do_not_influence_each_other(variant: Variant) -> None:
    module, x = variant.build(), sample()
    x[1] *= 30
    together = run(module, variant, x)
    for b in range(len(x)):
        torch.testing.assert_close(together[b : b + 1], run(module, variant, x[b : b + 1]), **EXACT)


@EVERY
@pytest.mark.parametrize("length", [1, 2, 63, 257])
def test_any_length_works(variant: Variant, length: int) -> None:
    module, x = variant.build(max_length=300), sample(2, length).requires_grad_()
    out = run(module, variant, x)
    assert out.shape == x.shape and out.isfinite().all()
    out.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@EVERY
def test_longer_than_built_for_is_refused(variant: Variant) -> None:
    with pytest.raises(ValueError, match=str(LONGEST)):
        run(variant.build(), variant, sample(1, LONGEST + 1))


@EVERY
def test_gradients_are_right(variant: Variant) -> None:
    if variant.name in (
        "lln",
        "lln_diag",
        "near_far",
    ):  # matched alpha and beta are constants for autograd, not for differences
        variant = Variant(variant.name, {**variant.options, "subtract_mean_key": False, "alpha": 1.1, "beta": 0.9})
    module, x = variant.build(), sample(2, 9).requires_grad_()
    mask = masks(2, 9)["right"]
    for causal in variant.causalities:
        assert torch.autograd.gradcheck(lambda x, c=causal: module(x, mask, c), x, fast_mode=True)


@EVERY
def test_every_weight_gets_a_finite_gradient(variant: Variant) -> None:
    module, x = variant.build(), sample()
    run(module, variant, x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtype_is_kept_and_close_to_double(variant: Variant, dtype: torch.dtype) -> None:
    module, x = variant.build(), sample()
    if variant.name == "reformer" and dtype != torch.float32:
        pytest.skip("rounding moves tokens to other buckets")
    lower = copy.deepcopy(module).to(dtype)
    out = run(lower, variant, x.to(dtype))
    assert out.dtype == dtype
    true = run(lower.double(), variant, x.to(dtype).double())
    assert (out.double() - true).norm() <= 20 * torch.finfo(dtype).eps * true.norm()


@EVERY
@pytest.mark.parametrize("sigma", [1e-3, 30.0])
def test_small_and_large_inputs_stay_finite(variant: Variant, sigma: float) -> None:
    module, x = variant.build().float(), (sigma * sample(2, 29)).float().requires_grad_()
    for causal in variant.causalities:
        out = module(x, is_causal=causal)
        assert out.isfinite().all()
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.isfinite().all()


@EVERY
def test_saving_and_loading_keeps_the_output(variant: Variant) -> None:
    x = sample()
    torch.manual_seed(1)
    saved = variant.build()
    torch.manual_seed(2)
    other = variant.build()
    assert not torch.equal(run(saved, variant, x), run(other, variant, x))
    other.load_state_dict(saved.state_dict())
    assert torch.equal(run(saved, variant, x), run(other, variant, x))


@EVERY
def test_a_seed_decides_everything(variant: Variant) -> None:
    x = sample()
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        outputs.append(run(variant.build(), variant, x))
    assert torch.equal(*outputs)


@EVERY
def test_deterministic_means_no_randomness_but_the_weights(variant: Variant) -> None:
    """Members that draw features say so, keep them as buffers and redraw them on request."""
    module, x = variant.build(), sample()
    if variant.card.deterministic:
        assert not list(module.buffers())
        return
    assert isinstance(module, MultiHead)
    before = run(module, variant, x)
    assert torch.equal(before, run(module, variant, x))
    module.mechanism.redraw(seed=5)
    first = run(module, variant, x)
    module.mechanism.redraw(seed=6)
    second = run(module, variant, x)
    module.mechanism.redraw(seed=5)
    assert torch.equal(first, run(module, variant, x))
    assert not torch.equal(first, second)


@EVERY
def test_autocast_keeps_the_result_finite_and_close(variant: Variant) -> None:
    if variant.name == "reformer":
        pytest.skip("rounding moves tokens to other buckets")
    module, x = variant.build().float(), sample().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run(module, variant, x)
    true = run(module, variant, x)
    assert (out.float() - true).norm() <= 0.1 * true.norm()


def test_shapes_of_the_suite_are_what_it_says() -> None:
    assert sample().shape[2] == EMBED and EMBED % HEADS == 0
