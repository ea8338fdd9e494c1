"""Linear attentions as instruments see them: a matrix of rank at most d, kept as its two factors.

    P_ij = phi_q(i) . phi_k(j) / D_i,    D_i = sum_j phi_q(i) . phi_k(j)        (eq. 4; v_j belongs inside the sum)

and LLN attention, phi_q = exp(alpha q + w), phi_k = exp(beta k) (eq. 8, eq. 9; w is the feature bias), in the form in which
every feature is in (0, 1] and every denominator at least 1. Both work in float64: the factors are small.
"""

import torch
from torch import Tensor

from lln.instruments.attention import AttentionMatrix
from lln.instruments.checks import check_finite, check_key_mask, check_queries_and_keys

ROWS_IN_CACHE = 2048  # features are made in pieces of this many rows: at length 65,536 memory traffic is what costs


class LinearMatrix(AttentionMatrix):
    """phi_q (B, Hq, Nq, F), phi_k (B, Hk, Nk, F): the features of queries and keys."""

    def __init__(
        self, phi_q: Tensor, phi_k: Tensor, *, key_mask: Tensor | None = None, is_causal: bool = False
    ) -> None:
        check_queries_and_keys(phi_q, phi_k)
        check_key_mask(key_mask, phi_k.shape[0], phi_k.shape[2])
        phi_k = phi_k.detach().double()
        if key_mask is not None:
            phi_k = torch.where(key_mask[:, None, :, None], phi_k, 0.0)
        self._set_features(phi_q.detach().to(torch.float64, copy=True), _match_heads(phi_k, phi_q), key_mask, is_causal)

    def _set_features(  # phi_q is overwritten
        self, phi_q: Tensor, phi_k: Tensor, key_mask: Tensor | None, is_causal: bool
    ) -> None:
        super().__init__((*phi_q.shape[:3], phi_k.shape[2]), torch.float64, phi_q.device)
        self.is_causal = is_causal
        self.row_mask = key_mask if phi_q.shape[2] == phi_k.shape[2] else None
        self.phi_q, self.phi_k = phi_q, phi_k
        self.phi_q = phi_q.div_(self._denominators()[..., None])

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
        if self.is_causal:
            denominators = (self.phi_q * self.phi_k.cumsum(2)).sum(-1)  # (B, H, Nq)
        else:
            denominators = (self.phi_q @ self.phi_k.sum(2)[..., None])[..., 0]
        counted = (
            denominators if self.row_mask is None else denominators[self.row_mask[:, None].expand_as(denominators)]
        )
        if not (counted > 0).all():
            raise ValueError(
                f"a row of this linear attention sums to {counted.min().item():.3g} before normalisation, so it is not a "
                "probability distribution: the features must be non-negative, and each query must share one with a key"
            )
        return denominators if self.row_mask is None else torch.where(denominators > 0, denominators, 1.0)

    def _past(self, index: Tensor) -> Tensor:
        return (torch.arange(self.shape[3], device=self.device) <= index[:, None]).double()


class LLNMatrix(LinearMatrix):
    """LLN attention of q, k with alpha (B, Hq, 1, D), beta (B, Hk, 1, D) and a feature bias, all broadcasting."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        alpha: Tensor | float,
        beta: Tensor | float,
        *,
        feature_bias: Tensor | float = 0.0,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> None:
        check_queries_and_keys(q, k)
        check_key_mask(key_mask, k.shape[0], k.shape[2])
        self.q, self.k = q.detach(), k.detach()
        self.alpha, self.beta, self.bias = (
            torch.atleast_1d(torch.as_tensor(x, dtype=torch.float64, device=q.device).detach())
            for x in (alpha, beta, feature_bias)
        )
        check_finite(alpha=self.alpha, beta=self.beta, feature_bias=self.bias)
        self._mask = key_mask
        log_phi_q, log_phi_k = self._log_features()
        highest = log_phi_k.amax(2, keepdim=True)  # (B, Hq, 1, D)
        for rows in log_phi_q.split(ROWS_IN_CACHE, dim=2):
            rows += highest
            rows.sub_(rows.amax(-1, keepdim=True)).exp_()
        for rows in log_phi_k.split(ROWS_IN_CACHE, dim=2):
            rows.sub_(highest).exp_()
        self._set_features(log_phi_q, log_phi_k, key_mask, is_causal)

    def _log_features(self) -> tuple[Tensor, Tensor]:
        """alpha q + w (B, Hq, Nq, D) and beta k (B, Hq, Nk, D), -inf for keys that do not count."""
        log_phi_q = _scaled(self.q, self.alpha)
        if self.bias.any():
            log_phi_q += self.bias
        log_phi_k = _scaled(self.k, self.beta)
        if self._mask is not None:
            log_phi_k.masked_fill_(~self._mask[:, None, :, None], -torch.inf)
        return log_phi_q, _match_heads(log_phi_k, log_phi_q)

    def log_rows(self, index: Tensor) -> Tensor:
        """In log space, feature by feature, only where the product of features has underflowed."""
        rows = self.rows(index)
        reachable = torch.ones_like(rows, dtype=torch.bool)  # (B, H, R, Nk)
        if self._mask is not None:
            reachable = reachable & self._mask[:, None, None]
        if self.is_causal:
            reachable = reachable & self._past(index).bool()
        if not (reachable & (rows == 0)).any():
            return rows.log()
        log_phi_q, log_phi_k = self._log_features()
        scores = torch.full_like(rows, -torch.inf)
        for feature in range(log_phi_q.shape[-1]):
            scores = torch.logaddexp(scores, log_phi_q[:, :, index, feature, None] + log_phi_k[:, :, None, :, feature])
        return torch.log_softmax(scores.masked_fill(~reachable, -torch.inf), dim=-1)


def _scaled(x: Tensor, factor: Tensor) -> Tensor:
    """factor * x in float64, converted piece by piece."""
    scaled = torch.empty(torch.broadcast_shapes(x.shape, factor.shape), dtype=torch.float64, device=x.device)
    for rows, out in zip(x.split(ROWS_IN_CACHE, dim=2), scaled.split(ROWS_IN_CACHE, dim=2), strict=True):
        torch.mul(rows.double(), factor, out=out)
    return scaled


def _match_heads(keys: Tensor, queries: Tensor) -> Tensor:
    """Key heads repeated for the query heads that share them."""
    groups = queries.shape[1] // keys.shape[1]
    return keys if groups == 1 else keys.repeat_interleave(groups, dim=1)
