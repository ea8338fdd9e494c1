"""torch.nn.MultiheadAttention taken apart computes what torch's computes."""

from typing import Any

import pytest
import torch
from torch import nn

import lln
from lln.conversion import description, rebuild
from lln.conversion.torch_attention import OpenMultiheadAttention
from tests.conversion.models import batches, torch_encoder


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 24, "vdim": 20}], ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_outputs_and_gradients(batch_first: bool, options: dict[str, Any], batched: bool) -> None:
    mha = nn.MultiheadAttention(32, 4, batch_first=batch_first, **options).double()
    shapes = [(3, 7, 32), (3, 9, options.get("kdim", 32)), (3, 9, options.get("vdim", 32))]
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    inputs = [(x if batch_first else x.transpose(0, 1)) if batched else x[0] for x in inputs]
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[1, 5:] = True
    padding = padding if batched else padding[1]
    wanted = mha(*inputs, key_padding_mask=padding, need_weights=False)[0]
    found, weights = OpenMultiheadAttention(mha)(*inputs, key_padding_mask=padding)
    torch.testing.assert_close(found, wanted)
    assert weights is None
    grads = [torch.autograd.grad(x.sum(), list(mha.parameters())) for x in (wanted, found)]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
@pytest.mark.parametrize("padded", [False, True])
def test_masks(kind: torch.dtype, padded: bool) -> None:
    mha = nn.MultiheadAttention(32, 4, batch_first=True).double()
    x = torch.randn(3, 7, 32, dtype=torch.float64)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    ignored = torch.zeros(3, 7, dtype=torch.bool)
    ignored[1, 5:] = True

    def as_kind(where: torch.Tensor) -> torch.Tensor:
        return where if kind == torch.bool else torch.zeros(where.shape, dtype=kind).masked_fill(where, -torch.inf)

    given: dict[str, Any] = {"attn_mask": as_kind(later), "key_padding_mask": as_kind(ignored) if padded else None}
    opened = OpenMultiheadAttention(mha)
    torch.testing.assert_close(opened(x, x, x, **given)[0], mha(x, x, x, need_weights=False, **given)[0])
    given["attn_mask"] = as_kind(later)[None].expand(12, 7, 7)  # one for each sample and head
    torch.testing.assert_close(opened(x, x, x, **given)[0], mha(x, x, x, need_weights=False, **given)[0])


def test_one_that_stands_in_two_places_stays_one() -> None:
    encoder = torch_encoder()
    encoder.layers[1].self_attn = encoder.layers[0].self_attn
    lln.convert(encoder, batches(), block_size=16)
    assert encoder.layers[0].self_attn is encoder.layers[1].self_attn
    lln.unload(encoder)
    assert type(encoder.layers[1].self_attn) is nn.MultiheadAttention


def test_keys_of_its_own_keep_softmax_and_the_report_says_so() -> None:
    encoder = torch_encoder()
    encoder.layers[0].self_attn = nn.MultiheadAttention(32, 4, batch_first=True, add_zero_attn=True)
    report = lln.convert(encoder, batches(), block_size=16)
    assert list(report.replaced) == ["layers.1.self_attn"]
    assert "adds keys of its own" in report.kept["layers.0.self_attn"] and "adds keys" in str(report)


class ReadsWeights(nn.Module):
    """Takes the weights of one of its two attentions for something."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.read = (nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.plain(x, x, x)[0]
        out, weights = self.read(x, x, x)
        return out * weights.amax(-1, keepdim=True)


def test_weights_that_are_read_are_refused_in_words_and_kept_where_asked() -> None:
    model, x = ReadsWeights().eval(), batches()[0]
    with pytest.raises(ValueError, match=r"in place of its weights, .* keep_softmax=\[\.\.\.\], of plain, read"):
        lln.convert(model, [x], block_size=16)
    assert type(model.plain) is type(model.read) is nn.MultiheadAttention
    wanted = model(x)
    report = lln.convert(model, [x], block_size=16, keep_softmax=["read"])
    assert list(report.replaced) == ["plain"] and report.kept == {"read": "as asked"}
    assert type(model.read) is nn.MultiheadAttention and type(model.plain) is OpenMultiheadAttention
    assert float((model(x) - wanted).detach().norm() / wanted.detach().norm()) < 0.1
    again = rebuild(ReadsWeights().eval(), description(model))
    again.load_state_dict(model.state_dict())
    assert type(again.read) is nn.MultiheadAttention and torch.equal(again(x), model(x))
    assert type(lln.unload(model).plain) is nn.MultiheadAttention and torch.equal(model(x), wanted)


def test_cross_attention_of_torchs_decoder() -> None:
    layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True).eval()
    model = nn.TransformerDecoder(layer, 1)
    memory = torch.randn(3, 50, 32)
    wanted = model(batches()[0], memory)
    report = lln.convert(model, [(x, memory) for x in batches()], block_size=16)
    assert set(report.replaced) == {"layers.0.self_attn", "layers.0.multihead_attn"}
    found = model(batches()[0], memory)
    assert float((found - wanted).detach().norm() / wanted.detach().norm()) < 0.05
