"""DPGEN: a score network of noisy private images with targets from a randomised response. Not private.

Reference: Chen, Yu, Kao, Pang, Lu, "DPGEN: Differentially Private Generative Energy-Guided Network for Natural Image
Synthesis", CVPR 2022, as in its released code (losses/dsm.py and notebooks). It is included to demonstrate its flaw; it
has no finite epsilon.

1. x_1, ..., x_k: a minibatch of private images. For `queries` of them x~_i = x_i + sigma_l z, z ~ N(0, I), l a random
   one of L levels.
2. Randomised response over the minibatch: r = i with probability e^epsilon / (e^epsilon + k - 1), each of the others
   with 1 / (e^epsilon + k - 1).
3. sigma = sigma_l, if max |x_r - x~_i| <= 5 sigma_l; else the next larger level for which that holds, or the largest.
4. (x~_i, x_r, sigma) is added to a buffer, until the buffer is full.
5. The score network learns s(x~, sigma) = (x_r - x~) / sigma^2, weighted by sigma^2, from batches of the buffer; its
   weights are averaged.
6. Images are drawn by annealed Langevin dynamics, without labels, and labelled by a classifier of the private records:
   the bench's teacher. The student is trained on these (`bench/dp_training/synthetic_data.py`).

Privacy. None, and the ledger says so. The claim is epsilon at delta 0, of one response, with arbitrary post-processing;
it is disputed for `answers-are-the-records`:
- The possible responses are the private records themselves. Without record x no response is x; with it one is, with
  probability e^epsilon / (e^epsilon + k - 1). No finite epsilon permits this. `bench audit mechanism --method dpgen`
  plays this game.
- x~_i is record i with noise of deviation 0.01 at the last level, and is in the buffer for every response.
- A record is in many minibatches, as the true image and as an alternative; this is not composed.
- The classifier that labels the samples is trained on the private records without any protection.
- The network is trained on the buffer without clipping and without noise, so that there is no later protection.

The authors' notebooks measure accuracy element by element of the one-hot target, after rounding: a constant prediction
has 0.9 by this measure, a wrong one 0.8. Accuracy is top-1 here; published numbers may be of the other kind.

Differs from the paper:
- The buffer is filled before the training, in the code during it; each minibatch is drawn without replacement.
- The network `refine` is smaller than the code's RefineNet: five blocks with InstanceNorm++, with factors initialised
  at 1 and not around 1, and ELU.
- The classifier of step 6 is the bench's teacher, in the code a separate small network.
- Adam's rate, batches, averaging, levels and dynamics are the code's. With k above the number of records all are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from dp_accounting import NonPrivateDpEvent
from torch import Tensor, nn

from baselines.dpgen.score_network import DenseScore, RefineScore, langevin, noise_levels
from bench import validate
from bench.api import Context, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.data import to_float
from bench.dp_training.dp_sgd import WeightAverage
from bench.dp_training.synthetic_data import QUICK, SMOKE, STUDENT_BY_ADAM, Draw, PrivateGenerator, Synthesis
from bench.errors import BenchError
from bench.privacy import Budget, Claim, Ledger, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.budget import refuse_finite_budget
from bench.privacy.events import check_response_epsilon
from bench.privacy.mechanisms import randomised_response
from bench.privacy.noise import Source

SOURCE = "DPGEN (Chen et al. 2022), one randomised response"
DISPUTED = "answers-are-the-records"
AT_ONCE = 5000
"""Number of plays of an audit that are simulated at once."""
NEAR = 5.0
"""Largest distance of a pixel of the response from the noisy image, in deviations of the noise."""


@dataclass
class Pairs:
    """The buffer of training pairs.

    Attributes:
        noisy, answers: (n, c, h, w) noisy images x~ and responses x_r.
        sigma: (n,) deviations of the noise.
        chosen: (n,) r as indices of records; the training does not use them.
    """

    noisy: Tensor
    answers: Tensor
    sigma: Tensor
    chosen: Tensor


@dataclass(frozen=True)
class Dpgen(PrivateGenerator):
    """Train a student on a score network's samples, labelled by an unprotected classifier; not private.

    The defaults are the released code's.
    """

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen, Yu, Kao, Pang and Lu, DPGEN, CVPR 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"private_data", "teacher"})
    tiers: ClassVar[Tiers] = {
        "smoke": {**SMOKE, "buffer": 64, "steps": 3, "batch": 16, "levels": 3, "width": 8},
        "quick": {**QUICK, "samples": 8000, "passes": 12, "buffer": 30_000, "steps": 2500, "width": 512,
                  "levels": 10},
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        Departure(
            what="a network of dense layers that predicts the image, trained by Adam at 0.001",
            why="300,000 steps of convolutions at full size take days on two cores",
            sets={"network": "dense", "rate": 0.001},
        ),
        Departure(
            what="levels fall from 3 to 0.2, and a step at the last one is 0.3 of its variance",
            why="232 levels from 50 to 0.01 are too many network calls on two cores; 10 levels are further apart and "
            "need longer steps to reach equilibrium; dense layers do not learn noise below 0.1; chosen on toy images",
            sets={"most": 3.0, "least": 0.2, "step": 0.012},
        ),
        Departure(
            what="images are not mirrored",
            why="mirrored digits are not digits, and the classifier was not trained on them",
            sets={"mirrored": False},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"most": "levels>1"}

    response: float = 10.0
    """epsilon of a response; determined by the budget, unless --epsilon none or --solve none."""
    candidates: int = 256
    """k, number of images in a minibatch, which are the possible responses."""
    queries: int = 128
    """Number of randomised responses per minibatch."""
    buffer: Size[int] = 60_000
    """Number of training pairs in the buffer."""
    network: Literal["refine", "dense"] = "refine"
    """Score network: convolutions with InstanceNorm++, or dense layers."""
    width: Size[int] = 128
    """Channels (refine) or hidden units (dense) of the score network."""
    levels: Size[int] = 232
    """L, number of noise levels, in geometric steps from `most` to `least`."""
    most: float = 50.0
    """sigma_1, the largest deviation of the noise, for pixels in [0, 1]."""
    least: float = 0.01
    """sigma_L, the smallest deviation of the noise."""
    steps: Size[int] = 300_000
    """Training steps of the score network."""
    batch: Size[int] = 128
    """Pairs of the buffer per training step of the score network."""
    rate: float = 1e-4
    """Learning rate of the score network's Adam optimiser."""
    average: float = 0.999
    """Decay of the exponential average of the score network's weights; 0 = the last weights."""
    mirrored: bool = True
    """Mirror half of the private images; wrong for digits."""
    each: int = 5
    """Langevin steps per noise level, in sampling."""
    step: float = 6.2e-6
    """Size of a Langevin step at the last noise level."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "queries", "buffer", "levels", "steps", "batch", "each")
        validate.at_least(self, 2, "candidates", "width")
        validate.at_least(self, 0, "response", "average")
        validate.below(self, 1, "average")
        validate.positive(self, "most", "least", "rate", "step")
        if self.most < self.least or self.queries > self.candidates:
            raise ValueError(
                f"most is {self.most:g}, least {self.least:g}, queries {self.queries}, candidates {self.candidates}; "
                "expected most >= least and queries <= candidates"
            )

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit than one record, a finite accounted epsilon, and --solve steps, before any training."""
        refuse_finite_budget(budget, (Unit.EXAMPLE,), "the possible responses are the private records")
        if budget.solve == "steps":
            raise BenchError("--solve steps: the claim is the same after any number of steps; use --solve sigma")
        check_response_epsilon(self.epsilon(budget), self.candidates)

    def epsilon(self, budget: Budget) -> float:
        """Return epsilon of a response, which is the whole budget as in the paper."""
        if budget.epsilon is None or (budget.solve == "none" and math.isfinite(budget.epsilon)):
            return self.response
        return budget.epsilon

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 6."""
        self.check(budget, teacher.dataset, teacher.classes)
        epsilon, levels = self.epsilon(budget), self.noise_levels(ctx.device)
        pairs = self.pairs(images, epsilon, levels, ctx.generator("pairs"), ctx.privacy_noise("responses"))
        network = ctx.prepared(self._network(teacher.shape))
        self._fit(network, pairs, ctx)
        claim = Claim(epsilon, 0.0, Unit.EXAMPLE, SOURCE, disputed=DISPUTED)
        solved = {"response_epsilon": epsilon} if math.isfinite(epsilon) else {}
        return Synthesis(self._draw(network, levels, teacher), unprotected_ledger(), claim, solved)

    def noise_levels(self, device: torch.device) -> Tensor:
        """Return sigma_1 > ... > sigma_L."""
        return noise_levels(self.most, self.least, self.levels).to(device)

    def pairs(self, images: Tensor, epsilon: float, levels: Tensor, rng: torch.Generator, source: Source) -> Pairs:
        """Run steps 1 to 4, of (n, c, h, w) uint8 images."""
        found: list[Pairs] = []
        while sum(len(each.sigma) for each in found) < self.buffer:
            order = torch.randperm(len(images), generator=rng, device=images.device)[: self.candidates]
            x = to_float(images[order])
            if self.mirrored:
                flip = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) < 0.5
                x = torch.where(flip, x.flip(3), x)
            made = responses(x, min(self.queries, len(x)), epsilon, levels, rng, source)
            made.chosen = order[made.chosen]
            found.append(made)
        parts = ([getattr(each, name) for each in found] for name in ("noisy", "answers", "sigma", "chosen"))
        return Pairs(*(torch.cat(part)[: self.buffer] for part in parts))

    def _network(self, shape: tuple[int, int, int]) -> nn.Module:
        return RefineScore(shape, self.width) if self.network == "refine" else DenseScore(shape, self.width)

    def _fit(self, network: nn.Module, pairs: Pairs, ctx: Context) -> None:
        """Run step 5 in place; the network ends with its averaged weights."""
        rng, optimizer = ctx.generator("score network"), torch.optim.Adam(network.parameters(), lr=self.rate)
        average = WeightAverage(dict(network.named_parameters()), self.average)
        with ctx.track("score network", self.steps) as advance:
            for _ in range(self.steps):
                chosen = torch.randint(len(pairs.sigma), (self.batch,), generator=rng, device=rng.device)
                noisy, sigma = pairs.noisy[chosen], pairs.sigma[chosen]
                loss = score_loss(network(noisy, sigma), noisy, pairs.answers[chosen], sigma)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                average.update()
                advance(1)
        average.apply()
        optimizer.zero_grad(set_to_none=True)
        network.eval()

    def _draw(self, network: nn.Module, levels: Tensor, teacher: Teacher) -> Draw:
        """Run step 6."""

        @torch.no_grad()
        def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
            start = torch.rand(count, *teacher.shape, generator=rng, device=rng.device)
            images = langevin(network, start, levels, self.each, self.step, rng).clamp(0, 1)
            return images, teacher.model(images).argmax(1)

        return draw

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: a response for a white image among black ones, or for a black image."""
        epsilon = self.epsilon(budget)

        def play(hypothesis: bool, n: int, generator: torch.Generator) -> Tensor:
            x = torch.zeros(self.candidates, 1, 1, 1)
            x[0] = float(hypothesis)
            parts = torch.zeros(n, dtype=torch.int64).split(AT_ONCE)
            return torch.cat([x[respond(part, len(x), epsilon, generator)].flatten(1) for part in parts])

        describe = f"the response for one of {self.candidates} images, white or black; all others are black"
        return DistinguishingGame(play, epsilon, math.inf, 0.0, describe)


