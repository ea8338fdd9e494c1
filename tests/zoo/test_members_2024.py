"""The members since 2023: what each paper says of its own, reproduced small, and equations that are broken on purpose.

The breakings show that the comparison with the oracle (`test_equations`) notices them.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lln.zoo
from lln.zoo.members import agent, gated_delta, hedgehog, lolcats, mala, polaformer, sla
from tests.zoo.test_equations import test_output_is_the_equation as compare_with_the_oracle
from tests.zoo.variants import SMALL, Variant


def variant(name: str, **options: Any) -> Variant:
    only_causal = not lln.zoo.card(name).bidirectional
    return Variant(name, options or SMALL.get(name, [{}])[0], only_causal)


def positive_only(self: Any, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return self.query_map(q), self.key_map(k)


def powers_of_one(self: Any, x: Tensor) -> Tensor:
    return torch.cat([F.relu(x), F.relu(-x)], dim=-1)


def means_of_all(x: Tensor, mask: Tensor | None, segments: int) -> tuple[Tensor, None]:
    return x.mean(dim=2, keepdim=True), None


def without_gates(a: Tensor, b: Tensor, decay: Tensor) -> Tensor:
    return a @ b.mT


def transposed_mixture(equation: str, mixture: Tensor, summaries: Tensor) -> Tensor:
    return (summaries.flatten(3).transpose(2, 3) @ mixture).transpose(2, 3).unflatten(3, summaries.shape[3:])


def length_forgotten(q: Tensor) -> Tensor:
    return polaformer.signed_powers(q, 3.0)


BROKEN: dict[str, tuple[str, Any, str, Callable[..., Any]]] = {
    "hedgehog without its negative half": ("hedgehog", hedgehog.Hedgehog, "_log_features", positive_only),
    "mala with another feature": ("mala", mala, "feature", F.relu),
    "mala with the wrong number of keys": ("mala", mala.Mala, "_counts", lambda self, k, *_: torch.tensor(k.shape[2])),
    "polaformer without powers": ("polaformer", polaformer.Polaformer, "features", powers_of_one),
    "nalaformer that forgets the query's length": ("nalaformer", polaformer, "norm_aware", length_forgotten),
    "lolcats with features that are not normalised": ("lolcats", lolcats, "feature", torch.exp),
    "lolcats without its far part": ("lolcats", lolcats.Lolcats, "_far", lambda self, q, *_: torch.zeros(())),
    "gated delta without its gates": ("gated_delta", gated_delta, "_decayed_products", without_gates),
    "mhla with the mixture of the keys' blocks": ("mhla", torch, "einsum", transposed_mixture),
    "sla without its exact part": ("sla", sla, "softmax_attention", lambda q, k, v, _: torch.zeros_like(q)),
    "agent with one agent": ("agent", agent, "segment_means", means_of_all),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_equation_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, where, attribute, replacement = BROKEN[broken]
    member = variant("polaformer", form=name) if name == "nalaformer" else variant(name)
    compare_with_the_oracle(member, "right")
    monkeypatch.setattr(where, attribute, replacement)
    with pytest.raises(AssertionError):
        compare_with_the_oracle(member, "right")


LEARNED = ["gated_delta", "hedgehog", "lolcats", "mhla", "polaformer", "sla"]


@pytest.mark.parametrize("mask", ["none", "left", "holes"])
@pytest.mark.parametrize("name", LEARNED)
def test_output_is_the_equation_wherever_the_weights_are(name: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many weights start at zero or at the identity, where an equation has terms that cannot be seen."""
    build = Variant.build

    def moved(self: Variant, **size: int) -> Any:
        module = build(self, **size)
        with torch.no_grad():
            for weight in module.mechanism.parameters():
                weight.add_(0.3 * torch.rand_like(weight))
        return module

    monkeypatch.setattr(Variant, "build", moved)
    for options in SMALL.get(name, [{}]):
        compare_with_the_oracle(variant(name, **options), mask)


def entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights, weights).sum(dim=-1) / math.log(2)


def divergence(weights: Tensor, softmax: Tensor) -> float:
    return float((torch.special.xlogy(softmax, softmax) - softmax * weights.log()).sum(dim=-1).mean())


def test_hedgehog_learns_softmax_better_than_fixed_features_do() -> None:
    """The paper's softmax mimicry: maps trained on some queries and keys are nearer to softmax on others, too."""
    torch.manual_seed(0)
    directions = torch.randn(16, 16) / 2

    def pair(seed: int) -> tuple[Tensor, Tensor]:
        hidden = torch.randn(2, 4, 2, 64, 16, generator=torch.Generator().manual_seed(seed))
        return hidden[0], (hidden[0] + hidden[1]) @ directions

    def softmax(q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 4, dim=-1)

    def elu_divergence(q: Tensor, k: Tensor) -> float:
        features = [F.elu(t) + 1 for t in (q, k)]
        scores = features[0] @ features[1].mT
        return divergence(scores / scores.sum(dim=-1, keepdim=True), softmax(q, k))

    mechanism = lln.zoo.build("hedgehog", embed_dim=32, num_heads=2, max_length=64).mechanism
    optimiser = torch.optim.Adam(mechanism.parameters(), lr=2e-2)
    unseen = pair(1000)
    with torch.no_grad():
        untrained = divergence(mechanism.dense(*unseen), softmax(*unseen))
    for step in range(60):
        q, k = pair(step)
        loss = hedgehog.mimicry(mechanism.dense(q, k), softmax(q, k))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        trained = divergence(mechanism.dense(*unseen), softmax(*unseen))
    assert trained < 2 / 3 * min(untrained, elu_divergence(*unseen))


