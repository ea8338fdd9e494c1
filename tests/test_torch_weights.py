"""Layers take the weights of torch.nn.MultiheadAttention, as a module and as a state dict."""

from typing import Any

import pytest
import torch
from torch import nn

import lln

LAYERS = [lln.LLNAttention, lln.LLNDiagAttention, lln.NearFarAttention]


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 12, "vdim": 20}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_projections_are_torchs(layer: Any, options: dict[str, Any]) -> None:
    mha = nn.MultiheadAttention(32, 4, dropout=0.1, **options).eval()
    own = layer.from_torch(mha)
    x = torch.randn(5, 32)
    joined = mha.in_proj_weight if mha._qkv_same_embed_dim else None
    weights = mha.q_proj_weight if joined is None else joined[:32]
    bias = None if mha.in_proj_bias is None else mha.in_proj_bias[:32]
    assert torch.equal(own.q_proj(x), nn.functional.linear(x, weights, bias))
    assert torch.equal(own.out_proj(x), mha.out_proj(x))
    assert own.k_proj.in_features == options.get("kdim", 32) and own.dropout == 0.1 and not own.training
    assert own.batch_first == mha.batch_first


def test_inside_one_block_the_layer_gives_what_torch_gives() -> None:
    """Near-far attention is softmax there: the whole layer has to agree, mask included."""
    mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 40, 32)
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[1, 30:] = True
    own = lln.NearFarAttention.from_torch(mha)
    wanted = mha(x, x, x, key_padding_mask=padding)[0]
    torch.testing.assert_close(own(x, key_padding_mask=padding)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=str)
def test_an_encoder_loads_torchs_state_dict(options: dict[str, Any]) -> None:
    """Running statistics and mixing, which torch does not have, stay as they are."""
    torchs = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    own = lln.LLNEncoderLayer(32, 4, 64, attention_options={"learn_mix": True, "mix": 0.3, **options})
    own.load_state_dict(torchs.state_dict())
    assert torch.equal(own.self_attn.v_proj.weight, torchs.self_attn.in_proj_weight[64:])
    assert torch.equal(own.linear1.weight, torchs.linear1.weight)
    assert float(own.self_attn.mix.detach()[0]) == pytest.approx(0.3)


def test_a_state_dict_of_its_own_still_loads_and_is_checked() -> None:
    one, other = lln.LLNDiagAttention(32, 4, causal=True), lln.LLNDiagAttention(32, 4, causal=True)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.q_proj.weight, other.q_proj.weight)
    lacking = {name: x for name, x in one.state_dict().items() if "q_proj" not in name}
    with pytest.raises(RuntimeError, match="q_proj"):
        other.load_state_dict(lacking)
    torchs = nn.MultiheadAttention(32, 4).state_dict()
    del torchs["out_proj.weight"]
    with pytest.raises(RuntimeError, match=r"out_proj\.weight"):
        other.load_state_dict(torchs)


def test_keys_of_its_own_and_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match=r"from_torch takes a torch\.nn\.MultiheadAttention, got Linear"):
        lln.LLNAttention.from_torch(nn.Linear(8, 8))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="adds keys of its own"):
        lln.LLNAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True))
