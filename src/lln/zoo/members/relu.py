"""The ReLU kernel and its linear counterpart.

    form="linear":  out_i = sum_j relu(q_i).relu(k_j) v_j / sum_j relu(q_i).relu(k_j)
    form="kernel":  out_i = sum_j relu(q_i.k_j) v_j / sum_j relu(q_i.k_j)

Two of the kernels of Figure 2 in arXiv 2311.13541. The linear form takes O(N d^2) time and O(N d) memory, the kernel
O(N^2 d) and O(N^2).
Departures: none. Rows whose weights are all zero give zeros.
"""

import torch.nn.functional as F
from torch import Tensor

from lln.zoo.feature_kernel import FormOptions, KernelWithLinearForm, card
from lln.zoo.registry import register


@register(
    card(
        name="relu",
        title="ReLU kernel",
        reference="Figure 2 of arXiv 2311.13541",
        equation="relu(q) (relu(k)ᵀ v) / relu(q) relu(k)ᵀ 1",
    ),
    FormOptions,
)
class Relu(KernelWithLinearForm):
    def feature(self, x: Tensor) -> Tensor:
        return F.relu(x)
