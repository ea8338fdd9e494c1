"""LLN attention over frames: bidirectional inside a frame, causal between frames.

    out_i = sum_j P_ij v_j over the keys with frame(j) <= frame(i),      frame(i) = floor((i - first) / frame_size)

A frame is a bidirectional call whose starting state is that of all frames before it, so this is exact and linear, and takes
one call of the operation per frame. Frames count from the first key that counts, as blocks do, so that left padding changes
nothing.
"""

import torch

from lln.ops import graphs
from lln.ops.lln.op import Operands, Results, State, accumulation_dtype, attention
from lln.ops.slots import block_slots


def attention_over_frames(x: Operands, frame_size: int, backend: str) -> Results:
    """The results of `x`, whose `is_causal` is True, with its positions in frames; the last frame may be shorter."""
    if graphs.forms is not None:
        raise NotImplementedError(
            "frames are a loop of calls, which an exported graph cannot hold: export one frame, with the state it starts from"
        )
    slots = None if x.key_mask is None else block_slots(x.q, x.key_mask, None, frame_size)
    mask, (q, k, v) = x.key_mask, x[:3]
    if slots is not None and mask is not None:
        q, k, v, mask = *(slots.scatter(t) for t in (q, k, v)), slots.scatter_mask(mask)
    state = x.start or State.without_keys(x.beta, v.shape[-1], accumulation_dtype(q.device))
    rows = []
    for first in range(0, k.shape[2], frame_size):
        at = slice(first, first + frame_size)
        frame = x._replace(
            q=q[:, :, at], k=k[:, :, at], v=v[:, :, at], key_mask=None if mask is None else mask[:, at], is_causal=False
        )
        found = attention(frame.starting_from(state), backend)
        rows.append(found.out)
        state = found.state
    out = rows[0] if len(rows) == 1 else torch.cat(rows, dim=2)
    out = out if slots is None else slots.gather(out)
    return Results(out, *state.with_sums_in(x.sums_dtype))


def check_frame_size(frame_size: int, is_causal: bool, cu_seqlens: object, block_size: int | None = None) -> None:
    if not isinstance(frame_size, int) or isinstance(frame_size, bool) or frame_size < 1:
        raise ValueError(f"frame_size must be a whole number of at least 1, got {frame_size!r}")
    if not is_causal:
        raise ValueError("frames are causal between each other: frame_size needs is_causal=True")
    if cu_seqlens is not None:
        raise ValueError("packed sequences have no frames: run them as a padded batch with key_mask")
    if block_size is not None and frame_size % block_size:
        raise ValueError(
            f"a block of LLN+Diag must not reach into the next frame: frame_size must be a multiple of block_size, got "
            f"{frame_size} and {block_size}"
        )
