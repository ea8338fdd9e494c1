"""The quadratic kernel and its linear counterpart.

    form="linear":  out_i = sum_j q_i^2.k_j^2 v_j / sum_j q_i^2.k_j^2
    form="kernel":  out_i = sum_j (q_i.k_j)^2 v_j / sum_j (q_i.k_j)^2

Two of the kernels of Figure 2 in arXiv 2311.13541. The linear form takes O(N d^2) time and O(N d) memory, the kernel
O(N^2 d) and O(N^2).
Departures: none. Rows whose weights are all zero give zeros.
"""

from torch import Tensor

from lln.zoo.feature_kernel import FormOptions, KernelWithLinearForm, card
from lln.zoo.registry import register


@register(
    card(
        name="quadratic",
        title="Quadratic kernel",
        reference="Figure 2 of arXiv 2311.13541",
        equation="q² (k²ᵀ v) / q² k²ᵀ 1",
    ),
    FormOptions,
)
class Quadratic(KernelWithLinearForm):
    def feature(self, x: Tensor) -> Tensor:
        return x.square()
