"""torch's encoder makes a nested tensor of a padded batch where nothing learns: layers and converted models take it."""

from typing import Any

import pytest
import torch
from torch import nn

import lln

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LAYERS = [lln.LLNAttention, lln.LLNDiagAttention, lln.NearFarAttention]
X = torch.randn(3, 40, 32, generator=torch.Generator().manual_seed(1))
PADDING = torch.arange(40) >= torch.tensor([40, 25, 31])[:, None]


def encoder(nested: bool) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()


def close(found: nn.Module, wanted: nn.Module) -> None:
    outputs = [model(X, src_key_padding_mask=PADDING)[~PADDING] for model in (found, wanted)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("replaced", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_in_torchs_encoder(layer: Any, replaced: tuple[int, ...]) -> None:
    models = encoder(True), encoder(False)
    for model in models:
        for i in replaced:
            model.layers[i].self_attn = layer.from_torch(model.layers[i].self_attn)
    close(*models)


@torch.no_grad()
@pytest.mark.parametrize("kept", [(), ("layers.0.self_attn",), ("layers.1.self_attn",)], ids=str)
def test_a_converted_encoder(kept: tuple[str, ...]) -> None:
    models, batch = (encoder(True), encoder(False)), {"src": X, "src_key_padding_mask": PADDING}
    reports = [lln.convert(model, [batch], block_size=8, keep_softmax=kept) for model in models]
    assert len(reports[0].replaced) == 2 - len(kept)
    close(*models)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_nested_tensor_by_itself(layer: Any) -> None:
    own = layer(32, 4).eval()
    rows = [torch.randn(n, 32) for n in (7, 3)]
    given = torch.nested.as_nested_tensor(rows)
    found = own(given)[0]
    for row, out in zip(rows, found.unbind(), strict=True):
        torch.testing.assert_close(out, own(row)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="query, key and value at once"):
        own(given, torch.nested.as_nested_tensor(rows))
    with pytest.raises(ValueError, match="batch_first=True"):
        layer(32, 4, batch_first=False)(given)
