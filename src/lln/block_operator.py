"""Block-diagonal softmax attention as one torch operator: the native kernel, or torch where that cannot be used.

How positions fall into blocks depends on masks and on the length; inside an operator that is nobody's business, so that
one compiled or exported graph serves every length. Backward, inside a block, with P the weights:

    dv = P^T dout,    dS = P * (dout v^T - rowsum(dout * out)),    dq = scale dS k,    dk = scale dS^T q
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lln import backends
from lln.backends.block_operands import BlockOperands
from lln.backends.native.blocks import attend_to_block, block_backward, block_forward
from lln.backends.operator import NO_DOUBLE_BACKWARD, compute_dtype, empty_output
from lln.backends.oracle import masked_softmax
from lln.slots import block_slots

BLOCKS_AT_ONCE = 64  # of each head; bounds the weights that are in memory


def define_block_operator(attend: Callable[[BlockOperands], Tensor]) -> Callable[..., Tensor]:
    """Register `lln::block_diagonal`, with `attend` as its forward where the native kernel does not take the tensors."""

    def forward_body(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        block_size: int,
        scale: float,
        is_causal: bool,
    ) -> Tensor:
        x = BlockOperands(q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal)
        return block_forward(x) if native_takes(q, k, v) else empty_output(q, v.shape[-1]).copy_(attend(x))

    def backward_body(
        grad: Tensor,
        out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        block_size: int,
        scale: float,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = BlockOperands(q, k, v, key_mask, cu_seqlens, block_size, scale, is_causal)
        return block_backward(grad, x) if native_takes(q, k, v) else _gradients(grad, out, x)

    forward = torch.library.custom_op("lln::block_diagonal", forward_body, mutates_args=())
    backward = torch.library.custom_op("lln::block_diagonal_backward", backward_body, mutates_args=())
    forward.register_fake(lambda q, k, v, *_: empty_output(q, v.shape[-1]))
    backward.register_fake(lambda grad, out, q, k, v, *_: tuple(empty_output(x, x.shape[-1]) for x in (q, k, v)))

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, key_mask, cu_seqlens, *ctx.options = inputs
        ctx.save_for_backward(output, q, k, v, key_mask, cu_seqlens)

    def gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None, None)

    def refuse(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(NO_DOUBLE_BACKWARD)

    forward.register_autograd(gradient, setup_context=save)
    backward.register_autograd(refuse)
    return forward


def _attend_to_open_block(q: Tensor, k: Tensor, v: Tensor, counts: Tensor, scale: float) -> Tensor:
    return attend_to_block(q, k, v, counts, scale)


# Attention of new tokens to the keys of the open block that count, natively and without gradients: for decoding.
attend_to_open_block = torch.library.custom_op("lln::open_block", _attend_to_open_block, mutates_args=())
attend_to_open_block.register_fake(lambda q, k, v, *_: empty_output(q, v.shape[-1]))


def native_takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the operator runs on the native kernel, which is faster than scaled_dot_product_attention on blocks."""
    return backends.refusal("native", q, k, v) is None


def _gradients(grad: Tensor, out: Tensor, x: BlockOperands) -> tuple[Tensor, Tensor, Tensor]:
    q, block_size = x.q, x.block_size
    slots = block_slots(q, x.key_mask, x.cu_seqlens, block_size)
    counts = torch.ones_like(slots.slot, dtype=torch.bool) if x.key_mask is None else x.key_mask
    k, v = (torch.where(counts[:, None, :, None], t, 0.0) for t in (x.k, x.v))
    key_heads = k.shape[1]

    def blocks(t: Tensor) -> Tensor:
        """(B, heads, N, D) as (B, Hk, groups, blocks, block, D) in the compute dtype."""
        slotted = slots.scatter(t).to(compute_dtype(t.dtype))
        return slotted.unflatten(2, (-1, block_size)).unflatten(1, (key_heads, -1))

    blocked = [blocks(t) for t in (q, k, v, grad, out)]
    allowed = slots.scatter_mask(counts).unflatten(1, (-1, block_size))[:, None, None, :, None]  # keys that count
    if x.is_causal:
        allowed = allowed & torch.ones(block_size, block_size, dtype=torch.bool, device=q.device).tril()
    gradients = [torch.empty_like(t) for t in blocked[:3]]
    for start in range(0, blocked[0].shape[3], BLOCKS_AT_ONCE):
        at = slice(start, start + BLOCKS_AT_ONCE)
        parts = [t[:, :, :, at] for t in blocked]
        for whole, part in zip(gradients, _inside_blocks(parts, allowed[:, :, :, at], x.scale), strict=True):
            whole[:, :, :, at] = part
    return tuple(  # type: ignore[return-value]
        empty_output(t, t.shape[-1]).copy_(slots.gather(dt.flatten(3, 4).flatten(1, 2)))
        for t, dt in zip((q, k, v), gradients, strict=True)
    )


def _inside_blocks(parts: list[Tensor], allowed: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, grad, out = parts
    scores = scale * (q @ k.mT)  # (B, Hk, groups, blocks, block, block)
    weights = masked_softmax(scores, allowed.expand_as(scores))
    dscores = weights * (grad @ v.mT - (grad * out).sum(dim=-1, keepdim=True))
    dq = scale * (dscores @ k)
    dk = scale * (dscores.mT @ q).sum(dim=2, keepdim=True)  # the query heads of a key head add up
    dv = (weights.mT @ grad).sum(dim=2, keepdim=True)
    return dq, dk, dv
