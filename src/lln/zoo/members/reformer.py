"""Reformer: attention inside buckets of a locality-sensitive hash, over several rounds.

    k_j = q_j / |q_j|,    h(x) = argmax [x R; -x R],    round r: sort by (h, position), cut into chunks of m,
    P_i^r = {j: same bucket, in i's chunk or the one before},
    out_i = sum_{j in any P_i^r} softmax_j(q_i.k_j / sqrt d - 1e5 [i = j]) v_j

The rounds are computed one by one with weights exp(score)/n_ij, n_ij the number of rounds in which j is in P_i^r, and
added, which is the softmax over the union. Kitaev et al. 2020, "Reformer: The Efficient Transformer", eqs. 4-8 and
appendix A. Time O(R N (m d + log N)), memory O(R N (m + d)).
Departures: the number of buckets is a power of two near 2 max_length/m or, where no max_length is given, 2 n/m with the n
tokens of the sample that count, so that padding changes nothing; it is a product of hashes of at most 16 buckets each
(the paper factorises large numbers of buckets, too), and any number of buckets uses the first columns of one draw.
Bidirectional only: sorting moves chunk borders, so even masked to the past an output would depend on later
positions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.masks import masked_softmax
from lln.zoo.card import Card
from lln.zoo.kernels import divide
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.random import generator
from lln.zoo.registry import register

SELF_PENALTY = 1e5
LARGEST_HASH = 16
BITS = 4  # of the largest hash
MOST_BITS = 32  # more buckets than there can be tokens


@dataclass(frozen=True)
class Options:
    chunk: int = 64  # m
    rounds: int = 2  # R
    seed: int | None = None  # None draws from torch's global generator

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.rounds < 1:
            raise ValueError(f"chunk and rounds must be at least 1, got {self.chunk} and {self.rounds}")


@register(
    Card(
        name="reformer",
        title="Reformer",
        reference="Kitaev et al. 2020",
        equation="softmax over the tokens of i's hash buckets, k = q/|q|, union of R rounds",
        time="R N (m d + log N)",
        memory="R N (m + d)",
        growth="n log n",
        dense=True,
        deterministic=False,
        departures="Number of buckets from max_length or the unmasked tokens; k is ignored, keys are normalised queries.",
    ),
    Options,
)
class Reformer(Mechanism):
    shared_qk = True
    rotations: Tensor

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.bits = MOST_BITS if shape.max_length is None else bits_for(shape.max_length, options.chunk)
        self.hashes = hashes_of(self.bits)
        self.register_buffer("rotations", torch.empty(options.rounds, shape.head_dim, sum(self.hashes) // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As it was made; without a seed of its own, newly drawn."""
        self.redraw(self.options.seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draw new hash functions: always as many as there could be, so that max_length does not change the draw."""
        rounds, dim, columns = self.rotations.shape
        most = sum(hashes_of(MOST_BITS)) // 2
        drawn = torch.randn(rounds, dim, most, generator=generator(seed), dtype=torch.float64, device="cpu")
        self.rotations.copy_(drawn[..., :columns])

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        length, chunk = q.shape[2], min(self.options.chunk, q.shape[2])
        order, place = self._sorted(q, key_mask, chunk)  # (B, H, R, G, m) positions; (B, H, R, N') codes
        counts = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if key_mask is None else key_mask
        counts = F.pad(counts, (0, place.shape[-1] - length))[:, None].expand(-1, q.shape[1], -1)  # (B, H, N')
        extra = (0, 0, 0, place.shape[-1] - length)
        queries = in_order(F.pad(q, extra), order)  # (B, H, R, G, m, D)
        values = with_previous(in_order(F.pad(v, extra), order))  # (B, H, R, G, 2m, Dv)
        keys = with_previous(F.normalize(queries, dim=-1))

        scores = queries @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5 + self._bias(order, place, counts, q.dtype)

        flat = order.flatten(3)  # (B, H, R, N')
        top = scores.detach().amax(dim=-1).flatten(3)
        back = flat.argsort(dim=-1)  # where each position stands in each round
        top = top.gather(-1, back).amax(dim=2, keepdim=True)  # (B, H, 1, N'): one shift for all rounds of a row
        top = top.masked_fill(top == -torch.inf, 0.0).expand_as(flat).gather(-1, flat)
        weights = (scores - top.unflatten(-1, (-1, chunk))[..., None]).exp()
        summed = torch.cat([weights @ values, weights.sum(dim=-1, keepdim=True)], dim=-1).flatten(3, 4)
        total = summed.gather(3, back[..., None].expand_as(summed)).sum(dim=2)[:, :, :length]
        return divide(total[..., :-1], total[..., -1:])

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        length = q.shape[2]
        _, place = self._sorted(q, key_mask, min(self.options.chunk, length))
        place = place[..., :length]
        allowed = together(place[..., :, None], place[..., None, :]).any(dim=2)  # (B, H, N, N)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        scores = q @ F.normalize(q, dim=-1).transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores - SELF_PENALTY * torch.eye(length, dtype=q.dtype, device=q.device)
        return masked_softmax(scores, allowed)

    def buckets(self, q: Tensor, key_mask: Tensor | None) -> tuple[Tensor, int]:
        """The bucket of every token in every round, (B, H, R, N), and a number above all of them."""
        if self.shape.max_length is not None or key_mask is None:
            bits = self.bits if self.shape.max_length is not None else bits_for(q.shape[2], self.options.chunk)
            return self._hashed(q, bits), 2**bits
        bits_of = [bits_for(count, self.options.chunk) for count in key_mask.sum(dim=1).tolist()]
        bucket = torch.empty(len(q), q.shape[1], self.options.rounds, q.shape[2], dtype=torch.long, device=q.device)
        for bits in set(bits_of):
            samples = torch.tensor([b for b, own in enumerate(bits_of) if own == bits], device=q.device)
            bucket[samples] = self._hashed(q[samples], bits)
        return bucket, 2 ** max(bits_of)

    def _hashed(self, q: Tensor, bits: int) -> Tensor:
        hashes = hashes_of(bits)
        halves = [size // 2 for size in hashes]
        with torch.no_grad():
            rotated = q[:, :, None] @ self.rotations[..., : sum(halves)].to(q.dtype)  # (B, H, R, N, sum of halves)
            bucket = torch.zeros(rotated.shape[:-1], dtype=torch.long, device=q.device)
            for size, part in zip(hashes, rotated.split(halves, dim=-1), strict=True):
                bucket = bucket * size + torch.cat([part, -part], dim=-1).argmax(dim=-1)
        return bucket

    def _sorted(self, q: Tensor, key_mask: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
        """Positions by bucket, in chunks, and for each position a code that grows by one a chunk inside a bucket."""
        bucket, last = self.buckets(q, key_mask)
        if key_mask is not None:
            bucket = bucket.masked_fill(~key_mask[:, None, None, :], last)
        bucket = F.pad(bucket, (0, -q.shape[2] % chunk), value=last)  # what does not count stands at the end
        order = bucket.argsort(dim=-1, stable=True)  # (B, H, R, N')
        chunks = order.shape[-1] // chunk
        standing = torch.arange(order.shape[-1], device=q.device).expand_as(order)
        place = torch.empty_like(order).scatter_(-1, order, standing) // chunk
        return order.unflatten(-1, (chunks, chunk)), bucket * (chunks + 2) + place

    def _bias(self, order: Tensor, place: Tensor, counts: Tensor, dtype: torch.dtype) -> Tensor:
        """Added to the scores of each window: -log n_ij for pairs of P_i^r, -inf for others, (B, H, R, G, m, 2m)."""
        exists = with_previous(in_order(counts[..., None], order)).squeeze(-1)[..., None, :] & has_previous(order)
        rounds = order.shape[2]
        shared = torch.zeros(*order.shape, 2 * order.shape[-1], dtype=torch.int8, device=order.device)
        own = torch.zeros_like(shared, dtype=torch.bool)
        for r in range(rounds):
            code = in_order(place[:, :, r, :, None].to(torch.int32), order).squeeze(-1)  # (B, H, R, G, m)
            pairs = together(code[..., :, None], with_previous(code)[..., None, :])
            shared += pairs
            own[:, :, r] = pairs[:, :, r]
        bias = torch.zeros_like(shared, dtype=dtype)
        for times in range(2, rounds + 1):
            bias.masked_fill_(shared == times, -math.log(times))
        bias.masked_fill_(~(own & exists), -torch.inf)
        size = order.shape[-1]
        bias[..., size:].diagonal(dim1=-2, dim2=-1).sub_(
            SELF_PENALTY
        )  # the second half of a window is the chunk itself
        return bias


def bits_for(tokens: int, chunk: int) -> int:
    """The logarithm of the number of buckets for so many tokens: near 2 tokens/m, two at the least."""
    return min(MOST_BITS, max(1, round(math.log2(max(2.0, 2 * tokens / chunk)))))


def hashes_of(bits: int) -> list[int]:
    """How many buckets each hash has whose product is 2^bits."""
    return [LARGEST_HASH] * (bits // BITS) + ([2 ** (bits % BITS)] if bits % BITS else [])


def together(i: Tensor, j: Tensor) -> Tensor:
    """Same bucket, and j's chunk is i's or the one before: codes that differ by 0 or 1."""
    return (i == j) | (i - 1 == j)


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """x (B, H, N, D) at positions order (B, H, R, G, m) -> (B, H, R, G, m, D)."""
    index = order.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, index).unflatten(2, order.shape[2:])


def with_previous(x: Tensor) -> Tensor:
    """(B, H, R, G, m, ...) -> (B, H, R, G, 2m, ...): the chunk before and the chunk; the first has itself before it."""
    return torch.cat([torch.cat([x[:, :, :, :1], x[:, :, :, :-1]], dim=3), x], dim=4)


def has_previous(order: Tensor) -> Tensor:
    """(G, 1, 2m): False for the copy that stands before the first chunk."""
    chunks, size = order.shape[3:]
    first = torch.arange(chunks, device=order.device)[:, None, None] == 0
    copied = torch.arange(2 * size, device=order.device) < size
    return ~(first & copied)
