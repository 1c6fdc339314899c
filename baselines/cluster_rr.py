"""ClusterRR: labels are resampled from a noisy histogram of their cluster, and the loss is corrected for it.

Reference: Esfandiari, Mirrokni, Syed, Vassilvitskii, "Label Differential Privacy via Clustering", AISTATS 2022, the
central version. K classes, epsilon = epsilon1 + epsilon2, l the cross-entropy, f the student:

1. The records are clustered by their images, without any labels: k-means on principal components.
2. For every cluster c: n_c(y) + Laplace noise of scale 2 / epsilon1, for all classes y; q_c = their shares, where those
   below tau are raised to tau and the others scaled down.
3. y~_i = y_i with probability 1 - lambda, else a draw from q_c, c the cluster of i; once per label. lambda is the least
   with log(1 + (1 - lambda) / (lambda tau)) <= epsilon2.
4. The student descends l~(f, y~) = [l(f, y~) - lambda sum over y of q_c(y) l(f, y)] / (1 - lambda), whose mean over y~
   is l(f, y).

`loss posterior` descends the cross-entropy to (1 - lambda) e_y~ + lambda q_c instead, which is the label's posterior
given y~ by Bayes' rule, q_c being the prior. With one cluster, tau = 1 / K and epsilon1 -> 0 this method is randomised
response (`rr`). The undefended teacher of the run is not used.

Privacy. Replacing a label moves two counts of one cluster by 1 each: epsilon1 by Laplace noise of scale 2 / epsilon1.
Given the q_c, which depend only on the noisy counts, a label is randomised once:
P[y~ | y] = (1 - lambda) [y~ = y] + lambda q_c(y~), and the ratio for two labels is at most
1 + (1 - lambda) / (lambda tau) = e^epsilon2, as q_c >= tau. Together epsilon, with delta 0, for one label replaced
(unit `label`). The ledger has two coordinates with Laplace noise and a randomised response over two classes, which
dominates every epsilon2-private mechanism. Clustering uses no labels, and training is post-processing. The images are
used unprotected (unit `example`: no guarantee).

Differs from the paper:
- The paper's settings were not available: 100 clusters, a tenth of epsilon for the histograms, tau (0.01 up to ten
  classes) and the features (pixels) are this project's choices. The training settings are those of Ghazi et al. (2021),
  as in `rr`.
- The networks are the run's `--student`, `datalens` by default; the paper's network was not available.
- tau is a bound on q_c itself. Shares that are first raised to tau and then divided by their sum can fall below it
  again, and epsilon2 would not hold.
- The distributed version, where a user takes the label of another user, is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from dp_accounting import LaplaceDpEvent, NonPrivateDpEvent
from torch import Tensor

from bench import nets, validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure
from bench.data import to_float
from bench.dp_training.fixed_features import features_of
from bench.dp_training.label_privacy import label_claim, label_game, label_ledger, released, response_event
from bench.dp_training.noisy_label_training import (
    ADAM,
    NO_AUGMENTATION,
    NO_WARMUP,
    NO_WEIGHT_DECAY,
    QUICK,
    SMOKE,
    LabelPrivate,
    RowLoss,
)
from bench.dp_training.records import private_records
from bench.errors import BenchError
from bench.privacy import Budget, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.counts import noisy_counts, require_count_scale
from bench.privacy.events import check_response_epsilon
from bench.privacy.noise import Noise, Source
from bench.seeds import derive

SOURCE = "Esfandiari et al. 2022, noisy histograms of clusters and labels drawn from them"
WAVELETS = "scatter-linear"
"""The network of fixed wavelet features; it was not trained on any data."""
TAU = 0.01
"""Lower limit of a share, up to ten classes."""
LEAST_SHARE = 1e-3
"""Offset of the shares in the game of an audit, against a division by 0."""
MOST_EXACT = 4096
"""Largest number of features for which all principal components are computed; above it, only the leading ones."""
SEEN_ON_USPS = "tried on 1,200 images of USPS at epsilon 1, tier quick, one seed, and tested on 1,500 others"


@dataclass(frozen=True)
class ClusterRr(LabelPrivate):
    """Train on labels that are resampled from noisy histograms of clusters of similar images."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Esfandiari et al., Label DP via Clustering, AISTATS 2022, central version"
    tiers: ClassVar[Tiers] = {"smoke": SMOKE, "quick": QUICK}
    departures: ClassVar[tuple[Departure, ...]] = (
        ADAM,
        NO_WARMUP,
        NO_WEIGHT_DECAY,
        NO_AUGMENTATION,
        Departure(
            what="the student learns the label's posterior, and most of epsilon goes into the histograms",
            why="at epsilon 1 and tau 0.01 lambda is 0.985: the unbiased loss divides by 0.015, so that noise "
            f"dominates it; {SEEN_ON_USPS}",
            sets={"loss": "posterior", "share": 0.8},
            worth="76 % with a share of 0.5, 40 records per cluster and pixels, 9 % as printed (Adam in both)",
        ),
        Departure(
            what="up to 300 clusters by wavelet features (of the mean over colours), of 40 records or more on average",
            why="clusters by pixels mix classes, and counts of a few records are smaller than their noise; "
            f"{SEEN_ON_USPS}",
            sets={"features": "wavelets", "clusters": 300, "members": 40},
            worth="87 %, 76 % by pixels, both with a share of 0.5; 88 % with 0.8",
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"members": "clusters>1", "components": "clusters>1"}

    clusters: int = 100
    """Number of clusters; fewer for few records, see `members`."""
    members: int = 1
    """Smallest average number of records per cluster: at most records / members clusters are used."""
    features: Literal["pixels", "wavelets"] = "pixels"
    """Features for the clustering: pixels, or fixed wavelet features that were not trained on any data."""
    components: int = 50
    """Number of principal components of the features for k-means."""
    share: float = 0.1
    """Share of epsilon that is spent on the noisy histograms of the clusters (epsilon1 / epsilon)."""
    tau: float = 0.0
    """tau, smallest share of a class in a cluster, below 1 / K; 0 = 0.01, or a tenth of 1 / K above ten classes."""
    loss: Literal["debiased", "posterior"] = "debiased"
    """The paper's unbiased estimate of the loss (debiased), or the cross-entropy to the label's posterior."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "clusters", "members", "components")
        validate.positive(self, "share")
        validate.below(self, 1, "share")
        if self.tau:
            validate.between(self, 1e-6, 0.5, "tau")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse budgets that label privacy cannot meet, and a tau that is too large for the number of classes."""
        self._tau(classes)
        check_response_epsilon((1 - self.share) * self.epsilon_of(budget), 2)
        require_count_scale(
            "the scale of the noise on the histograms, in records,", self._scale(self.epsilon_of(budget))
        )

    def _tau(self, classes: int) -> float:
        if self.tau * classes >= 1:
            raise BenchError(
                f"--method.tau {self.tau:g} with {classes} classes: all shares would be equal; expected less than "
                f"{1 / classes:g}"
            )
        return self.tau or min(TAU, 0.1 / classes)

    def networks(self, shape: tuple[int, int, int], student: str) -> tuple[str, ...]:
        """Return the networks that are built in addition to the teacher's."""
        return (student, *(() if self.features == "pixels" else (WAVELETS,)))

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run ClusterRR on `teacher.private`; `teacher.model` is not used."""
        images, labels = private_records(teacher, ctx.device)
        epsilon, k, noise = self.epsilon_of(budget), teacher.classes, ctx.privacy_noise("cluster-rr")
        resampling = resampled_share((1 - self.share) * epsilon, self._tau(k))
        cluster = self.cluster(images, ctx)  # 1
        _, q, noisy = self.randomise(labels, cluster, k, epsilon, noise)  # 2 and 3
        model, records = self.network(teacher, student, ctx), torch.arange(len(labels), device=ctx.device)
        make_loss = debiased_loss if self.loss == "debiased" else posterior_loss
        loss = make_loss(noisy, q[cluster].float(), resampling)
        self.train(model, images, records, loss, ctx, "ClusterRR: training on labels drawn again")  # 4
        ledger, claim = self._ledger(epsilon), label_claim(epsilon, SOURCE)
        return released(model, student, ledger, claim, epsilon, resampling=resampling, clusters=float(len(q)))

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: noisy counts and noisy label of the only record of a cluster, of two classes."""
        epsilon = self.epsilon_of(budget)

        def answer(labels: Tensor, rng: torch.Generator) -> Tensor:
            noisy, q, again = self.randomise(labels, torch.arange(len(labels)), classes, epsilon, rng)
            # A noisy label of small share is seldom resampled and more often the true label, so it weighs more
            return torch.cat([noisy, F.one_hot(again, classes) / (q + LEAST_SHARE)], 1)

        return label_game(answer, [(0, 1)], self._ledger(epsilon), label_claim(epsilon, SOURCE), budget.delta)

    def cluster(self, images: Tensor, ctx: Context) -> Tensor:
        """Step 1: return the (n,) int64 index of each image's cluster; labels are not used."""
        from sklearn.cluster import KMeans

        if self.features == "pixels":
            rows = to_float(images).flatten(1)
        else:
            shape = (images.shape[1], images.shape[2], images.shape[3])
            rows = features_of(nets.build(WAVELETS, shape, 2), images, ctx)
        rows = principal_components(rows.double().cpu(), self.components).float()
        count = max(min(self.clusters, len(rows) // self.members), 1)
        seed = derive(ctx.seed, "cluster-rr/k-means") % 2**32
        found = KMeans(count, n_init=1, max_iter=30, random_state=seed).fit(rows.numpy()).labels_
        return torch.from_numpy(found).long().to(images.device)

    def _scale(self, epsilon: float) -> float:
        """Return the scale of the histograms' noise, in records; infinite if epsilon underflows."""
        first = self.share * epsilon
        return 2 / first if first else math.inf

    def randomise(
        self, labels: Tensor, cluster: Tensor, classes: int, epsilon: float, source: Source
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run steps 2 and 3, the only use of the labels.

        Returns:
            Noisy counts, (clusters, K) float64 shares q_c, and (n,) noisy labels.
        """
        second, tau = (1 - self.share) * epsilon, self._tau(classes)
        noisy = noisy_counts(counts(cluster, labels, classes), "laplace", self._scale(epsilon), source)  # 2
        q = floored_shares(noisy, tau)
        again = draw_again(labels, q[cluster], resampled_share(second, tau), second, source)  # 3
        return noisy, q, again

    def _ledger(self, epsilon: float) -> Ledger:
        if math.isinf(epsilon):
            return label_ledger(NonPrivateDpEvent(), "labels without noise")
        why = "Laplace noise on the label counts of clusters, two of which move"
        ledger = label_ledger(LaplaceDpEvent(2 / (self.share * epsilon)), why, count=2)
        answer = response_event((1 - self.share) * epsilon, 2)
        ledger.spend(answer, unit=Unit.LABEL, why="the label of a private record, drawn again from its cluster's")
        return ledger


def principal_components(rows: Tensor, count: int) -> Tensor:
    """Project (n, d) rows on their first principal components: (n, min(count, n, d)) float64."""
    if rows.shape[1] > MOST_EXACT:
        from sklearn.decomposition import PCA

        leading = PCA(min(count, *rows.shape), svd_solver="randomized", random_state=0)
        return torch.from_numpy(leading.fit_transform(rows.numpy()))
    centred = rows - rows.mean(0)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors
    return centred @ directions[:, -count:].flip(1)


def counts(cluster: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Count n_c(y): (clusters, classes) int64."""
    clusters = int(cluster.max()) + 1
    return torch.bincount(cluster * classes + labels, minlength=clusters * classes).view(clusters, classes)


def floored_shares(noisy: Tensor, tau: float) -> Tensor:
    """Return (clusters, K) float64 shares of noisy counts with no entry below tau; rows sum to 1.

    Shares below tau are raised to tau and the others scaled down. A cluster without a positive count has equal shares.
    """
    above = noisy.double().clamp_min(0)
    total = above.sum(1, keepdim=True)
    excess = (above / total.clamp_min(1e-300) - tau).clamp_min(0)
    sums = excess.sum(1, keepdim=True)
    even = torch.full_like(excess, 1 / noisy.shape[1])
    return torch.where(sums > 0, tau + (1 - tau * noisy.shape[1]) * excess / sums.clamp_min(1e-300), even)


def resampled_share(epsilon: float, tau: float) -> float:
    """Compute lambda = 1 / (1 + tau (e^epsilon2 - 1)), which solves log(1 + (1 - lambda) / (lambda tau)) = epsilon2.

    >>> round(resampled_share(math.log(11), 0.1), 12)
    0.5
    """
    return 0.0 if math.isinf(epsilon) else 1 / (1 + tau * math.expm1(epsilon))


def draw_again(labels: Tensor, q: Tensor, resampling: float, epsilon: float, source: Source) -> Tensor:
    """Step 3: keep each of (n,) labels with probability 1 - lambda, else draw it from its row of q.

    Args:
        labels: (n,) int64.
        q: (n, K) shares of each record's cluster.
        resampling: lambda.
        epsilon: epsilon2 of one label, from which `resampling` was computed.
        source: random source of the response.
    """
    noise = Noise.of(source)
    labels = noise.entering("response", labels, epsilon)
    n, rare = len(labels), min(resampling, 1 - resampling)
    rarely = noise.chance(rare, n).to(labels.device)
    again = rarely if resampling < 0.5 else ~rarely
    place = noise.uniform(n).to(labels.device)[:, None]
    drawn = (q.cumsum(1) <= place).sum(1).clamp(max=q.shape[1] - 1)
    return noise.released(torch.where(again, drawn, labels))


def debiased_loss(noisy: Tensor, q: Tensor, resampling: float) -> RowLoss:
    """Return the loss l~ of step 4, for (n,) noisy labels and the (n, K) shares q of their clusters."""

    def loss(logits: Tensor, chosen: Tensor, done: float) -> Tensor:
        each = -logits.log_softmax(1)
        own = each.gather(1, noisy[chosen][:, None])[:, 0]
        return (own - resampling * (q[chosen] * each).sum(1)) / (1 - resampling)

    return loss


def posterior_loss(noisy: Tensor, q: Tensor, resampling: float) -> RowLoss:
    """Return the loss: the cross-entropy to P[y | y~] = (1 - lambda) [y = y~] + lambda q(y), q being the prior."""
    target = resampling * q + (1 - resampling) * F.one_hot(noisy, q.shape[1])
    return lambda logits, chosen, done: -(target[chosen] * logits.log_softmax(1)).sum(1)