def test_the_mimicry_loss_is_least_for_softmax_itself() -> None:
    softmax, other = (torch.softmax(torch.randn(2, 3, 7, 7, dtype=torch.float64), dim=-1) for _ in range(2))
    own, foreign = hedgehog.mimicry(softmax, softmax), hedgehog.mimicry(other, softmax)
    torch.testing.assert_close(own, entropy(softmax).mean() * math.log(2))
    torch.testing.assert_close(float(foreign - own), divergence(other, softmax))


def test_mala_spreads_its_row_as_the_query_grows_and_plain_linear_attention_does_not() -> None:
    """The paper's finding: the ratio of two weights follows |f(q)|; in linear attention |f(q)| cancels (eq. 4)."""
    q, k = torch.rand(1, 1, 5, 8, dtype=torch.float64), torch.randn(1, 1, 40, 8, dtype=torch.float64)
    matrices = {
        name: [
            lln.zoo.build(name, embed_dim=8, num_heads=1, max_length=40).mechanism.dense(c * q, k) for c in (1, 4, 16)
        ]
        for name in ("mala", "relu")
    }
    for weights in matrices["mala"]:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 1, 5, dtype=torch.float64))
    short, long, longest = (weights.std(dim=-1) for weights in matrices["mala"])
    assert (long > 1.5 * short).all() and (longest > 1.5 * long).all()
    torch.testing.assert_close(matrices["relu"][0], matrices["relu"][2])


def test_polaformer_keeps_the_whole_product_of_query_and_key() -> None:
    """With powers of one, same-signed minus opposite-signed is q.k."""
    mechanism = lln.zoo.build("polaformer", embed_dim=8, num_heads=1, max_length=9, power_range=0.0).mechanism.double()
    q, k = torch.randn(2, 1, 1, 9, 8, dtype=torch.float64)
    fq, fk = mechanism.features(q), mechanism.features(k)
    swapped = torch.cat([fq[..., 8:], fq[..., :8]], dim=-1)
    torch.testing.assert_close((fq - swapped) @ fk.mT, q @ k.mT)


def test_higher_powers_of_polaformer_concentrate() -> None:
    """The paper's theorem: a function with positive first and second derivative lowers the entropy."""
    q, k = torch.randn(2, 1, 1, 64, 16, dtype=torch.float64)
    found = []
    for power_range in (0.0, 2.0, 6.0):
        mechanism = lln.zoo.build("polaformer", embed_dim=16, num_heads=1, max_length=64, power_range=power_range)
        scores = mechanism.mechanism.double().features(q) @ mechanism.mechanism.features(k).mT
        found.append(float(entropy(scores / scores.sum(dim=-1, keepdim=True)).mean().detach()))
    assert found[0] > found[1] + 0.2 > found[2] + 0.4


def test_longer_queries_concentrate_in_nalaformer_and_not_in_polaformer() -> None:
    """The query's length, which a homogeneous feature forgets, is in the power."""
    q, k = torch.randn(2, 1, 1, 64, 16, dtype=torch.float64)
    direction, keys = F.normalize(q, dim=-1), polaformer.signed_powers(k, 3.0)

    def mean_entropy(features: Tensor) -> float:
        scores = features @ keys.mT
        return float(entropy(scores / scores.sum(dim=-1, keepdim=True)).mean())

    norm_aware = [mean_entropy(polaformer.norm_aware(length * direction)) for length in (0.1, 0.5, 2.0)]
    fixed = [mean_entropy(polaformer.signed_powers(length * direction, 3.0)) for length in (0.1, 0.5, 2.0)]
    assert norm_aware[0] > norm_aware[1] + 0.1 > norm_aware[2] + 0.2
    assert max(fixed) - min(fixed) < 1e-9


@pytest.mark.parametrize("agents", [1, 3, 8])
def test_agent_attention_is_linear_attention_of_as_many_features_as_agents(agents: int) -> None:
    """The paper's own reading: two softmaxes in a row are one linear attention, so its rank is the number of agents."""
    mechanism = lln.zoo.build("agent", embed_dim=16, num_heads=1, max_length=48, agents=agents).mechanism
    q, k = 2 * torch.randn(2, 1, 1, 48, 16, dtype=torch.float64)
    matrix = mechanism.dense(q, k)[0, 0]
    assert torch.linalg.matrix_rank(matrix) == agents
    torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(48, dtype=torch.float64))


