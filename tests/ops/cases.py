"""Drawn inputs of the operator: shapes, dtypes, scales, masks, strides."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from lln.ops.lln import Operands, compute_dtype

MASKS = ("none", "right", "left", "holes", "some samples empty")
LAYOUTS = ("contiguous", "heads inside", "sliced", "reversed features")


@dataclass(frozen=True)
class Case:
    """Everything that makes an input, small enough to read in a failure message."""

    batch: int
    key_heads: int
    groups: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    dtype: torch.dtype
    sigma: float
    mask: str
    layout: str
    causal: bool
    packed: bool
    biased: bool
    seed: int

    @property
    def sequences(self) -> int:
        return 3 if self.packed else self.batch


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor  # (S, Hq, D)
    beta: Tensor  # (S, Hk, D)
    bias: Tensor | None  # (S, Hq, D)
    key_mask: Tensor | None
    cu_seqlens: Tensor | None
    causal: bool

    @property
    def operands(self) -> Operands:
        return Operands(
            self.q,
            self.k,
            self.v,
            self.alpha,
            self.beta,
            self.bias,
            self.key_mask,
            self.cu_seqlens,
            is_causal=self.causal,
        )

    @property
    def differentiable(self) -> tuple[Tensor, ...]:
        bias = () if self.bias is None else (self.bias,)
        return (self.q, self.k, self.v, self.alpha, self.beta, *bias)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    causal, packed = draw(st.booleans()), draw(st.sampled_from((False, False, True)))
    queries = draw(st.one_of(st.integers(1, 12), st.integers(13, 150), st.sampled_from((63, 64, 65, 127, 128, 129))))
    keys = queries if causal or packed else draw(st.integers(1, 150))
    return Case(
        batch=1 if packed else draw(st.integers(1, 3)),
        key_heads=draw(st.integers(1, 3)),
        groups=draw(st.integers(1, 3)),
        queries=queries,
        keys=keys,
        dim=draw(st.sampled_from((1, 2, 7, 8, 16, 32, 33, 64))),
        value_dim=draw(st.sampled_from((1, 5, 8, 16, 32, 64))),
        dtype=draw(st.sampled_from((torch.float16, torch.bfloat16, torch.float32, torch.float32, torch.float64))),
        sigma=draw(st.sampled_from((1e-3, 0.1, 1.0, 1.0, 3.0, 16.0, 64.0))),
        mask="none" if packed else draw(st.sampled_from(MASKS)),
        layout=draw(st.sampled_from(LAYOUTS)),
        causal=causal,
        packed=packed,
        biased=draw(st.booleans()),
        seed=draw(st.integers(0, 10_000)),
    )


def build(case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    heads, scale_dtype = case.key_heads * case.groups, compute_dtype(case.dtype)
    q = normal(case.batch, heads, case.queries, case.dim) * case.sigma
    k = normal(case.batch, case.key_heads, case.keys, case.dim) * case.sigma
    v = normal(case.batch, case.key_heads, case.keys, case.value_dim)
    alpha = 0.5 + 2 * uniform(case.sequences, heads, case.dim)
    beta = 0.5 + 2 * uniform(case.sequences, case.key_heads, case.dim)
    if case.seed % 5 == 0:  # learned scales may be of either sign
        beta = beta * torch.where(uniform(*beta.shape) < 0.3, -1.0, 1.0)
    bias = 2 * normal(case.sequences, heads, case.dim) if case.biased else None
    tensors = (lay_out(x.to(case.dtype), case.layout) for x in (q, k, v))
    return Inputs(
        *tensors,
        alpha.to(scale_dtype),
        beta.to(scale_dtype),
        None if bias is None else bias.to(scale_dtype),
        key_mask(case.mask, case.batch, case.keys, generator),
        boundaries(case.keys, generator) if case.packed else None,
        case.causal,
    )


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same values with other strides."""
    if layout == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        wide = torch.full((*x.shape[:2], x.shape[2] + 3, x.shape[3] + 5), torch.nan, dtype=x.dtype)
        wide[:, :, 2:-1, 1 : 1 + x.shape[3]] = x
        return wide[:, :, 2:-1, 1 : 1 + x.shape[3]]
    if layout == "reversed features":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x.contiguous()


def key_mask(kind: str, batch: int, keys: int, generator: torch.Generator) -> Tensor | None:
    if kind == "none":
        return None
    position = torch.arange(keys)
    lengths = torch.randint(1, keys + 1, (batch, 1), generator=generator)
    if kind == "right":
        return position < lengths
    if kind == "left":
        return position >= keys - lengths
    mask = torch.rand(batch, keys, generator=generator) < 0.6
    if kind == "some samples empty":
        mask[0] = False
    return mask


def boundaries(total: int, generator: torch.Generator) -> Tensor:
    """Three packed sequences, some of which may be empty."""
    inner = torch.randint(0, total + 1, (2,), generator=generator).sort().values
    return torch.cat([torch.tensor([0]), inner, torch.tensor([total])])
