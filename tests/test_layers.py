"""Layers: what they compute, how close they are to torch's, and that they save, load, compile and train."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lln import LLNAttention, LLNDiagAttention, LLNEncoderLayer, MomentMatcher, NearFarAttention, lln_attention

layers = pytest.mark.parametrize("layer_class", [LLNAttention, LLNDiagAttention, NearFarAttention])


@layers
@pytest.mark.parametrize("causal", [False, True])
def test_weights_times_values_is_the_output(layer_class, causal: bool) -> None:
    layer = layer_class(32, 4, causal=causal).double().eval()
    x = torch.randn(2, 70, 32, dtype=torch.float64)
    mask = torch.rand(2, 70) < 0.8
    mask[:, ::64] = True  # the first of each block, so that every row has a key in its own
    out, weights = layer(x, key_padding_mask=~mask, need_weights=True)
    values = layer.v_proj(x).unflatten(-1, (4, -1)).transpose(1, 2)
    torch.testing.assert_close(out, layer.out_proj((weights @ values).transpose(1, 2).flatten(2)))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 70, dtype=torch.float64))


@layers
def test_batch_second_is_the_transpose(layer_class) -> None:
    layer = layer_class(32, 4).eval()
    x = torch.randn(2, 9, 32)
    first = layer(x)[0]
    layer.batch_first = False
    torch.testing.assert_close(layer(x.transpose(0, 1))[0].transpose(0, 1), first)


@layers
def test_a_causal_layer_goes_on_from_its_state(layer_class) -> None:
    layer = layer_class(32, 4, causal=True).eval()
    x = torch.randn(2, 90, 32)
    whole = layer(x)[0]
    first, state = layer(x[:, :40], return_state=True)
    second, state = layer(x[:, 40:41], state=state, return_state=True)
    third, _ = layer(x[:, 41:], state=state)
    torch.testing.assert_close(torch.cat([first, second, third], dim=1), whole, atol=2e-6, rtol=0)


def test_cross_attention_with_other_sizes_and_grouped_queries() -> None:
    layer = LLNAttention(32, 4, kdim=10, vdim=12, num_key_heads=2)
    out, _ = layer(torch.randn(2, 5, 32), torch.randn(2, 9, 10), torch.randn(2, 9, 12))
    assert out.shape == (2, 5, 32)


def test_the_layer_is_projections_around_the_function() -> None:
    layer = LLNAttention(32, 4)
    x = torch.randn(2, 20, 32)
    q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    torch.testing.assert_close(layer(x)[0], layer.out_proj(lln_attention(q, k, v).transpose(1, 2).flatten(2)))


@layers
def test_dropout_acts_in_training_only(layer_class) -> None:
    layer = layer_class(32, 4, dropout=0.5)
    x = torch.randn(2, 20, 32)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_the_mix_can_be_learned() -> None:
    layer = LLNDiagAttention(32, 4, mix=0.3, learn_mix=True)
    torch.testing.assert_close(layer.mix, torch.full((4,), 0.3))
    layer(torch.randn(2, 100, 32))[0].square().sum().backward()
    assert layer.mix_logit.grad is not None and (layer.mix_logit.grad != 0).all()
    assert LLNDiagAttention(32, 4).mix == 0.5


@layers
@pytest.mark.parametrize("matching", ["sample", "running", "learnable"])
def test_layers_save_and_load(layer_class, matching: str) -> None:
    torch.manual_seed(1)
    layer, other = layer_class(32, 4, matching=matching), layer_class(32, 4, matching=matching)
    x = torch.randn(2, 30, 32)
    layer(x)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(x)[0], other.eval()(x)[0])


def test_a_matcher_of_ones_own() -> None:
    matcher = MomentMatcher(4, 8, mode="fixed", alpha=1.0, beta=1.0)
    layer = LLNAttention(32, 4, matching=matcher)
    x = torch.randn(2, 20, 32)
    q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    expected = layer.out_proj(lln_attention(q, k, v, 1.0, 1.0).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)
    with pytest.raises(ValueError, match="matching_options go with a mode"):
        LLNAttention(32, 4, matching=matcher, matching_options={"target": "variance"})


def test_subtracting_the_mean_key_makes_the_layer_blind_to_it() -> None:
    layer = LLNAttention(32, 4, matching_options={"subtract_mean_key": True})
    x = torch.randn(2, 50, 32)
    before = layer(x)[0]
    with torch.no_grad():
        layer.k_proj.bias += torch.randn(32)
    torch.testing.assert_close(layer(x)[0], before, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["lln", "lln_diag", "lln_near_far"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_encoder_layer_is_a_drop_in_inside_torchs_encoder(attention: str, norm_first: bool) -> None:
    layer = LLNEncoderLayer(32, 4, 64, norm_first=norm_first, attention=attention)
    encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 30, 32)
    padding = torch.arange(30) >= torch.tensor([[20], [30]])  # torch's convention: True is padding
    out = encoder(x, src_key_padding_mask=padding)
    alone = encoder(x[:1, :20])
    torch.testing.assert_close(out[:1, :20], alone, atol=1e-5, rtol=0)


def test_the_encoder_layer_has_torchs_parameters() -> None:
    """Same count, and with identical projections and a single block the same function as torch's own layer."""
    ours = LLNEncoderLayer(32, 4, 64, dropout=0.0, attention_options={"mix": 0.0}).eval()
    torchs = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in torchs.parameters())
    attention = torchs.self_attn
    with torch.no_grad():
        projections = (ours.self_attn.q_proj, ours.self_attn.k_proj, ours.self_attn.v_proj)
        for part, weight, bias in zip(
            projections, attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        ours.self_attn.out_proj.load_state_dict(attention.out_proj.state_dict())
        for name in ("linear1", "linear2", "norm1", "norm2"):
            getattr(ours, name).load_state_dict(getattr(torchs, name).state_dict())
    x = torch.randn(2, 50, 32)  # one block of 64, softmax branch only: exactly softmax attention
    torch.testing.assert_close(ours(x), torchs(x), atol=1e-5, rtol=1e-5)


@layers
@pytest.mark.parametrize("causal", [False, True])
def test_layers_compile_without_graph_breaks(layer_class, causal: bool) -> None:
    torch.compiler.reset()
    layer = layer_class(32, 4, causal=causal).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 70, 32)
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])


