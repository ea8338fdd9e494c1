"""The queries and keys of a model's layers for one batch, and the attention that each kind would make of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lln.dense import lln_matrix
from lln.matching import match_moments
from lln.zoo.multihead import MultiHead


@torch.no_grad()
def queries_and_keys(model: nn.Module, batch: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """(q, k) of every layer, each (B, H, N, D), in the order in which the layers attend."""
    found: list[tuple[Tensor, Tensor]] = []

    def look(module: MultiHead, inputs: tuple[Tensor, ...]) -> None:
        q, k, _ = module.heads(inputs[0])
        found.append((q, k))

    hooks = [m.register_forward_pre_hook(look) for m in model.modules() if isinstance(m, MultiHead)]
    with _evaluating(model):
        model(**batch)
    for hook in hooks:
        hook.remove()
    return found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def softmax_matrix(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)


def matched_lln_matrix(q: Tensor, k: Tensor, method: str | None = None) -> Tensor:
    alpha, beta = match_moments(q, k, method=method)
    return lln_matrix(q, k, alpha, beta)


def entropy_bits(matrix: Tensor) -> Tensor:
    """Mean row entropy (B, H), in bits."""
    return -(torch.special.xlogy(matrix, matrix)).sum(-1).mean(-1) / torch.log(torch.tensor(2.0))
