"""Gradient checkpointing with running statistics: recomputing a call changes nothing, whichever call it is."""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lln import LLNAttention
from lln.matching import forward_calls

KINDS = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "non-reentrant": partial(checkpoint, use_reentrant=False),
}
kinds = pytest.mark.parametrize("run", KINDS.values(), ids=KINDS.keys())
Run = Callable[..., Any]


class Residual(nn.Module):
    """A causal layer that can be applied again and again, as ALBERT's is. alpha, beta and the mean key all run."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = LLNAttention(
            16, 2, dropout=dropout, causal=True, matching_options={"subtract_mean_key": True, "momentum": 0.5}
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + 2 * self.attention(x)[0]
        return out


def plainly(layer: Run, x: Tensor) -> Tensor:
    out: Tensor = layer(x)
    return out


def batches(count: int) -> list[Tensor]:
    return [(1 + i) * torch.randn(2, 11, 16) for i in range(count)]


def assert_same_training(one: nn.Module, other: nn.Module) -> None:
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5 * float(a.grad.abs().max()), msg=name)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], msg=name)


def train_both_ways(run: Run, step: Callable[[nn.Module, Run], None], dropout: float = 0.0) -> None:
    """Two steps, so that statistics and the memory of calls are those of a training under way."""
    plain = Residual(dropout)
    checkpointed = copy.deepcopy(plain)
    for layer, way in ((plain, plainly), (checkpointed, run)):
        torch.manual_seed(1)
        for _ in range(2):
            step(layer, way)
    assert_same_training(plain, checkpointed)


@kinds
def test_a_layer_that_all_depths_share(run: Run) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        (x,) = batches(1)
        x.requires_grad_()
        for _ in range(4):
            x = way(layer, x)
        x.square().sum().backward()

    train_both_ways(run, step)


@kinds
def test_two_forward_passes_and_one_backward_pass(run: Run) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        first, second = (way(layer, x.requires_grad_()) for x in batches(2))
        (first.square().sum() + second.sin().sum()).backward()

    train_both_ways(run, step)


@kinds
def test_two_forward_passes_on_the_same_input(run: Run) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        x = batches(1)[0].requires_grad_()
        (way(layer, x).square().sum() + way(layer, x).sin().sum()).backward()

    train_both_ways(run, step)


@kinds
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_backward_passes_in_any_order(run: Run, order: tuple[int, ...]) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        losses = [way(layer, x.requires_grad_()).square().sum() for x in batches(3)]
        for i in order:
            losses[i].backward()

    train_both_ways(run, step)


@kinds
def test_forward_and_backward_passes_that_interleave_as_in_a_pipeline(run: Run) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        under_way: list[Tensor] = []
        for x in batches(5):
            under_way.append(way(layer, x.requires_grad_()).square().sum())
            if len(under_way) == 3:
                under_way.pop(0).backward()
        for loss in under_way:
            loss.backward()

    train_both_ways(run, step)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the inner one, while the outer runs
@pytest.mark.parametrize("inner", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("outer", KINDS.values(), ids=KINDS.keys())
def test_checkpoints_inside_checkpoints(inner: Run, outer: Run) -> None:
    def nested(layer: Run, x: Tensor) -> Tensor:
        out: Tensor = outer(lambda x: inner(layer, inner(layer, x)), x)
        return out

    def step(layer: nn.Module, way: Run) -> None:
        twice = way if way is nested else lambda layer, x: layer(layer(x))
        first, second = (twice(layer, x.requires_grad_()) for x in batches(2))
        (first.square().sum() + second.sin().sum()).backward()

    train_both_ways(nested, step)


@kinds
def test_dropout_draws_the_same_numbers_with_and_without_checkpoints(run: Run) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        first, second = (way(layer, x.requires_grad_()) for x in batches(2))
        (first.square().sum() + second.sin().sum()).backward()

    train_both_ways(run, step, dropout=0.3)


def test_a_second_backward_pass_through_the_same_graph_after_other_calls() -> None:
    def step(layer: nn.Module, way: Run) -> None:
        first, second = (way(layer, x.requires_grad_()).square().sum() for x in batches(2))
        first.backward(retain_graph=True)
        way(layer, batches(1)[0].requires_grad_()).sum().backward()
        (first + second).backward()

    train_both_ways(KINDS["non-reentrant"], step)


@kinds
def test_autocast_inside_a_checkpoint(run: Run) -> None:
    def step(layer: nn.Module, way: Run) -> None:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            first, second = (way(layer, x.requires_grad_()) for x in batches(2))
        (first.square().sum() + second.sin().sum()).backward()

    train_both_ways(run, step)


@kinds
def test_compiled_layers_inside_checkpoints(run: Run) -> None:
    torch.compiler.reset()

    def compiled(layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = run(torch.compile(layer, backend="aot_eager"), x)
        return out

    def step(layer: nn.Module, way: Run) -> None:
        x = batches(1)[0].requires_grad_()
        (way(layer, way(layer, x)).square().sum() + way(layer, x).sin().sum()).backward()

    train_both_ways(compiled, step)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_checkpoints_inside_a_compiled_graph(backend: str) -> None:
    torch.compiler.reset()

    def model(layer: nn.Module, x: Tensor, way: Run = KINDS["non-reentrant"]) -> Tensor:
        out: Tensor = way(layer, way(layer, x)).square().sum() + way(layer, x).sin().sum()
        return out

    def step(layer: nn.Module, way: Run) -> None:
        (x,) = batches(1)
        (torch.compile(model, backend=backend) if way is not plainly else partial(model, way=way))(
            layer, x.requires_grad_()
        ).backward()

    train_both_ways(KINDS["non-reentrant"], step)


def test_layers_compiled_one_by_one_share_their_graph() -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def count(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return graph

    x = torch.randn(2, 11, 16)
    layers = [Residual() for _ in range(3)]
    for layer in layers:
        torch.compile(Residual.forward, backend=count)(layer, x)
    assert len(graphs) == 1
    assert all(int(layer.attention.matcher.running.batches) == 1 for layer in layers)


@kinds
def test_without_the_generators_state_the_inputs_tell_calls_apart(run: Run) -> None:
    steps = [batches(2), batches(2)]
    inputs = iter([*steps, *steps])  # for the plain layer and for the other

    def step(layer: nn.Module, way: Run) -> None:
        first, second = (way(layer, x.clone().requires_grad_()) for x in next(inputs))
        (first.square().sum() + second.sin().sum()).backward()

    train_both_ways(partial(run, preserve_rng_state=False), step)


@kinds
def test_calls_that_nothing_tells_apart_are_refused(run: Run) -> None:
    layer, x = Residual(), torch.randn(2, 11, 16, requires_grad=True)
    one, two = (run(layer, x, preserve_rng_state=False) for _ in range(2))
    with pytest.raises(RuntimeError, match="several forward calls had the inputs that are recomputed here"):
        (one + two).sum().backward()


@kinds
def test_seeding_again_at_every_step_is_no_ambiguity(run: Run) -> None:
    layer, x = Residual(), torch.randn(2, 11, 16, requires_grad=True)
    for _ in range(3):
        torch.manual_seed(0)
        run(layer, x).sum().backward()


@kinds
def test_a_recomputation_in_another_mode_is_refused(run: Run) -> None:
    layer = Residual().eval()
    loss = run(layer, torch.randn(2, 11, 16, requires_grad=True)).sum()
    layer.train()
    with pytest.raises(RuntimeError, match="none of the forward calls on record"):
        loss.backward()


def remembered(layer: Residual) -> int:
    assert layer.attention.matcher.running is not None
    return len(layer.attention.matcher.running._calls)


def test_training_without_checkpoints_remembers_nothing() -> None:
    layer = Residual()
    for x in batches(3):
        layer(x).sum().backward()
    assert remembered(layer) == 0


@kinds
def test_training_with_checkpoints_forgets_what_it_recomputed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_calls, "RECOMPUTED_CALLS", 5)
    layer = Residual()
    for x in batches(20):
        run(layer, x.requires_grad_()).sum().backward()
    assert remembered(layer) == 6  # the last one may yet be asked for again


def test_calls_whose_backward_pass_never_comes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_calls, "MOST_CALLS", 7)
    layer = Residual()
    with torch.no_grad():
        for x in batches(20):
            layer(x)
    assert remembered(layer) == 7


@kinds
def test_a_call_that_was_forgotten_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_calls, "MOST_CALLS", 2)
    layer = Residual()
    losses = [run(layer, x.requires_grad_()).sum() for x in batches(3)]
    losses[1].backward()
    with pytest.raises(RuntimeError, match="none of the forward calls on record"):
        losses[0].backward()


@kinds
def test_copies_and_pickles_have_calls_of_their_own(run: Run) -> None:
    layer, x = Residual(), torch.randn(2, 11, 16, requires_grad=True)
    loss = run(layer, x).square().sum()
    memory = io.BytesIO()
    torch.save(layer, memory)
    memory.seek(0)
    for other in (copy.deepcopy(layer), torch.load(memory, weights_only=False)):
        run(other, 2 * x).square().sum().backward()
        assert other.attention.matcher.running._calls is not layer.attention.matcher.running._calls
    plain = Residual()
    plain.load_state_dict(layer.state_dict())
    plain.attention.matcher.running.reset_parameters()
    plain(x).square().sum().backward()
    loss.backward()
    assert_same_training(plain, layer)


def test_the_calls_are_no_part_of_the_state_dict() -> None:
    names = {name.rpartition(".")[2] for name in Residual().attention.matcher.state_dict()}
    assert names == {"mean_q", "var_q", "mean_key", "var_k", "log_factor", "batches"}