def unprotected_ledger() -> Ledger:
    """Return the ledger of two unprotected uses of the private records; its epsilon is infinite."""
    ledger = Ledger()
    ledger.spend(NonPrivateDpEvent(), why="a network trained on private images, with noise and as they are")
    ledger.spend(NonPrivateDpEvent(), why="labels of a classifier of the private records")
    return ledger


def respond(records: Tensor, candidates: int, epsilon: float, source: Source) -> Tensor:
    """Step 2: randomise (n,) indices below `candidates`."""
    among = torch.arange(candidates, device=records.device).expand(len(records), -1)
    return randomised_response(records, among, epsilon, source)


def responses(x: Tensor, queries: int, epsilon: float, levels: Tensor, rng: torch.Generator, source: Source) -> Pairs:
    """Run steps 1 to 3 for the first `queries` of (k, c, h, w) images in [0, 1].

    Args:
        x: the minibatch.
        queries: number of responses.
        epsilon: of a response.
        levels: sigma_1 > ... > sigma_L.
        rng: random numbers of levels and noise.
        source: source of the responses.
    """
    drawn = torch.randint(len(levels), (queries,), generator=rng, device=x.device)
    z = torch.randn(x[:queries].shape, generator=rng, device=x.device)
    noisy = x[:queries] + levels[drawn][:, None, None, None] * z
    chosen = respond(torch.arange(queries, device=x.device), len(x), epsilon, source)
    distance = (x[chosen] - noisy).abs().flatten(1).amax(1)
    return Pairs(noisy, x[chosen], levels[wide_enough(levels, drawn, distance)], chosen)


def wide_enough(levels: Tensor, drawn: Tensor, distance: Tensor) -> Tensor:
    """Step 3: (n,) index of the drawn level, or of the next larger one whose 5 deviations are enough; else 0."""
    reaching = (NEAR * levels[None] >= distance[:, None]).sum(1)
    return torch.minimum(drawn, reaching - 1).clamp_min(0)


def score_loss(score: Tensor, noisy: Tensor, answers: Tensor, sigma: Tensor) -> Tensor:
    """Step 5: mean of sigma^2 |s - (x_r - x~) / sigma^2|^2 / 2."""
    wide = sigma[:, None, None, None]
    return (wide * score - (answers - noisy) / wide).square().flatten(1).sum(1).mean() / 2
