"""The encoder: same size for every member, every weight trained, layers as each paper prescribes."""

import pytest
import torch

import lln.zoo
from lln.zoo.encoder import Encoder, count_parameters

SHAPE = {"embed_dim": 128, "num_heads": 2, "feed_forward": 512, "layers": 2, "max_length": 64}


@pytest.mark.parametrize("name", lln.zoo.names())
def test_every_encoder_has_the_weights_of_the_softmax_encoder(name: str) -> None:
    """Within 1 %; FLASH and TNN by their papers' rules, where a block is 12 E^2 and a little."""
    size = count_parameters(Encoder(name, **SHAPE)) / count_parameters(Encoder("softmax", **SHAPE))
    assert abs(size - 1) <= (0.25 if lln.zoo.card(name).replaces_feed_forward else 0.01)


@pytest.mark.parametrize("name", lln.zoo.names())
def test_an_encoder_trains(name: str) -> None:
    model = Encoder(name, **{**SHAPE, "embed_dim": 32, "feed_forward": 64})
    x, target = torch.randn(2, 2, 40, 32).unbind(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = (model(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["transnormer_t1", "transnormer_t2"])
def test_transnormer_starts_with_blocks_and_ends_with_norms(name: str) -> None:
    model = Encoder(name, **{**SHAPE, "layers": 4})
    assert [layer.attention.mechanism.options.branch for layer in model.layers] == ["diag", "diag", "norm", "norm"]


def test_linformer_at_a_great_length_keeps_its_width_and_is_larger() -> None:
    shape = {**SHAPE, "max_length": 8192}
    assert count_parameters(Encoder("linformer", **shape)) > 2 * count_parameters(Encoder("softmax", **shape))
