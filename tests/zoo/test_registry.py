"""The registry: names, options, functions, refusals."""

import dataclasses

import pytest
import torch

import lln.zoo
from lln.zoo.mechanism import Mechanism
from lln.zoo.registry import member
from tests.zoo.variants import MECHANISMS, Variant

ASKED_FOR = [
    "softmax",
    "lln",
    "lln_diag",
    "block_diagonal",
    "elu",
    "performer",
    "nystromformer",
    "linformer",
    "skyformer",
    "reformer",
    "cosformer",
    "relu",
    "quadratic",
    "rfa",
    "longformer",
    "transformer_ls",
    "transnormer_t1",
    "transnormer_t2",
    "flash",
    "tnn",
]
SINCE = ["hedgehog", "mala", "polaformer", "agent", "lolcats", "gated_delta", "mhla", "sla"]
OWN = ["near_far"]
FUNCTIONS = [n for n in lln.zoo.names() if not lln.zoo.card(n).learned]


def test_the_zoo_has_every_attention_of_the_tables_those_since_and_its_own() -> None:
    assert lln.zoo.names() == sorted(ASKED_FOR + SINCE + OWN)


def test_an_unknown_member_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no member 'bert'.*softmax"):
        lln.zoo.build("bert", embed_dim=8, num_heads=2, max_length=4)


@pytest.mark.parametrize("name", lln.zoo.names())
def test_an_unknown_option_is_refused_with_those_that_exist(name: str) -> None:
    known = [field.name for field in dataclasses.fields(member(name).options)]
    with pytest.raises(TypeError, match="it has none" if not known else f"it has: {', '.join(known)}"):
        lln.zoo.build(name, embed_dim=8, num_heads=2, max_length=4, wheels=3)


@pytest.mark.parametrize("name", lln.zoo.names())
def test_options_have_defaults_and_refuse_nonsense(name: str) -> None:
    assert lln.zoo.options(name) == member(name).options()
    for field in dataclasses.fields(member(name).options):
        if field.type in ("int", int) and field.name != "global_tokens":
            with pytest.raises(ValueError, match="-1"):
                lln.zoo.options(name, **{field.name: -1})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_q_k_v_is_the_layers_mechanism(name: str) -> None:
    q, k, v = torch.randn(3, 2, 2, 9, 4).unbind(0)
    given = {"seed": 4} if "seed" in {f.name for f in dataclasses.fields(member(name).options)} else {}
    layer = lln.zoo.build(name, embed_dim=8, num_heads=2, max_length=9, **given)
    function = lln.zoo.attention(name, **given)
    assert torch.equal(function(q, k, v), layer.mechanism(q, k, v))
    assert function.__name__ == name


@pytest.mark.parametrize("name", sorted(set(lln.zoo.names()) - set(FUNCTIONS)))
def test_a_learned_member_is_no_function(name: str) -> None:
    with pytest.raises(ValueError, match=r"learned weights.*Functions are: .*softmax"):
        lln.zoo.attention(name)


def test_options_that_bring_weights_make_it_no_function() -> None:
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(ValueError, match="learned weights"):
        lln.zoo.attention("nystromformer", convolution=3)(q, q, q)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments_are_refused_in_the_users_words(name: str) -> None:
    function = lln.zoo.attention(name)
    q = torch.randn(2, 2, 5, 4)
    with pytest.raises(ValueError, match=r"\(batch, heads, length, dim\)"):
        function(q[0], q[0], q[0])
    with pytest.raises(ValueError, match="agree"):
        function(q, q[:, :1], q)
    with pytest.raises(ValueError, match=r"bool of shape \(2, 5\)"):
        function(q, q, q, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="bool"):
        function(q, q, q, torch.ones(2, 5))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of num_heads"):
        lln.zoo.build("softmax", embed_dim=9, num_heads=2, max_length=4)


@pytest.mark.parametrize("variant", MECHANISMS, ids=str)
def test_cards_say_whether_there_are_weights(variant: Variant) -> None:
    mechanism = variant.build().mechanism
    assert isinstance(mechanism, Mechanism)
    default = lln.zoo.build(variant.name, embed_dim=8, num_heads=2, max_length=16).mechanism
    assert bool(list(default.parameters())) == variant.card.learned


@pytest.mark.parametrize("name", lln.zoo.names())
def test_every_card_is_complete(name: str) -> None:
    card = lln.zoo.card(name)
    assert all((card.title, card.reference, card.equation, card.time, card.memory))
