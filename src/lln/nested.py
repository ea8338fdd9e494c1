"""Nested tensors, which torch's encoder makes of a padded batch where nothing learns: padded again for attention, and back."""

import torch
from torch import Tensor


class NoWeight:
    """In the place of a weight that a layer does not have in torch's form.

    torch's encoder looks at the weights of its first layer before it makes a nested tensor. It does not where one of them
    overrides torch's functions, as this one says it does, and so calls the layer with the padded batch.
    """

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        return NotImplemented


def padded(
    query: Tensor, key: Tensor | None, value: Tensor | None, padding: Tensor | None, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """Self-attention's input (B, N, E), with zeros where a sequence ended, and (B, N), True there."""
    if any(x is not None and x is not query for x in (key, value)) or padding is not None or not batch_first:
        raise ValueError(
            "a nested tensor is taken as query, key and value at once by a layer with batch_first=True, and says itself where "
            "sequences end: pass anything else padded, with key_padding_mask"
        )
    lengths = torch.tensor([row.shape[0] for row in query.unbind()], device=query.device)
    whole = query.to_padded_tensor(0.0)
    return whole, torch.arange(whole.shape[1], device=query.device) >= lengths[:, None]


def nested(x: Tensor, like: Tensor) -> Tensor:
    """(B, N, E) as a nested tensor with the lengths of `like`."""
    rows = [row[: other.shape[0]] for row, other in zip(x, like.unbind(), strict=True)]
    return torch.nested.as_nested_tensor(rows)
