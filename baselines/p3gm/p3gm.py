"""P3GM: private principal components and a private mixture as the code of an autoencoder trained by DP-SGD.

Reference: Takagi, Takahashi, Cao, Yoshikawa, "P3GM: Private High-Dimensional Data Release via Privacy Preserving Phased
Generative Model", ICDE 2021, in the corrected version, arXiv 2006.12101.

A record x is its pixels and its one-hot label, d numbers in [0, 1].

1. Encoding phase: the k top eigenvectors U of sum_i r_i r_i^T + N(0, sigma_p^2), r = clip((x - m) / C, 1); a record's
   code has mean U^T r, which is not trained.
2. A mixture of K Gaussians is fitted to the codes by noisy expectation maximisation, noise sigma_e.
3. The decoder is warmed up on codes drawn from the mixture, mapped back by U.
4. Decoding phase: decoder and variance network s(x) are trained by DP-SGD (noise sigma_s, Adam's step) on
   ||x - x^||^2 + KL(N(U^T r, diag s^2(x)) || mixture), the divergence by its variational bound.
5. z from the mixture, decoded; the label is the largest of the last outputs; the student is trained on these
   (`bench/dp_training/synthetic_data.py`).

Privacy. For one record added or removed, n being public: one Gaussian for step 1 (multiplier sigma_p), one for m where
it is paid for (sigma_m), Gaussians of sigma_e for step 2, Poisson-sampled ones of sigma_s for step 4; steps 3 and 5 are
post-processing. The claim is the paper's sum of Renyi divergences, with its 2K + 1 releases per iteration; the ledger
has three, two for K = 1, because the sums of all components together move by at most 1, and is composed by the bench's
accountant. `--solve sigma` multiplies the first three noises by one factor until they cost
`share` of epsilon (alone), then finds sigma_s for all; `--solve steps` finds T.

Defects of the published algorithm and code that are mended here: the ICDE version's private PCA (Wishart noise) was not
private; the mean m was used without noise, here it is 1/2 or paid for (`mean`); eigenvectors were taken in the order of
the solver, here by falling eigenvalue; the last code samples z from N(0, I), here from the mixture; batches were drawn
from fixed groups but accounted as Poisson samples, which they are here.

Differs from the paper:
- Noise is that of one record added or removed (sensitivity 1, not 2), and tighter for the variances: squares of a code
  of norm at most 1 have norm at most 1. Second moments are released and m_k^2 taken off, as m_k is noisy.
- K = 1 as in the authors' script (the paper may have 3). With K = 1 the counts are n, and not released.
- Expectation maximisation starts from the noisy eigenvalues, the variance network from a tenth of the mixture's mean
  variance; the mixture's variances are held between a twentieth of the eigenvalues' mean (over n) and the eigenvalues,
  its means within three deviations. The paper is silent.
- The divergence's bound is that of Hershey and Olsen (2007) for one Gaussian against a mixture; exact for K = 1.
- `scale` 0 clips records at sqrt(d / 12), the norm of independent uniform pixels, in the place of 1, so that most keep
  their length and the warm-up has full contrast.
- A student on 30,000 or 100,000 samples; the paper stops its own when test accuracy falls. Labels are as decoded, so
  classes are not quite even.
- With a budget, `share` of epsilon is for all before DP-SGD; 0.87 is the authors' division at epsilon 0.986.
- Tier `quick` has fewer steps and passes, `scale` 0, a share of 0.5, ten components, and pays for the mean (sigma_m);
  share and components were tried on the attacker's part of digits, which is neither private nor the test set, and the
  bounds on the mixture were set after a look at generated digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from scipy import special
from torch import Tensor

from baselines.p3gm.mixture import (
    Mixture,
    Projection,
    private_components,
    private_mean,
    private_mixture,
    spread,
)
from baselines.p3gm.network import Decoder, PhasedVae
from bench.api import Context, Teacher
from bench.data import to_float
from bench.dp_training.dp_sgd import MOST_STEPS, Group, add_noise, poisson_sample
from bench.dp_training.synthetic_data import SMOKE, Draw, PrivateGenerator, Synthesis
from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit, Unreachable, largest_count, smallest
from bench.privacy.accountant import epsilon as accounted_epsilon

ORDERS = np.arange(2, 513)


@dataclass(frozen=True)
class P3gm(PrivateGenerator):
    """Phased private generation; the defaults are those of the authors' script for MNIST, epsilon 0.986."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Takagi et al., P3GM, ICDE 2021 (corrected, arXiv 2006.12101)"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "latent": 4, "hidden": 16, "components": 2, "iterations": 2, "steps": 3, "warm": 3,
                  "batch": 40},
        "quick": {"evaluation": "fast", "mean": "paid", "scale": 0.0, "components": 10, "iterations": 5,
                  "share": 0.5, "steps": 400, "warm": 1000},
    }  # fmt: skip

    latent: int = 30
    """k, length of a code."""
    hidden: int = 1000
    """Width of decoder and variance network."""
    mean: Literal["half", "paid"] = "half"
    """m: 1/2 for all pixels, or the records' mean with noise sigma_m."""
    scale: float = 1.0
    """C, norm at which x - m is clipped; 0 = sqrt(d / 12)."""
    components: int = 1
    """K, Gaussians of the mixture."""
    iterations: int = 20
    """Iterations of expectation maximisation."""
    share: float = 0.87
    """Of epsilon, for all before DP-SGD: the first phase's noises are multiplied by one factor until they cost it."""
    noise_mean: float = 20.0
    """sigma_m, over the sensitivity, where the mean is paid for; times the factor."""
    noise_components: float = 5.0
    """sigma_p, over the sensitivity, of the eigenvectors; times the factor."""
    noise_mixture: float = 100.0
    """sigma_e, over the sensitivity, of every release of the mixture; times the factor."""
    noise_steps: float = 1.4
    """sigma_s, over the clipping norm, of the decoder's steps; solved from the budget unless --solve steps or none."""
    batch: int = 300
    """Expected lot, qn; a record is in it with probability batch / n, at most 1."""
    steps: int = 840
    """T, steps of the decoding phase; 840 are 4 passes over 63,000 records. Solved with --solve steps."""
    clip: float = 1.0
    """Clipping norm of one record's gradient."""
    rate: float = 1e-3
    """Learning rate of Adam."""
    warm: int = 3000
    """Steps of the decoder's warm-up; post-processing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("latent", "hidden", "components", "iterations", "batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("scale", "warm", "noise_mean", "noise_components", "noise_mixture", "noise_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a finite number of at least 0")
        if not 0 < self.share < 1:
            raise ValueError(f"share is {self.share}; expected 0 < share < 1")
        for name in ("clip", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Steps 1 to 4."""
        self.check(budget, teacher.dataset, teacher.classes)
        if self.latent > math.prod(teacher.shape):
            raise BenchError(f"latent is {self.latent}; expected at most the {math.prod(teacher.shape)} pixels")
        plan = self.solve(len(images), budget)
        answers = F.one_hot(labels, teacher.classes).float()
        records = torch.cat([to_float(images).flatten(1), answers], 1)
        projection = self._components(records, plan, ctx)
        codes = projection.encode(records)
        start = spread(projection, self.components, ctx.generator("mixture"))
        noise = ctx.privacy_noise("mixture")
        mixture = private_mixture(codes, start, plan.iterations, plan.mixture, noise)
        vae = ctx.prepared(PhasedVae(self.latent, self.hidden, teacher.shape, teacher.classes, mixture))
        self._warm_up(vae, projection, mixture, ctx)
        self._train(vae, records, codes, plan, ctx)
        decoder = vae.decoder.eval()
        solved = {"factor": plan.factor, "sigma": plan.gradients, "steps": float(plan.steps), "sampling": plan.sampling}
        return Synthesis(_drawing(decoder, mixture), plan.ledger(), plan.claim(budget.delta), solved, decoder)

    def solve(self, records: int, budget: Budget) -> Plan:
        """What `budget` allows for n records. Raises BenchError where that is nothing."""
        plan = Plan(
            mean=self.noise_mean if self.mean == "paid" else None,
            components=self.noise_components,
            mixture=self.noise_mixture,
            gradients=self.noise_steps,
            kinds=self.components,
            iterations=self.iterations,
            sampling=min(1.0, self.batch / records),
            steps=self.steps,
        )
        if budget.epsilon is None or budget.solve == "none":
            return plan
        if math.isinf(budget.epsilon):
            return replace(plan.scaled(0.0), gradients=0.0)
        try:
            if budget.solve == "steps":
                count = largest_count(lambda n: replace(plan, steps=n).cost(budget), budget.epsilon, MOST_STEPS)
                return replace(plan, steps=count)
            return plan.within(budget, self.share)
        except Unreachable as error:
            raise BenchError(f"--epsilon {budget.epsilon:g} --solve {budget.solve}: {error}") from None

    def _components(self, records: Tensor, plan: Plan, ctx: Context) -> Projection:
        """Step 1."""
        width = records.shape[1]
        mean = torch.full((width,), 0.5, device=records.device)
        if plan.mean is not None:
            mean = private_mean(records, plan.mean, ctx.privacy_noise("mean"))
        noise = ctx.privacy_noise("components")
        return private_components(
            records, mean, self.scale or math.sqrt(width / 12), self.latent, plan.components, noise
        )

    def _warm_up(self, vae: PhasedVae, projection: Projection, mixture: Mixture, ctx: Context) -> None:
        """Step 3."""
        rng, body = ctx.generator("warm-up"), vae.decoder.body
        optimizer = torch.optim.Adam(body.parameters(), lr=self.rate)
        with ctx.track("warming up the decoder", self.warm) as advance:
            for _ in range(self.warm):
                codes = mixture.sample(self.batch, rng)
                loss = (body(codes) - projection.decode(codes)).square().sum(1).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                advance(1)

    def _train(self, vae: PhasedVae, records: Tensor, codes: Tensor, plan: Plan, ctx: Context) -> None:
        """Step 4. The draws of z are indexed by the record: leaving one out of the batch moves nobody else's."""
        sampling, noise = ctx.privacy_noise("gradients/sampling"), ctx.privacy_noise("gradients/noise")
        rng = ctx.generator("codes")
        parameters = dict(vae.named_parameters())
        groups = [Group(tuple(parameters), self.clip, 1.0)]
        optimizer = torch.optim.Adam(parameters.values(), lr=self.rate)
        with ctx.track("training decoder and variances privately", plan.steps) as advance:
            for _ in range(plan.steps):
                chosen = poisson_sample(len(records), plan.sampling, sampling)
                draws = torch.randn(len(records), self.latent, generator=rng, device=rng.device)
                total = vae.clipped_sum(records[chosen], codes[chosen], draws[chosen], self.clip)
                add_noise(total, groups, plan.gradients, noise)
                for name, parameter in parameters.items():
                    parameter.grad = (total[name] / (plan.sampling * len(records))).to(parameter.dtype)
                optimizer.step()
                advance(1)
        optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class Plan:
    """What enters the mechanism.

    Attributes:
        mean, components, mixture, gradients: sigma_m (None where the mean is 1/2), sigma_p, sigma_e, sigma_s.
        kinds: K.
        iterations: of expectation maximisation.
        sampling: q in (0, 1].
        steps: T; 0 = the first phase alone.
        factor: what the first three of them were multiplied by.
    """

    mean: float | None
    components: float
    mixture: float
    gradients: float
    kinds: int
    iterations: int
    sampling: float
    steps: int
    factor: float = 1.0

    def scaled(self, by: float) -> Plan:
        """The first phase's noises times `by`."""
        mean = None if self.mean is None else by * self.mean
        return replace(
            self, mean=mean, components=by * self.components, mixture=by * self.mixture, factor=by * self.factor
        )

    def within(self, budget: Budget, share: float) -> Plan:
        """The first phase's noises times a factor, so that it costs `share` of the budget, then sigma_s for the rest.

        Raises:
            Unreachable: no noise is enough.
        """
        assert budget.epsilon is not None
        first = replace(self, steps=0)
        factor = smallest(lambda by: first.scaled(by).cost(budget), share * budget.epsilon, 0.25, 2.0)
        plan = self.scaled(factor)
        width = 1e-3 if budget.account == "claimed" else 5e-3
        sigma = smallest(lambda z: replace(plan, gradients=z).cost(budget), budget.epsilon, 0.5, 2.0, width)
        return replace(plan, gradients=sigma)

    def ledger(self) -> Ledger:
        """Every release, as what it is."""
        ledger = Ledger()
        if self.mean is not None:
            ledger.spend(_gaussian(self.mean), why="mean of the private records")
        ledger.spend(_gaussian(self.components), why="principal components of the private records")
        releases = self.iterations * (3 if self.kinds > 1 else 2)
        ledger.spend(_gaussian(self.mixture), count=releases, why="sums of expectation maximisation on private codes")
        event = _gaussian(self.gradients)
        if self.gradients > 0:
            event = PoissonSampledDpEvent(self.sampling, event)
        if self.steps:
            ledger.spend(event, count=self.steps, why="clipped gradients of a Poisson sample of the private records")
        return ledger

    def claim(self, delta: float) -> Claim:
        """The paper's sum of Renyi divergences, with 2K + 1 releases an iteration."""
        return Claim(self.renyi_epsilon(delta), delta, Unit.EXAMPLE, "P3GM 2021, Renyi composition of its phases")

    def cost(self, budget: Budget) -> float:
        """The number that `budget` holds."""
        if budget.account == "claimed":
            return self.renyi_epsilon(budget.delta)
        return accounted_epsilon(self.ledger(), Unit.EXAMPLE, budget.delta).epsilon

    def renyi_epsilon(self, delta: float) -> float:
        """min over integer orders a of R(a) + log((a - 1) / a) - (log delta + log a) / (a - 1) (Balle et al. 2020).

        R(a) = a/2 (1/sigma_m^2 + 1/sigma_p^2 + iterations (2K + 1) / sigma_e^2) + T S(a), S as `sampled_renyi`.
        """
        squares = [(self.components, 1), (self.mixture, self.iterations * (2 * self.kinds + 1))]
        if self.mean is not None:
            squares.append((self.mean, 1))
        if min(self.gradients, *(sigma for sigma, _ in squares)) <= 0:
            return math.inf
        plain = sum(count / sigma**2 for sigma, count in squares)
        total = ORDERS * plain / 2 + self.steps * sampled_renyi(self.sampling, self.gradients)
        spent = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        return max(0.0, float(spent.min()))


