"""Every member computes its equation: against a literal oracle, and its dense matrix against its output."""

import pytest
import torch

import lln.zoo
from lln.zoo.multihead import MultiHead
from tests.zoo.oracles import LAYER_ORACLES, ORACLES
from tests.zoo.oracles_2024 import ORACLES_2024
from tests.zoo.variants import MECHANISMS, VARIANTS, Variant, heads_of, masks, sample

MECHANISM_ORACLES = ORACLES | ORACLES_2024


def test_every_member_has_an_oracle() -> None:
    assert sorted([*MECHANISM_ORACLES, *LAYER_ORACLES]) == lln.zoo.names()


@pytest.mark.parametrize("mask", ["none", "right", "left", "holes", "empty"])
@pytest.mark.parametrize("variant", MECHANISMS, ids=str)
def test_output_is_the_equation(variant: Variant, mask: str) -> None:
    module, x = variant.build(), sample(2, 13)
    counts = masks(*x.shape[:2])[mask]
    assert isinstance(module, MultiHead)
    kept = torch.ones(x.shape[:2], dtype=torch.bool) if counts is None else counts
    x = x * kept[..., None]
    q, k, v = heads_of(module, x)
    inputs = {"inputs": x} if module.mechanism.needs_inputs else {}
    for causal in variant.causalities:
        out = module.mechanism(q, k, v, counts, counts, causal, **inputs)
        for b in range(len(x)):
            true = MECHANISM_ORACLES[variant.name](module.mechanism, q[b], k[b], v[b], kept[b], causal, x[b])
            rows = kept[b] | ~kept[b].any()
            torch.testing.assert_close(out[b][:, rows], true[:, rows], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mask", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.is_layer], ids=str)
def test_layer_is_the_equation(variant: Variant, mask: str) -> None:
    module, x = variant.build(), sample(2, 9)
    counts = masks(*x.shape[:2])[mask]
    kept = torch.ones(x.shape[:2], dtype=torch.bool) if counts is None else counts
    for causal in variant.causalities:
        out = module(x, counts, causal)
        for b in range(len(x)):
            true = LAYER_ORACLES[variant.name](module, x[b] * kept[b][:, None], kept[b], causal)
            torch.testing.assert_close(out[b][kept[b]], true[kept[b]], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mask", ["none", "right", "left", "holes", "empty"])
@pytest.mark.parametrize("variant", [v for v in MECHANISMS if v.card.dense and not v.only_causal], ids=str)
def test_dense_matrix_times_v_is_the_output(variant: Variant, mask: str) -> None:
    module, x = variant.build(), sample(2, 13)
    counts = masks(*x.shape[:2])[mask]
    q, k, v = heads_of(module, x)
    assert isinstance(module, MultiHead)
    for causal in variant.causalities:
        out = module.mechanism(q, k, v, counts, counts, causal)
        matrix = module.mechanism.dense(q, k, counts, counts, causal)
        values = v if counts is None else v * counts[:, None, :, None]
        torch.testing.assert_close(matrix @ values, out, rtol=1e-8, atol=1e-10)
        assert counts is None or not matrix.masked_select(~counts[:, None, None, :].expand_as(matrix)).any()


@pytest.mark.parametrize("variant", [v for v in MECHANISMS if v.cross], ids=str)
def test_cross_attention_reads_the_context(variant: Variant) -> None:
    module, x, context = variant.build(), sample(2, 7), sample(2, 12)
    counts = masks(2, 12)["right"]
    assert isinstance(module, MultiHead)
    out = module(x, counts, context=context)
    assert counts is not None
    q, k, v = module.heads(x, context)
    mixed = module.mechanism.dense(q, k, counts) @ (v * counts[:, None, :, None])
    torch.testing.assert_close(out, module.project_out(mixed.transpose(1, 2).flatten(2)), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.is_layer], ids=str)
def test_dense_matrix_of_a_layer_is_causal_and_masked(variant: Variant) -> None:
    module, x = variant.build(), sample(2, 9)
    counts = masks(2, 9)["right"]
    matrix = module.dense(x, counts, True)
    assert matrix.shape[0] == 2 and matrix.shape[2:] == (9, 9)
    assert not matrix.triu(1).any()
    assert counts is not None and not matrix.masked_select(~counts[:, None, None, :].expand_as(matrix)).any()
