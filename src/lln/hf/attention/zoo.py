"""Every zoo member that is a function of q, k and v, as an attention function of transformers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lln import zoo
from lln.conversion.zoo_call import answered_by
from lln.hf.attention.call import in_rows, read_call, refuse_growing_cache
from lln.zoo.registry import member

KEPT = 8  # functions of a member, each for another greatest length
LONGEST_WITHOUT_POSITIONS = 4096  # for members whose weights depend on a greatest length, in models that state none


def function_names() -> list[str]:
    """Members without weights of their own, besides `lln` and `lln_diag`, which have functions of their own here."""
    return [name for name in zoo.names() if not zoo.card(name).learned and name not in ("lln", "lln_diag")]


def zoo_forward(name: str) -> Callable[..., tuple[Tensor, None]]:
    """The member `name` as (module, q, k, v, mask, ...) -> (B, N, H, D), None."""
    functions: dict[int, Callable[..., Tensor]] = {}
    has_seed = any(field.name == "seed" for field in dataclasses.fields(member(name).options))

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> tuple[Tensor, None]:
        call = read_call(module, query, key, value, attention_mask, scaling, dropout, options)
        if call.weights_wanted:
            raise ValueError(
                f"output_attentions: {name} gives no weights here; use attn_implementation='eager' to see them"
            )
        if call.window is not None:
            raise ValueError(f"{name} has no sliding window, but this layer has one of {call.window}")
        if call.layer is not None:
            raise ValueError(f"{name} keeps no state: generate with use_cache=False")
        refuse_growing_cache(call)
        longest = _longest(module, max(query.shape[2], key.shape[2]))
        if longest not in functions:
            while len(functions) >= KEPT:  # texts beyond the model's positions have a length each: the oldest goes
                del functions[next(iter(functions))]
            # the same draw of random features in every process and after every reload
            functions[longest] = zoo.attention(name, max_length=longest, **({"seed": 0} if has_seed else {}))
        out = in_rows(answered_by(functions[longest], call.as_one_row()), query.shape[0])
        out = F.dropout(out, dropout, module.training)
        return out.transpose(1, 2).contiguous(), None

    forward.__name__ = forward.__qualname__ = f"{name}_forward"
    return forward


def _longest(module: nn.Module, length: int) -> int:
    known = getattr(getattr(module, "config", None), "max_position_embeddings", None) or LONGEST_WITHOUT_POSITIONS
    return max(int(known), length)