def sampled_renyi(sampling: float, sigma: float) -> np.ndarray:
    """Renyi divergence of the Poisson-sampled Gaussian at every order of `ORDERS` (Mironov, Talwar and Zhang 2019).

    log(sum_k binom(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 sigma^2))) / (a - 1), k from 0 to a.

    >>> float(sampled_renyi(1.0, 2.0)[0])
    0.25
    """
    a, k = ORDERS[:, None].astype(float), np.arange(ORDERS[-1] + 1)[None].astype(float)
    choose = special.gammaln(a + 1) - special.gammaln(k + 1) - special.gammaln(np.maximum(a - k, 0) + 1)
    terms = choose + special.xlog1py(np.maximum(a - k, 0), -sampling) + k * math.log(sampling)
    terms = np.where(k <= a, terms + (k * k - k) / (2 * sigma**2), -np.inf)
    return special.logsumexp(terms, axis=1) / (ORDERS - 1)


def _gaussian(multiplier: float) -> GaussianDpEvent | NonPrivateDpEvent:
    return GaussianDpEvent(multiplier) if multiplier > 0 else NonPrivateDpEvent()


def _drawing(decoder: Decoder, mixture: Mixture) -> Draw:
    """Step 5."""

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return decoder(mixture.sample(count, rng))

    return draw
