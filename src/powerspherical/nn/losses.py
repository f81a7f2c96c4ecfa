"""A contrastive loss for embeddings with an uncertainty: queries are distributions on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.nn.functional import cross_entropy

from powerspherical.distributions import HypersphericalUniform, RotationallySymmetric, pairwise_kl, validation


class ProbabilisticEmbeddingLoss(nn.Module):
    r"""Contrastive loss between B query distributions q_i and N targets x_j, where x_{y_i} belongs to q_i.

    With the scores s_ij = log q_i(x_j)/τ,

    .. math:: L = \frac{1}{B} \sum_i \Bigl[ \frac{1}{2}\bigl(\log\sum_j e^{s_{ij}} - s_{i y_i}\bigr)
              + \frac{1}{2}\bigl(\log\sum_{k \in K_i} e^{s_{k y_i}} - s_{i y_i}\bigr)
              + \beta\, \mathrm{KL}(q_i \Vert U) \Bigr].

    The first term identifies the target of a query. The normaliser of q_i cancels there, so that κ acts as the inverse
    temperature of the query. The second term identifies the query of a target, among K_i: the query i and all queries
    with another target. Both lower the κ of a query whose direction does not predict its target. The third term is the
    rate of the embedding. If the targets are distributions p_j too, the scores are s_ij = -KL(p_j‖q_i)/τ.

    Args:
        temperature: τ > 0.
        symmetric: whether to use the second term. Without it, the first term has the weight 1.
        beta: β ≥ 0, the weight of the rate KL(q_i‖U).

    >>> from powerspherical.nn import ProbabilisticEmbeddingLoss, SphericalHead
    >>> head, loss = SphericalHead(32, dim=16), ProbabilisticEmbeddingLoss()
    >>> queries = head(torch.randn(8, 32))
    >>> targets = torch.nn.functional.normalize(torch.randn(8, 16), dim=-1)
    >>> loss(queries, targets).shape
    torch.Size([])
    """

    def __init__(self, temperature: float = 1.0, *, symmetric: bool = True, beta: float = 0.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0, got {temperature}")
        if not beta >= 0:
            raise ValueError(f"beta must be ≥ 0, got {beta}")
        self.temperature, self.symmetric, self.beta = temperature, symmetric, beta

    def forward(
        self,
        queries: RotationallySymmetric,
        targets: Tensor | RotationallySymmetric,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean loss, a scalar in at least float32.

        Args:
            queries: distributions of batch shape (B,).
            targets: unit vectors of shape (N, d), or distributions of batch shape (N,).
            index: y_i, the number of the target of each query, integers of shape (B,). Default: 0, 1, …, B-1, which
                needs N = B. On CUDA their range is checked, by a host sync, only if ``queries`` checks values.

        >>> from powerspherical import VonMisesFisher
        >>> queries = VonMisesFisher(torch.eye(3)[:2], 5.0)
        >>> loss = ProbabilisticEmbeddingLoss()
        >>> loss(queries, torch.eye(3)[:2])
        tensor(0.0067)
        >>> loss(queries, torch.eye(3), index=torch.tensor([2, 2]))
        tensor(2.5067)
        """
        index = _checked_index(queries, targets, index)
        if isinstance(targets, Tensor):
            scores = queries.log_prob_matrix(targets) / self.temperature
        else:
            scores = -pairwise_kl(targets, queries).T / self.temperature
        loss = cross_entropy(scores, index)
        if self.symmetric:
            own = torch.arange(len(index), device=index.device)
            # Row i: the densities of all queries at the target of query i.
            at_target = scores.index_select(1, index).T
            same = (index.unsqueeze(1) == index) & (own.unsqueeze(1) != own)
            loss = 0.5 * (loss + cross_entropy(at_target.masked_fill(same, -torch.inf), own))
        if self.beta:
            uniform = HypersphericalUniform(queries.dim, validate_args=False)
            loss = loss + self.beta * kl_divergence(queries, uniform).mean()
        return loss

    def extra_repr(self) -> str:
        return f"temperature={self.temperature:g}, symmetric={self.symmetric}, beta={self.beta:g}"


def _checked_index(
    queries: RotationallySymmetric, targets: Tensor | RotationallySymmetric, index: Tensor | None
) -> Tensor:
    """Return the target of each query. Raise ``ValueError`` if the arguments do not fit together."""
    if not isinstance(queries, RotationallySymmetric):
        found = type(queries).__name__
        raise ValueError(f"queries must be distributions, such as SphericalHead returns, got {found}")
    if not isinstance(targets, (Tensor, RotationallySymmetric, HypersphericalUniform)):
        raise ValueError(f"targets must be a tensor or distributions of this package, got {type(targets)}")
    if len(queries.batch_shape) != 1:
        raise ValueError(f"queries must have a batch shape (B,), got {tuple(queries.batch_shape)}")
    rows = targets.shape[:-1] if isinstance(targets, Tensor) else targets.batch_shape
    if len(rows) != 1:
        raise ValueError(f"targets must have one batch axis, of N targets, got {tuple(rows)}")
    (count,), (others,) = queries.batch_shape, rows
    if index is None:
        if count != others:
            way_out = "pass index, the target of each query"
            raise ValueError(f"{count} queries and {others} targets do not pair up: {way_out}")
        return torch.arange(count, device=queries.loc.device)
    if not isinstance(index, Tensor):
        kind = type(index).__name__
        raise ValueError(f"index must be a tensor of {count} integers, got {kind}: pass torch.tensor(index)")
    if index.shape != (count,) or index.is_floating_point():
        found = f"{index.dtype} of shape {tuple(index.shape)}"
        raise ValueError(f"index must hold integers of shape ({count},), got {found}")
    if queries._validate_args or not index.is_cuda:
        validation.require([validation.between("index", index, 0, others - 1)])
    return index.long()
