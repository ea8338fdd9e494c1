"""The models of the experiments: every member of the zoo in RoBERTa's layers, norms after or before."""

import pytest
import torch
from torch import Tensor, nn

from lln.zoo import card, names
from lln_lab.experiments import lra
from lln_lab.experiments.contestants import Contestant
from lln_lab.experiments.models.roberta import (
    CausalLanguageModel,
    LongClassifier,
    MaskedLanguageModel,
    Size,
    configuration,
)
from lln_lab.experiments.models.vit import ImageClassifier
from lln_lab.experiments.models.vit import Size as VitSize

SIZE = Size(layers=2, width=32, heads=2, feed_forward=48, length=64, dropout=0.0)


def classifier(name: str, **options: bool) -> LongClassifier:
    torch.manual_seed(0)
    return LongClassifier(SIZE, 20, 3, name, **options)


def batch(rows: int, length: int, padding: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 20, (rows, length + padding), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(length + padding) < length
    return ids * mask, mask.expand(rows, -1)


@pytest.mark.parametrize("name", [name for name in names() if card(name).bidirectional])
def test_a_classifier_of_long_sequences_trains_with_every_member(name: str) -> None:
    model = classifier(name, normalise=True)
    ids, mask = batch(4, 64)
    loss = model(ids, mask, labels=torch.tensor([0, 1, 2, 0]))["loss"]
    loss.backward()
    missing = [key for key, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    assert torch.isfinite(loss) and all("position_embeddings" in key or "token_type" in key for key in missing), missing


@pytest.mark.parametrize("name", ["softmax", "lln", "lln_diag", "elu"])
def test_padding_does_not_change_what_is_classified(name: str) -> None:
    model = classifier(name).eval()
    ids, mask = batch(2, 40, padding=17)
    torch.testing.assert_close(model(ids, mask)["logits"], model(ids[:, :40], mask[:, :40])["logits"])


def test_norms_stand_after_the_residuals_in_roberta_and_before_them_in_the_classifier_of_long_sequences() -> None:
    """With every mixing and feed-forward output at zero, a pre-norm layer is the identity, a post-norm layer a norm."""
    x = 3.0 + torch.randn(1, 8, SIZE.width, generator=torch.Generator().manual_seed(2))
    masked = MaskedLanguageModel(configuration(SIZE, 20), "softmax").roberta.encoder.layer[0]
    long = classifier("softmax").encoder.encoder.layer[0]
    for layer in (masked, long):
        for part in layer.modules():
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.weight)
    assert torch.equal(long(x), x)
    torch.testing.assert_close(masked(x), nn.functional.layer_norm(x, (SIZE.width,)), atol=1e-5, rtol=1e-5)


def test_the_mean_is_normalised_over_the_batch() -> None:
    model = classifier("lln_diag", normalise=True)
    features = model._mean(*batch(64, 32))
    torch.testing.assert_close(features.mean(0), torch.zeros(SIZE.width), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(SIZE.width), atol=1e-2, rtol=0)


@pytest.mark.parametrize("preset, kind", [("cpu", nn.BatchNorm1d), ("paper", nn.Identity)])
def test_the_long_range_arena_normalises_where_its_settings_say_so(preset: str, kind: type[nn.Module]) -> None:
    settings = lra.PRESETS[preset]
    assert isinstance(lra.classifier("listops", 18, 10, Contestant("softmax"), settings).normalise, kind)


@pytest.mark.parametrize("name", ["performer", "skyformer", "linformer", "lln_diag"])
def test_everything_but_the_attention_begins_as_softmax_does(name: str) -> None:
    def rest(member: str) -> dict[str, Tensor]:
        weights = classifier(member).state_dict()
        return {key: x for key, x in weights.items() if key.startswith("head") or "embeddings" in key}

    wanted, found = rest("softmax"), rest(name)
    assert len(wanted) > 4 and all(torch.equal(found[key], x) for key, x in wanted.items())


def test_a_feed_forward_of_another_width_begins_as_vit_has_it() -> None:
    torch.manual_seed(0)
    model = ImageClassifier(VitSize(layers=1), 2, "linformer")
    mlp = model.vit.layers[0].mlp
    assert mlp.fc1.out_features != VitSize().feed_forward, "linformer has weights of its own, so its MLP is narrower"
    assert float(mlp.fc1.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert not mlp.fc1.bias.any() and not mlp.fc2.bias.any()


@pytest.mark.parametrize("name", [name for name in names() if card(name).causal])
def test_a_causal_language_model_sees_no_later_token(name: str) -> None:
    torch.manual_seed(0)
    model = CausalLanguageModel(SIZE, 20, name).eval()
    ids, _ = batch(1, 64)
    other = ids.clone()
    other[0, 40] = (other[0, 40] + 1) % 18 + 1
    with torch.no_grad():
        first, second = model.logits(ids), model.logits(other)
    torch.testing.assert_close(first[:, :40], second[:, :40], rtol=0, atol=1e-5)  # TNN's Fourier transforms round
    assert (first[:, 40:] - second[:, 40:]).abs().max() > 1e-2
