"""Models that people bring, tiny and with random weights: converted, nearer to softmax than nothing, and given back."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lln
from lln.conversion import converted_sites, distil
from lln.conversion.distil import relative_error
from tests.conversion.models import LikeTimm, ViT

Example = tuple[nn.Module, Callable[[], Any], int]  # a model, what makes a batch for it, and how many attentions it has


def torch_vit() -> Example:
    return ViT(), lambda: torch.randn(2, 3, 32, 32), 2


def like_timm() -> Example:
    return nn.Sequential(LikeTimm(), LikeTimm()), lambda: torch.randn(2, 65, 32), 2


def timm_vit() -> Example:
    try:
        import timm
    except (ImportError, RuntimeError) as reason:  # torchvision's builds for GPUs do not load beside torch for CPUs
        pytest.skip(f"timm, or torchvision which it imports, is not usable here: {reason}")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, depth=2, num_classes=10)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(
                4
            )  # as they are drawn, each token sees all others alike: nothing is left to learn
    return model, lambda: torch.randn(2, 3, 32, 32), 2


def diffusers_transformer() -> Example:
    diffusers = pytest.importorskip("diffusers", reason="pip install diffusers")
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=16,
        patch_size=2, num_embeds_ada_norm=10,
    )  # fmt: skip

    def batch() -> dict[str, Tensor]:
        return {
            "hidden_states": torch.randn(2, 4, 16, 16),
            "timestep": torch.tensor([3, 7]),
            "class_labels": torch.tensor([1, 2]),
        }

    return model, batch, 2


@pytest.mark.parametrize("example", [torch_vit, like_timm, timm_vit, diffusers_transformer])
def test_an_example_is_converted_distilled_and_given_back(example: Callable[[], Example]) -> None:
    torch.manual_seed(0)
    model, make, attentions = example()
    model.eval()
    batches = [make() for _ in range(3)]
    original = copy.deepcopy(model)
    report = lln.convert(model, batches, block_size=16)
    assert len(report.replaced) == attentions and not report.kept
    fitted = distance(model, original, batches)
    assert 0 < fitted < without_attention(model, original, batches)
    distil(model, batches, steps=12, lr=1e-2, stage="layers")
    assert distance(model, original, batches) < 1.05 * fitted
    lln.unload(model)
    assert distance(model, original, batches) == 0


@torch.no_grad()
def distance(model: nn.Module, original: nn.Module, batches: list[Any]) -> float:
    outputs = ([m(**b) if isinstance(b, dict) else m(b) for b in batches] for m in (model, original))
    return sum(float(relative_error(found, wanted)) for found, wanted in zip(*outputs, strict=True))


def without_attention(model: nn.Module, original: nn.Module, batches: list[Any]) -> float:
    """The distance with attention that gives nothing."""
    spoilt = copy.deepcopy(model)
    sites = [site for own in converted_sites(spoilt).values() for site in own if site is not None]
    for site in sites:
        site._attend = lambda call: torch.zeros_like(call.v)  # type: ignore[method-assign, assignment]
    return distance(spoilt, original, batches)
