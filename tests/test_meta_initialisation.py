"""A module made on the meta device, given memory and reset, is the module made directly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lln import LLNAttention, LLNDiagAttention, LLNEncoderLayer, MomentMatcher, NearFarAttention
from lln.zoo import registry
from lln.zoo.encoder import Encoder

Make = Callable[[], nn.Module]

CAUSAL = {"causal": True, "matching_options": {"subtract_mean_key": True}}
TWO_AND_THREE = torch.tensor([2.0, 3.0])
MAKERS: dict[str, Make] = {
    "running": lambda: MomentMatcher(4, 8, mode="running", subtract_mean_key=True),
    "fixed": lambda: MomentMatcher(4, 8, num_key_heads=2, mode="fixed", alpha=1.5, beta=TWO_AND_THREE),
    "learnable": lambda: MomentMatcher(4, 8, mode="learnable", per_feature=True, subtract_mean_key=True),
    "learnable from given values": lambda: MomentMatcher(4, 8, mode="learnable", alpha=0.5, beta=3.0),
    "LLNAttention": lambda: LLNAttention(32, 4, kdim=10, num_key_heads=2, **CAUSAL),
    "LLNAttention without bias": lambda: LLNAttention(32, 4, bias=False),
    "LLNDiagAttention": lambda: LLNDiagAttention(32, 4, mix=0.3, learn_mix=True, matching="learnable"),
    "NearFarAttention": lambda: NearFarAttention(32, 4, weights=(0.1, 0.2, 0.3, 0.4), **CAUSAL),
    "LLNEncoderLayer": lambda: LLNEncoderLayer(32, 4, 64, attention_options={"learn_mix": True, **CAUSAL}),
    "a model": lambda: nn.Sequential(nn.Embedding(9, 32), *(LLNEncoderLayer(32, 4, 64) for _ in range(2))),
}
modules = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def spoilt(make: Make) -> nn.Module:
    """Made on the meta device and given memory, in which anything may stand."""
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    for value in [*module.parameters(), *module.buffers()]:
        value.data.fill_(torch.nan if value.is_floating_point() else 7)
    return module


def reset_each(module: nn.Module) -> None:
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()


def directly(make: Make) -> nn.Module:
    torch.manual_seed(5)
    return make()


def everything(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    ours, others = everything(one), everything(other)
    assert ours.keys() == others.keys()
    for name, value in ours.items():
        assert torch.equal(value, others[name]) and value.dtype == others[name].dtype, name
        assert value.requires_grad == others[name].requires_grad, name


@modules
def test_resetting_each_module_in_turn_gives_what_construction_gives(make: Make) -> None:
    module = spoilt(make)
    torch.manual_seed(5)
    reset_each(module)
    assert_equal(module, directly(make))


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "a model"])
def test_resetting_the_outermost_module_alone_leaves_nothing_unset(name: str) -> None:
    module: Any = spoilt(MAKERS[name])
    module.reset_parameters()
    assert all(bool(value.isfinite().all()) for value in everything(module).values())
    made = everything(MAKERS[name]())
    for key, value in everything(module).items():  # what is not drawn at random is what it was
        if "proj" not in key and "linear" not in key:
            assert torch.equal(value, made[key]), key


@modules
def test_modules_that_are_given_memory_one_by_one_are_set(make: Make) -> None:
    """As FSDP does: memory for a module's own tensors and its reset, before its children have any."""
    with torch.device("meta"):
        module = make()
    for part in module.modules():
        part.to_empty(device="cpu", recurse=False)
        for value in [*part.parameters(recurse=False), *part.buffers(recurse=False)]:
            value.data.fill_(torch.nan if value.is_floating_point() else 7)
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    assert all(bool(value.isfinite().all()) for value in everything(module).values())


def test_a_matcher_that_is_handed_over_keeps_what_it_knows() -> None:
    matcher = MomentMatcher(4, 8, mode="running")
    matcher(torch.randn(1, 4, 9, 8), torch.randn(1, 4, 9, 8))
    LLNEncoderLayer(32, 4, 64, attention_options={"matching": matcher})
    assert matcher.running is not None and int(matcher.running.batches) == 1


def test_values_on_the_meta_device_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha is on the meta device and has no values"):
        MomentMatcher(4, 8, mode="fixed", alpha=torch.ones(4, device="meta"), beta=1.0)


@pytest.mark.parametrize("name", registry.names())
def test_members_of_the_zoo(name: str) -> None:
    def make() -> nn.Module:
        return Encoder(name, embed_dim=16, num_heads=2, feed_forward=32, layers=2, max_length=32)

    module = spoilt(make)
    torch.manual_seed(5)
    reset_each(module)
    assert_equal(module, directly(make))


def test_linformers_shared_projection_is_shared_again() -> None:
    def make() -> nn.Module:
        shape = {"embed_dim": 16, "num_heads": 2, "max_length": 32}
        return registry.build("linformer", sharing="keys_and_values", **shape)

    module: Any = spoilt(make)
    torch.manual_seed(5)
    reset_each(module)
    assert module.mechanism.project_values is module.mechanism.project_keys
    assert_equal(module, directly(make))
