"""Attention maps of softmax, LLN and LLN+Diag for the same queries and keys: those of a trained softmax model.

runs of one model, one input, and three matrices for each layer and head
"""

from typing import Any

import torch
from torch import Tensor, nn

from lln_lab.experiments.queries import lln_diag_matrix, matched_lln_matrix, queries_and_keys, softmax_matrix

KINDS = {"softmax": softmax_matrix, "lln": matched_lln_matrix, "lln_diag": lln_diag_matrix}


def attention_maps(model: nn.Module, tokens: Tensor, shown: int = 64) -> list[dict[str, Any]]:
    """The first `shown` rows and columns of every layer's and head's matrix, for each kind. tokens: (1, N).

    Matching and normalisation see the whole input; rows that are cut off do not sum to 1.
    """
    found = []
    for layer, (q, k) in enumerate(queries_and_keys(model, {"input_ids": tokens})):
        for kind, matrix in KINDS.items():
            whole = matrix(q, k)[0]  # (H, N, N)
            for head, cut in enumerate(whole[:, :shown, :shown]):
                rounded = (cut * 1e5).round().to(torch.int64)
                values = [[x / 1e5 for x in row] for row in rounded.tolist()]
                found.append({"attention": kind, "label": kind, "layer": layer, "head": head, "matrix": values})
    return found
