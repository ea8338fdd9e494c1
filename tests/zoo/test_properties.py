"""Drawn lengths, masks and scales: what stands in padding never matters, for any member."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zoo.variants import EMBED, LONGEST, VARIANTS, Variant


@st.composite
def masked_inputs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, LONGEST))
    mask = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=batch, max_size=batch))
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([1e-2, 1.0, 10.0]))
    return scale * torch.randn(batch, length, EMBED, generator=generator, dtype=torch.float64), mask


@settings(max_examples=8)
@given(masked_inputs())
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_stands_in_padding_never_matters(variant: Variant, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, mask = inputs
    torch.manual_seed(0)
    module = variant.build()
    first = module(x.masked_fill(~mask[..., None], torch.inf), mask, variant.only_causal)
    second = module(x.masked_fill(~mask[..., None], -3.0), mask, variant.only_causal)
    assert first.isfinite().all()
    assert torch.equal(first[mask], second[mask])


@settings(max_examples=8)
@given(masked_inputs(), st.integers(1, 5))
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_more_padding_on_the_right_changes_nothing(
    variant: Variant, inputs: tuple[torch.Tensor, torch.Tensor], more: int
) -> None:
    x, mask = inputs
    torch.manual_seed(0)
    module = variant.build(max_length=LONGEST + 8)
    longer = torch.nn.functional.pad(x, (0, 0, 0, more), value=torch.nan)
    out = module(longer, torch.nn.functional.pad(mask, (0, more)), variant.only_causal)
    torch.testing.assert_close(
        out[:, : x.shape[1]][mask], module(x, mask, variant.only_causal)[mask], rtol=1e-8, atol=1e-9
    )
