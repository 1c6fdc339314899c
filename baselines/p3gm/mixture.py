"""P3GM's first phase: private principal components of the records, and a private mixture of Gaussians among them.

Every release is a Gaussian mechanism for one record added or removed, where n is public: noise of `multiplier` times
the L2 sensitivity, which is given at each release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.dp_training.exact_products import exact_products
from bench.privacy.noise import Noise, Source

LEAST = 0.05
"""Smallest variance of a component over the mean variance of the codes, because noisy variances may be negative."""
CHUNK = 4096


@dataclass(frozen=True)
class Projection:
    """Projection of a record x (d,) on its code U^T clip((x - m) / C, 1), of norm at most 1, and back.

    Attributes:
        mean: m (d,).
        scale: C > 0.
        basis: U (d, k), orthonormal columns, by falling eigenvalue.
        variances: (k,) the components' noisy second moments, > 0.
    """

    mean: Tensor
    scale: float
    basis: Tensor
    variances: Tensor

    def rows(self, records: Tensor) -> Tensor:
        """Centre, scale and clip (n, d) records to norm at most 1."""
        return clipped(records, self.mean, self.scale)

    def encode(self, records: Tensor) -> Tensor:
        """Map (n, d) records to (n, k) codes."""
        with exact_products(records.device):
            return self.rows(records) @ self.basis

    def decode(self, codes: Tensor) -> Tensor:
        """Map (n, k) codes to (n, d) records; the inverse of `encode` for records in the subspace without clipping."""
        return self.mean + self.scale * codes @ self.basis.T


@dataclass(frozen=True)
class Mixture:
    """Weights (K,), means (K, k) and diagonal variances (K, k) of Gaussians."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def sample(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw (count, k) codes."""
        chosen = torch.multinomial(self.weights, count, replacement=True, generator=rng)
        drawn = torch.randn(count, self.means.shape[1], generator=rng, device=rng.device)
        return self.means[chosen] + self.variances[chosen].sqrt() * drawn

    def log_densities(self, codes: Tensor) -> Tensor:
        """Compute (n, K) logarithms of weight times density of each component."""
        distance = (codes[:, None] - self.means).square() / self.variances + self.variances.log()
        return self.weights.log() - (distance.sum(2) + codes.shape[1] * math.log(2 * math.pi)) / 2

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Compute (n,) bounds -log sum_k pi_k exp(-KL_k) of KL(N(mean, diag exp(log_variance)) || mixture).

        Exact for one component. KL_k = 1/2 sum_j (s_j / v_kj + (mean_j - m_kj)^2 / v_kj - 1 + log v_kj - log s_j).
        """
        gap = (mean[:, None] - self.means).square() + log_variance.exp()[:, None]
        each = (gap / self.variances - 1 + self.variances.log() - log_variance[:, None]).sum(2) / 2
        return -torch.logsumexp(self.weights.log() - each, 1)


def clipped(records: Tensor, mean: Tensor, scale: float) -> Tensor:
    """Compute (records - mean) / scale and clip rows to norm 1."""
    rows = (records - mean) / scale
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)


def private_mean(records: Tensor, multiplier: float, source: Source) -> Tensor:
    """Release 1/2 + (sum_i (x_i - 1/2) + noise) / n of records in [0, 1]^d: (d,) float32.

    A record moves the sum by at most sqrt(d) / 2.
    """
    n, d = records.shape
    total = (records - 0.5).sum(0, dtype=torch.float64)
    return (0.5 + Noise.of(source).gaussian(total, multiplier * math.sqrt(d) / 2) / n).float()


def private_components(
    records: Tensor, mean: Tensor, scale: float, count: int, multiplier: float, source: Source
) -> Projection:
    """Compute the top eigenvectors of sum_i r_i r_i^T + noise, r_i = clip((x_i - m) / C, 1) (Dwork et al. 2014).

    r r^T has Frobenius norm at most 1, and so has its upper triangle, to which the noise is added.
    """
    gram = noisy_gram(records, mean, scale, multiplier, source)
    values, vectors = torch.linalg.eigh(gram)
    top = values.argsort(descending=True)[:count]
    moments = (values[top] / len(records)).float()
    return Projection(mean, scale, vectors[:, top].float(), moments.clamp_min(1e-6))


def noisy_gram(records: Tensor, mean: Tensor, scale: float, multiplier: float, source: Source) -> Tensor:
    """Release sum_i r_i r_i^T + noise as of `private_components`: (d, d) float64, symmetric."""
    d = records.shape[1]
    gram = torch.zeros(d, d, dtype=torch.float64, device=records.device)
    for part in records.split(CHUNK):
        rows = clipped(part.double(), mean.double(), scale)
        gram += rows.T @ rows
    row, column = torch.triu_indices(d, d, device=records.device)
    gram[row, column] = Noise.of(source).gaussian(gram[row, column], multiplier)
    gram[column, row] = gram[row, column]
    return gram


def private_mixture(
    codes: Tensor,
    start: Mixture,
    iterations: int,
    multiplier: float,
    source: Source,
) -> Mixture:
    """Run expectation maximisation with noisy sums (Park et al. 2017), on codes of norm at most 1.

    With responsibilities r_ik that sum to 1 for every record, each iteration releases: sum_i r_i (K), if there is more
    than one component; sum_i r_ik z_i (K, k); and sum_i r_ik z_i^2 (K, k). As ||r_i|| <= 1, ||z_i|| <= 1 and
    ||z_i^2|| <= 1, a record moves each of them (the sums of all components together) by at most 1.

    Noisy parameters of small components are limited: variances to those of `start` and at least 1/20 of their mean,
    means to three of their deviations.
    """
    mixture, n = start, len(codes)
    least = LEAST * start.variances.mean().double()
    most = start.variances.double().clamp_min(least)
    for _ in range(iterations):
        counts, firsts, seconds = noisy_sums(codes, mixture, multiplier, source)
        counts = counts.clamp_min(n / len(counts) / 100)
        means = (firsts / counts[:, None]).clamp(-3 * most.sqrt(), 3 * most.sqrt())
        variances = (seconds / counts[:, None] - means.square()).clamp(least, most)
        mixture = Mixture((counts / counts.sum()).float(), means.float(), variances.float())
    return mixture


def noisy_sums(codes: Tensor, mixture: Mixture, multiplier: float, source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """Release the noisy sums of one iteration of `private_mixture`, float64: (K,), (K, k) and (K, k).

    For a single component the first sum is the number of records, which is public and gets no noise.
    """
    counts, firsts, seconds = _sums(codes, mixture)
    noise = Noise.of(source)
    if len(counts) > 1:
        counts = noise.gaussian(counts, multiplier)
    firsts = noise.gaussian(firsts, multiplier)
    seconds = noise.gaussian(seconds, multiplier)
    return counts, firsts, seconds


def _sums(codes: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """Compute sum_i r_i (K), sum_i r_ik z_i (K, k) and sum_i r_ik z_i^2 (K, k), in float64, without noise."""
    k, width = mixture.means.shape
    counts = torch.zeros(k, dtype=torch.float64, device=codes.device)
    firsts = torch.zeros(k, width, dtype=torch.float64, device=codes.device)
    seconds = torch.zeros_like(firsts)
    for part in codes.split(CHUNK):
        shares, wide = mixture.log_densities(part).double().softmax(1), part.double()
        counts += shares.sum(0)
        firsts += shares.T @ wide
        seconds += shares.T @ wide.square()
    return counts, firsts, seconds


def initial_mixture(projection: Projection, components: int, rng: torch.Generator) -> Mixture:
    """Build the start of expectation maximisation: equal weights, means and variances from the noisy second moments."""
    variances = projection.variances.expand(components, -1).contiguous()
    drawn = torch.randn(variances.shape, generator=rng, device=rng.device)
    means = drawn * variances.sqrt() if components > 1 else torch.zeros_like(variances)
    return Mixture(torch.full((components,), 1 / components, device=rng.device), means, variances)
