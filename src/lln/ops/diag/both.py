"""LLN+Diag by the backends of its two branches, one after the other, and a pass that mixes them."""

from collections.abc import Callable

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.blocks import blocks
from lln.ops.blocks.op import Results as BlockResults
from lln.ops.diag.op import Operands, Results
from lln.ops.lln import attention
from lln.ops.lln.chunked.tiles import laid_out
from lln.ops.lln.op import Results as LLNResults


def forward_of(name: str) -> Callable[[Operands], Results]:
    """The forward pass by the branches' backends called `name`."""

    def forward(x: Operands) -> Results:
        far = attention.backends[name].forward(x.lln)
        near = blocks.backends[name].forward(x.blocks)
        out = mixed(near.out, far.out, x.weight, x.q)
        return Results(out, far.out if x.keep_branch else x.q.new_empty(0), *far[1:])

    return forward


def mixed(near: Tensor, far: Tensor, weight: Tensor, like: Tensor) -> Tensor:
    """near + w (far - near), w (B, Hq, N or 1) in float32 at least, in the dtype of `like`."""
    near, far = (t.to(weight.dtype) for t in (near, far))
    return laid_out(torch.lerp(near, far, weight[..., None]), like)


def backward_of(name: str) -> Callable[[dict[str, Tensor | None], Results, Operands, set[str]], dict[str, Tensor]]:
    """The backward pass by the branches' backends called `name`."""

    def backward(grads: dict[str, Tensor | None], results: Results, x: Operands, wanted: set[str]) -> dict[str, Tensor]:
        grad = grads["out"]
        assert grad is not None
        far, near = attention.backends[name], blocks.backends[name]
        assert far.backward is not None and near.backward is not None
        weight = x.weight[..., None]
        to_far, to_near = laid_out(grad * weight, x.q), laid_out(grad * (1 - weight), x.q)
        far_results = LLNResults(results.lln_out, *results.state)
        far_grads = {"out": to_far, "summed": None, "normaliser": None}
        asked = {"q", "k", "v"} | (wanted & {"alpha", "beta", "bias"})
        found = far.backward(far_grads, far_results, x.lln, asked)
        local = near.backward({"out": to_near}, BlockResults(results.out), x.blocks, {"q", "k", "v"})
        found["v"] = found["v"] + local["v"]
        if x.lln_q is None:
            found |= {n: found[n] + local[n] for n in ("q", "k")}
        else:
            found |= {"lln_q": found["q"], "lln_k": found["k"], "q": local["q"], "k": local["k"]}
        if "weight" in wanted:
            difference = results.lln_out.to(weight.dtype) - near.forward(x.blocks).out.to(weight.dtype)
            by_row = (grad.to(weight.dtype) * difference).sum(dim=-1)
            found["weight"] = by_row if x.weight.shape[-1] == by_row.shape[-1] else by_row.sum(dim=-1, keepdim=True)
        return found

    return backward


def both(name: str, **options: bool) -> Backend:
    """A backend of LLN+Diag that takes what both branches' backends `name` take."""
    far, near = attention.backends[name], blocks.backends[name]

    def refuses(x: Operands) -> str | None:
        return far.refuses(x.lln) or near.refuses(x.blocks)

    backward = None if far.backward is None else backward_of(name)
    return Backend(name, forward_of(name), backward, refuses, far.unavailable, expected_on=far.expected_on, **options)
