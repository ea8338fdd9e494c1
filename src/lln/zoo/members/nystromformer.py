"""Nystromformer: softmax attention through landmarks.

    out = F Z B v,    F = softmax(q k~^T / sqrt d), A = softmax(q~ k~^T / sqrt d), B = softmax(q~ k^T / sqrt d), Z ~ A^+
    Z_0 = A^T / (|A|_1 |A|_inf),    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4

q~ and k~ are means over m consecutive segments of nearly equal size. Optionally a depthwise convolution of v is
added. Xiong et al. 2021, "Nystromformer", eqs. 13-15. Time O(N m d), memory O(N d) (F and B live in the fused kernel
only).
Departures: the norms in Z_0 are those of each matrix, not maxima over batch and heads as in the published code, so
that samples do not influence each other. Segments are of the tokens that count, so that padding changes nothing.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo.card import Card
from lln.zoo.kernels import divide
from lln.zoo.mechanism import Mechanism, Shape, queries_that_count
from lln.zoo.registry import register
from lln.zoo.scores import softmax_attention, softmax_matrix


@dataclass(frozen=True)
class Options:
    landmarks: int = 64
    iterations: int = 6
    convolution: int | None = None  # width of the depthwise convolution of v (the paper's is 33), None for none

    def __post_init__(self) -> None:
        if self.landmarks < 1 or self.iterations < 0:
            raise ValueError(f"landmarks must be >= 1 and iterations >= 0, got {self.landmarks} and {self.iterations}")
        if self.convolution is not None and (self.convolution < 1 or self.convolution % 2 == 0):
            raise ValueError(f"convolution must be a positive odd width or None, got {self.convolution}")


@register(
    Card(
        name="nystromformer",
        title="Nyströmformer",
        reference="Xiong et al. 2021",
        equation="softmax(q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ softmax(q̃ kᵀ) v, q̃ and k̃ means over segments",
        time="N m d",
        memory="N d",
        growth="linear",
        cross=True,
        dense=True,
        departures="Pseudo-inverse started per matrix; segments of unmasked tokens.",
    ),
    Options,
)
class Nystromformer(Mechanism):
    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.convolution: nn.Conv2d | None = None
        if options.convolution is not None:
            heads, width = shape.num_heads, options.convolution
            self.convolution = nn.Conv2d(heads, heads, (width, 1), padding=(width // 2, 0), groups=heads, bias=False)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if self.convolution is not None and q.shape[2] != k.shape[2]:
            raise ValueError(
                f"the convolution adds v at the queries' positions: it needs as many keys as queries, "
                f"got {k.shape[2]} and {q.shape[2]}"
            )
        q_mean, q_real = segment_means(q, queries_that_count(q, k, key_mask, query_mask), self.options.landmarks)
        k_mean, k_real = segment_means(k, key_mask, self.options.landmarks)
        keys = None if key_mask is None else key_mask[:, None, None, :]
        columns = None if k_real is None else k_real[:, None, None, :]
        seen = softmax_attention(q_mean, k, v, keys)  # (B, H, m, Dv): B v
        out = softmax_attention(q, k_mean, self._middle(q_mean, k_mean, q_real, k_real) @ seen, columns)
        return out if self.convolution is None else out + convolved(self.convolution, v)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        q_mean, q_real = segment_means(q, queries_that_count(q, k, key_mask, query_mask), self.options.landmarks)
        k_mean, k_real = segment_means(k, key_mask, self.options.landmarks)
        keys = pairs(None, key_mask, q_mean, k)
        columns = pairs(None, k_real, q, k_mean)
        middle = self._middle(q_mean, k_mean, q_real, k_real)
        matrix = softmax_matrix(q, k_mean, columns) @ middle @ softmax_matrix(q_mean, k, keys)
        return matrix if self.convolution is None else matrix + self._band(self.convolution, q, k) * keys[:, :, :1]

    def _middle(self, q_mean: Tensor, k_mean: Tensor, q_real: Tensor | None, k_real: Tensor | None) -> Tensor:
        core = softmax_matrix(q_mean, k_mean, pairs(q_real, k_real, q_mean, k_mean))
        return pseudo_inverse(core, self.options.iterations)

    def _band(self, convolution: nn.Conv2d, q: Tensor, k: Tensor) -> Tensor:
        """The convolution as a matrix (H, Nq, Nk)."""
        identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(self.shape.num_heads, -1, -1)
        return convolved(convolution, identity[None])[0]


def convolved(convolution: nn.Conv2d, v: Tensor) -> Tensor:
    """Along the positions, each head with its own taps, in the dtype of v."""
    return F.conv2d(v, convolution.weight.to(v.dtype), padding=convolution.padding, groups=convolution.groups)


def pairs(rows: Tensor | None, columns: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
    """Which (row, column) pairs exist, (B or 1, 1, Nq, Nk)."""
    allowed = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if rows is not None:
        allowed = allowed & rows[:, None, :, None]
    return allowed if columns is None else allowed & columns[:, None, None, :]


def segment_means(x: Tensor, mask: Tensor | None, segments: int) -> tuple[Tensor, Tensor | None]:
    """Means over `segments` runs of the tokens that count, (B, H, m, D), and which exist, (B, m) or None for all.

    Token number r of n belongs to segment floor(r m / n): runs differ by one token at most; with n < m some stay empty.
    """
    batch, heads, length, dim = x.shape
    if mask is None and length % segments == 0:
        return x.unflatten(2, (segments, -1)).mean(dim=3), None
    if mask is None:
        mask = torch.ones(batch, length, dtype=torch.bool, device=x.device)
    rank = mask.cumsum(dim=1) - 1
    count = mask.sum(dim=1, keepdim=True)
    segment = torch.where(mask, rank * segments // count.clamp(min=1), segments)  # (B, N); padding goes past the last
    sizes = x.new_zeros(batch, segments + 1).scatter_add(1, segment, torch.ones_like(segment, dtype=x.dtype))
    sums = x.new_zeros(batch, heads, segments + 1, dim).scatter_add(2, segment[:, None, :, None].expand_as(x), x)
    sizes, sums = sizes[:, :segments], sums[:, :, :segments]
    return sums / sizes.clamp(min=1)[:, None, :, None], sizes > 0


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """A^+ by the paper's iteration (eq. 15); rows and columns of zeros stay zero."""
    norm = matrix.abs().sum(dim=-1).amax(dim=-1) * matrix.abs().sum(dim=-2).amax(dim=-1)
    inverse = divide(matrix.transpose(-1, -2), norm[..., None, None])
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return inverse