def test_an_encoder_learns_to_copy_the_token_before() -> None:
    """A causal layer on a task that needs attention: predict the token seen at the previous position."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 8, (16, 33))
    embed, head = nn.Embedding(8, 32), nn.Linear(32, 8)
    place = nn.Embedding(33, 32)
    layer = LLNEncoderLayer(32, 2, 64, dropout=0.0, attention_options={"causal": True, "block_size": 8})
    parameters = [p for m in (embed, head, place, layer) for p in m.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(150):
        hidden = layer(embed(tokens) + place(torch.arange(33)), is_causal=True)
        loss = nn.functional.cross_entropy(head(hidden[:, 1:]).flatten(0, 1), tokens[:, :-1].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.5 < 2.0  # chance is ln 8 = 2.08


@layers
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_input_without_a_batch_is_a_batch_of_one(layer_class, batch_first: bool, causal: bool) -> None:
    layer = layer_class(32, 4, batch_first=batch_first, causal=causal).eval()
    x, counts = torch.randn(20, 32), torch.arange(20) < 15
    batch = 0 if batch_first else 1
    out, weights = layer(x, key_padding_mask=~counts, need_weights=True)
    expected, of_batch = layer(x.unsqueeze(batch), key_padding_mask=~counts[None], need_weights=True)
    assert torch.equal(out, expected.squeeze(batch)) and torch.equal(weights, of_batch[0])
    assert out.shape == (20, 32) and weights.shape == (4, 20, 20)


def test_cross_attention_packed_sequences_and_states_go_without_a_batch() -> None:
    cross = LLNAttention(32, 4, kdim=10, vdim=12)
    assert cross(torch.randn(5, 32), torch.randn(9, 10), torch.randn(9, 12))[0].shape == (5, 32)
    causal, x = LLNAttention(32, 4, causal=True).eval(), torch.randn(20, 32)
    packed, _ = causal(x, cu_seqlens=torch.tensor([0, 8, 20]))
    torch.testing.assert_close(packed[8:], causal(x[8:])[0])
    first, state = causal(x[:8], return_state=True)
    rest, _ = causal(x[8:], state=state)
    torch.testing.assert_close(torch.cat([first, rest]), causal(x)[0])


@pytest.mark.parametrize(
    "shapes",
    [((20,),) * 3, ((2, 20, 31),) * 3, ((2, 3, 20, 32),) * 3, ((20, 32), (2, 20, 32), (2, 20, 32))],
    ids=str,
)
def test_shapes_that_do_not_fit_are_named(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \(batch, length, 32\), or \(length, 32\) without a batch"):
        LLNAttention(32, 4)(*(torch.randn(shape) for shape in shapes))


def test_weights_can_be_averaged_over_heads() -> None:
    layer, x = LLNAttention(32, 4), torch.randn(2, 9, 32)
    averaged = layer(x, need_weights=True, average_attn_weights=True)[1]
    torch.testing.assert_close(averaged, layer(x, need_weights=True)[1].mean(dim=1))


def test_arguments_come_in_torchs_order() -> None:
    ours, torchs = (
        [name for name, p in inspect.signature(forward).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        for forward in (LLNAttention.forward, nn.MultiheadAttention.forward)
    )
    assert ours == torchs


def causal_mask(length: int) -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


@layers
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_layer_stands_in_for_the_attention_of_torchs_encoder_layer(layer_class, training, batch_first) -> None:
    options = {"dropout": 0.0, "batch_first": batch_first}
    for causal in (False, True):
        torchs = nn.TransformerEncoderLayer(32, 4, 64, **options)
        torchs.self_attn = attention = layer_class(32, 4, causal=causal, **options)
        torchs.train(training)
        x = torch.randn(3, 3, 32)
        with torch.set_grad_enabled(training):
            if causal:
                out = torchs(x, src_mask=causal_mask(3), is_causal=True)
            else:
                out = torchs(x)
            attention.matcher.reset_parameters()
            hidden = torchs.norm1(x + attention(x)[0])
            expected = torchs.norm2(hidden + torchs.linear2(torchs.linear1(hidden).relu()))
        torch.testing.assert_close(out, expected)


def test_a_layer_stands_in_for_the_attentions_of_torchs_encoder_and_decoder() -> None:
    encoder_layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder_layer.self_attn = LLNDiagAttention(32, 4)
    with pytest.warns(UserWarning, match="enable_nested_tensor is True"):
        encoder = nn.TransformerEncoder(encoder_layer, 2)
    decoder_layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True)
    decoder_layer.self_attn = LLNDiagAttention(32, 4, causal=True)
    decoder_layer.multihead_attn = LLNAttention(32, 4, matching="running")  # 'sample' would look at later queries
    decoder = nn.TransformerDecoder(decoder_layer, 2)
    encoder.eval(), decoder.eval()
    with torch.no_grad():
        memory = encoder(torch.randn(2, 7, 32))
        x = torch.randn(2, 9, 32)
        whole = decoder(x, memory, tgt_mask=causal_mask(9))  # the decoder finds that it is causal
        torch.testing.assert_close(decoder(x[:, :5], memory, tgt_mask=causal_mask(5)), whole[:, :5])


@pytest.mark.parametrize("mask", [causal_mask(9), causal_mask(9).isinf(), causal_mask(9).expand(8, 9, 9)], ids=str)
def test_a_causal_layer_takes_the_causal_mask(mask: Tensor) -> None:
    layer, x = LLNAttention(32, 4, causal=True).eval(), torch.randn(2, 9, 32)
    assert torch.equal(layer(x, attn_mask=mask, is_causal=True)[0], layer(x)[0])
    encoder_layer = LLNEncoderLayer(32, 4, attention_options={"causal": True}).eval()
    assert torch.equal(encoder_layer(x, src_mask=mask, is_causal=True), encoder_layer(x))


@pytest.mark.parametrize(
    ("causal", "arguments", "message"),
    [
        (False, {"is_causal": True}, "is_causal=True, but this layer is bidirectional: make it with causal=True"),
        (False, {"attn_mask": torch.zeros(9, 9)}, "an N x N attn_mask, here \\(9, 9\\), cannot be honoured"),
        (True, {"attn_mask": causal_mask(9)}, "pass is_causal=True"),
        (True, {"attn_mask": torch.zeros(9, 9), "is_causal": True}, "attn_mask is not the causal mask"),
        (True, {"attn_mask": ~causal_mask(9).isinf(), "is_causal": True}, "attn_mask is not the causal mask"),
        (True, {"attn_mask": causal_mask(8), "is_causal": True}, "attn_mask must be \\(9, 9\\)"),
    ],
)
def test_other_masks_are_refused(causal: bool, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLNAttention(32, 4, causal=causal)(torch.randn(2, 9, 32), **arguments)


def test_the_encoder_layer_refuses_a_mask_that_is_not_what_it_says() -> None:
    layer = LLNEncoderLayer(32, 4, attention_options={"causal": True})
    with pytest.raises(ValueError, match="attn_mask is not the causal mask"):
        layer(torch.randn(2, 9, 32), src_mask=torch.zeros(9, 9), is_causal=True)
