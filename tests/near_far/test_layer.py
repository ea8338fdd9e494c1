"""The layer of near-far attention: the function between projections, with weights per head that start as given and learn."""

import pytest
import torch

from lln import LLNEncoderLayer, NearFarAttention, near_far_attention
from lln.near_far import NEUTRAL


def test_the_layer_is_projections_around_the_function() -> None:
    given = torch.randn(4, 4)
    layer = NearFarAttention(32, 4, block_size=8, neighbours=1, first_tokens=2, weights=given)
    x = torch.randn(2, 50, 32)
    q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = near_far_attention(q, k, v, weights=given, block_size=8, neighbours=1, first_tokens=2)
    torch.testing.assert_close(layer(x)[0], layer.out_proj(out.transpose(1, 2).flatten(2)))


def test_weights_start_neutral_and_learn() -> None:
    layer = NearFarAttention(32, 4, block_size=8)
    torch.testing.assert_close(layer.weights.detach(), torch.tensor(NEUTRAL).expand(4, 4))
    layer(torch.randn(2, 50, 32))[0].square().sum().backward()
    assert layer.weights.grad is not None and (layer.weights.grad != 0).all()
    assert not NearFarAttention(32, 4, learn_weights=False).weights.requires_grad


def test_weights_are_saved_and_reset() -> None:
    layer = NearFarAttention(32, 4, weights=(1.0, 2.0, 3.0, 4.0))
    other = NearFarAttention(32, 4)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weights, layer.weights)
    other.reset_parameters()
    assert torch.equal(other.weights.detach(), torch.tensor(NEUTRAL).expand(4, 4))


def test_the_encoder_layer_hands_its_options_on() -> None:
    layer = LLNEncoderLayer(32, 4, 64, attention="lln_near_far", attention_options={"block_size": 8, "first_tokens": 2})
    assert isinstance(layer.self_attn, NearFarAttention)
    assert (layer.self_attn.block_size, layer.self_attn.first_tokens) == (8, 2)


def test_what_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(
        ValueError, match=r"weights are near, lln, mean, slope: \(4,\) for all heads or \(4, 4\), got \(3,\)"
    ):
        NearFarAttention(32, 4, weights=(1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="neighbours must be a whole number of at least 0"):
        NearFarAttention(32, 4, neighbours=-1)
    with pytest.raises(ValueError, match="as many queries as keys"):
        NearFarAttention(32, 4)(torch.randn(2, 5, 32), torch.randn(2, 9, 32))
