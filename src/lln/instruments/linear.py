"""Linear attentions as instruments see them: a matrix of rank at most d, kept as its two factors.

    P_ij = phi_q(i) . phi_k(j) / D_i,    D_i = sum_j phi_q(i) . phi_k(j)        (eq. 4; v_j belongs inside the sum)

and LLN attention, phi_q = exp(alpha q + w), phi_k = exp(beta k) (eq. 8, eq. 9; w is the feature bias), in the form in which
every feature is in (0, 1] and every denominator at least 1. Both work in float64: the factors are small.
"""

import torch
from torch import Tensor

from lln.instruments.attention import Attention
from lln.instruments.checks import check_finite, check_key_mask, check_queries_and_keys


class LinearAttention(Attention):
    """phi_q (B, Hq, Nq, F), phi_k (B, Hk, Nk, F): the features of queries and keys."""

    def __init__(
        self, phi_q: Tensor, phi_k: Tensor, *, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> None:
        check_queries_and_keys(phi_q, phi_k)
        check_key_mask(key_padding_mask, phi_k.shape[0], phi_k.shape[2])
        self.phi_q = phi_q.detach().double()
        self.phi_k = phi_k.detach().double().repeat_interleave(phi_q.shape[1] // phi_k.shape[1], dim=1)
        if key_padding_mask is not None:
            self.phi_k = torch.where(key_padding_mask[:, None, :, None], self.phi_k, 0.0)
        super().__init__((*phi_q.shape[:3], phi_k.shape[2]), torch.float64, phi_q.device)
        self.is_causal = is_causal
        self.row_mask = key_padding_mask if phi_q.shape[2] == phi_k.shape[2] else None
        self.phi_q = self.phi_q / self._denominators()[..., None]

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """A (B, H, Nq, F) and Phi_k (B, H, Nk, F) with P = A Phi_k^T; not for causal attention, whose rank is full."""
        if self.is_causal:
            raise ValueError("a causal linear attention does not factorise: its matrix is cut off above the diagonal")
        return self.phi_q, self.phi_k

    def rows(self, index: Tensor) -> Tensor:
        matrix = self.phi_q[:, :, index] @ self.phi_k.mT  # (B, H, R, Nk)
        return matrix * self._past(index) if self.is_causal else matrix

    def apply(self, values: Tensor) -> Tensor:
        values = values.double()
        if not self.is_causal:
            return self.phi_q @ (self.phi_k.mT @ values)
        return torch.cat([self.rows(index) @ values for index in self.row_chunks()], dim=2)

    def transpose(self, x: Tensor) -> Tensor:
        if self.is_causal:
            return super().transpose(x)
        return self.phi_k @ (self.phi_q.mT @ x.double())

    def _denominators(self) -> Tensor:
        total = self.phi_k.cumsum(2) if self.is_causal else self.phi_k.sum(2, keepdim=True)
        denominators = (self.phi_q * total).sum(-1)  # (B, H, Nq)
        counted = denominators if self.row_mask is None else denominators[self.row_mask[:, None].expand_as(denominators)]
        if not (counted > 0).all():
            raise ValueError(
                f"a row of this linear attention sums to {counted.min().item():.3g} before normalisation, so it is no "
                "probability distribution: the features must be non-negative, and each query must share one with a key"
            )
        return denominators if self.row_mask is None else torch.where(denominators > 0, denominators, 1.0)

    def _past(self, index: Tensor) -> Tensor:
        return (torch.arange(self.shape[3], device=self.device) <= index[:, None]).double()


class LLNAttention(LinearAttention):
    """LLN attention of q, k with alpha (B, Hq, 1, D), beta (B, Hk, 1, D) and a feature bias, all broadcasting."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        alpha: Tensor | float,
        beta: Tensor | float,
        *,
        feature_bias: Tensor | float = 0.0,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> None:
        check_queries_and_keys(q, k)
        check_key_mask(key_padding_mask, k.shape[0], k.shape[2])
        self.q, self.k = q.detach(), k.detach()
        self.alpha, self.beta, self.bias = (
            torch.as_tensor(x, dtype=torch.float64, device=q.device).detach() for x in (alpha, beta, feature_bias)
        )
        check_finite(alpha=self.alpha, beta=self.beta, feature_bias=self.bias)
        self.log_phi_q = self.alpha * self.q.double() + self.bias  # (B, Hq, Nq, D)
        log_phi_k = self.beta * self.k.double()  # (B, Hk, Nk, D)
        if key_padding_mask is not None:
            log_phi_k = log_phi_k.masked_fill(~key_padding_mask[:, None, :, None], -torch.inf)
        self.log_phi_k = log_phi_k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        highest = self.log_phi_k.amax(2, keepdim=True)  # (B, Hq, 1, D)
        shifted = self.log_phi_q + highest
        phi_q = (shifted - shifted.amax(-1, keepdim=True)).exp()
        phi_k = (self.log_phi_k - highest).exp()
        super().__init__(phi_q, phi_k, key_padding_mask=key_padding_mask, is_causal=is_causal)

    def log_rows(self, index: Tensor) -> Tensor:
        """In log space, feature by feature, only where the product of features has underflowed."""
        rows = self.rows(index)
        reachable = torch.isfinite(self.log_phi_k).any(-1)[:, :, None].expand_as(rows)  # (B, H, R, Nk)
        if self.is_causal:
            reachable = reachable & self._past(index).bool()
        if not (reachable & (rows == 0)).any():
            return rows.log()
        scores = torch.full_like(rows, -torch.inf)
        for feature in range(self.log_phi_q.shape[-1]):
            a = self.log_phi_q[:, :, index, feature, None]
            scores = torch.logaddexp(scores, a + self.log_phi_k[:, :, None, :, feature])
        return torch.log_softmax(scores.masked_fill(~reachable, -torch.inf), dim=-1)