def test_lolcats_is_softmax_where_the_window_holds_everything() -> None:
    """The nearer the window comes to the length, the nearer the layer to softmax; at the end it is softmax."""
    q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64)
    true = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    errors = []
    for window in (2, 20, 40):
        mechanism = lln.zoo.build("lolcats", embed_dim=16, num_heads=2, max_length=40, window=window).mechanism.double()
        errors.append(float((mechanism(q, k, v, is_causal=True) - true).norm().detach()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


def test_lolcats_has_one_normaliser_for_both_parts() -> None:
    mechanism = lln.zoo.build("lolcats", embed_dim=8, num_heads=1, max_length=30, window=4).mechanism.double()
    q, k = torch.randn(2, 1, 1, 30, 8, dtype=torch.float64)
    matrix = mechanism.dense(q, k, is_causal=True).detach()
    torch.testing.assert_close(matrix.sum(dim=-1), torch.ones(1, 1, 30, dtype=torch.float64))
    far = matrix.tril(-4).sum(dim=-1)[0, 0]
    assert (far[4:] > 0.01).all() and (far[4:] < 0.99).all()


def test_the_delta_rule_recalls_what_was_written_last() -> None:
    """A key's value is replaced, where plain linear attention would add to it: orthogonal keys, each written several times."""
    keys, values = torch.eye(8, dtype=torch.float64), torch.randn(40, 5, dtype=torch.float64)
    order = torch.randint(8, (40,), generator=torch.Generator().manual_seed(0))
    k, v = keys[order][None, None], values[None, None]
    everything, nothing = torch.ones(1, 1, 40, 1, dtype=torch.float64), torch.zeros(1, 1, 40, 1, dtype=torch.float64)
    asked = torch.cat([k[:, :, :-1], keys[order[3]][None, None, None]], dim=2)  # the last query asks for an earlier key
    out = gated_delta.delta_rule(asked, k, v, everything, nothing)[0, 0, -1]
    last = (order == order[3]).nonzero().flatten()[-1]
    assert last > 3, "the key was written again later"
    torch.testing.assert_close(out, values[last])


def test_a_gate_of_the_delta_rule_forgets_at_its_rate() -> None:
    k = torch.eye(4, dtype=torch.float64)[None, None]
    v, written = torch.ones(1, 1, 4, 1, dtype=torch.float64), torch.ones(1, 1, 4, 1, dtype=torch.float64)
    first_key = k[:, :, :1].expand(1, 1, 4, 4)
    kept = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64)
    out = gated_delta.delta_rule(first_key, k, v, written, kept.log()[None, None, :, None])
    torch.testing.assert_close(out.flatten(), torch.tensor([1.0, 0.8, 0.8 * 0.7, 0.8 * 0.7 * 0.6], dtype=torch.float64))


def test_mhla_has_a_rank_that_linear_attention_cannot_have() -> None:
    """The paper's bound: d for linear attention, the sum over blocks of min(n_b, d) here."""
    q, k = torch.rand(2, 1, 1, 64, 4, dtype=torch.float64)
    plain = lln.zoo.build("relu", embed_dim=4, num_heads=1, max_length=64).mechanism.dense(q, k)[0, 0]
    layer = lln.zoo.build("mhla", embed_dim=4, num_heads=1, max_length=64, blocks=8).mechanism.double()
    with torch.no_grad():
        assert torch.linalg.matrix_rank(plain) == 4
        layer.mixture.copy_(torch.ones(8, 8))
        torch.testing.assert_close(layer.dense(q, k)[0, 0], plain)
        layer.mixture.copy_(torch.rand(8, 8))
        assert torch.linalg.matrix_rank(layer.dense(q, k)[0, 0]) == 8 * 4


def test_sla_with_every_block_critical_is_softmax() -> None:
    q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64)
    errors = []
    for top in (0.25, 0.5, 1.0):
        mechanism = lln.zoo.build(
            "sla", embed_dim=16, num_heads=2, max_length=40, block_size=5, top=top, bottom=0.0
        ).mechanism
        out = mechanism.double()(q, k, v).detach()
        errors.append(float((out - F.scaled_dot_product_attention(q, k, v)).norm()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


def test_the_linear_part_of_sla_brings_back_what_sparse_attention_misses() -> None:
    """Fine-tuned for a few steps, as its paper does: nearer to softmax, on inputs it was not tuned on, than it started."""
    torch.manual_seed(0)
    mechanism = lln.zoo.build(
        "sla", embed_dim=16, num_heads=2, max_length=64, block_size=8, top=0.25, bottom=0.1
    ).mechanism

    def error(seed: int) -> Tensor:
        q, k, v = torch.randn(3, 4, 2, 64, 8, generator=torch.Generator().manual_seed(seed))
        v = v + 1.0
        return (mechanism(q, k, v) - F.scaled_dot_product_attention(q, k, v)).square().mean()

    before = float(error(1000).detach())
    optimiser = torch.optim.Adam(mechanism.parameters(), lr=1e-2)
    for step in range(40):
        optimiser.zero_grad()
        error(step).backward()
        optimiser.step()
    assert float(error(1000).detach()) < 0.97 * before
