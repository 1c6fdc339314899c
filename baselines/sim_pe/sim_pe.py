"""Sim-PE: synthetic images that evolve by noisy votes of the private records, from a simulator instead of a network.

References: Lin, Gopi, Kulkarni, Nori and Yekhanin, "Differentially Private Synthetic Data via Foundation Model APIs 1:
Images", ICLR 2024 (Private Evolution, PE), Algorithm 1; Lin, Baltrusaitis, Wang and Yekhanin, "Differentially Private
Synthetic Data via APIs 3: Using Simulators Instead of Foundation Model", 2025 (Sim-PE), and their published code.

RANDOM_API draws an image, VARIATION_API(s, v) a variation of s to the degree v. C classes, N images, N_c = N / C.

1. S_0: N images of RANDOM_API, N_c for each class, independent of the class.
2. For t = 1, ..., T and each class: e(s) is the mean embedding of L variations of s in S_(t-1); with L = 0, of s.
3. Each private record of the class votes for the s with the nearest e(s). h counts the votes, h in R^(N_c).
4. h~ = h + N(0, sigma^2 I); p_i is proportional to max(h~_i - H, 0).
5. Draw images s_i from p with replacement, N_c for each class; S_t = VARIATION_API(s_i, v_t).
6. The student is trained on S_T (`bench/dp_training/synthetic_data.py`), which is released.

Privacy. Only step 3 reads private records. One record added or removed changes one count of one class by 1: the
histogram of all classes has L2 sensitivity 1. T Gaussian mechanisms of multiplier sigma, composed exactly, are one of
multiplier sigma / sqrt(T). Claim and account are this number, so `--account` makes no difference. S_0, the embedding
and the variations read no private data; classes have equal numbers of images, never the private fractions. The counts
h do not leave step 4. If all noisy counts of a class are below H, p is uniform for that class, which is determined by
h~; `undecided` in the record counts how often that was so. The choice of hyper-parameters is not accounted.

PE itself uses a diffusion network of 270 million parameters as API, which is out of reach here: `sim-pe` is PE with
another API. `--method.api` selects it: rendered text (Sim-PE's for MNIST), drawings of the data set's prior, or the
nearest of public images (Sim-PE's for faces), which the row's flag `public-data` shows. From Python a subclass that
overrides `user_source` has any other, an object with `random(count, rng)` and `vary(images, degree, rng)`.

Differs from the papers:
- The embedding is a fixed scattering transform, its principal components in S_0, or pixels, instead of an Inception
  network. Features are rounded to whole numbers, so that votes are exact.
- H is a multiple of sigma, so that one setting fits every epsilon. Published: H = 1 at sigma 1.06 (Sim-PE, MNIST).
- The noise is a Gaussian draw rounded to an integer, plus a uniform fraction (`bench/privacy/counts.py`).
- In round T `samples` images are drawn instead of N: post-processing, as they receive no votes. They are equal by
  default.
- Degrees fall linearly from v_1 to v_T; the authors list them for each round. Fonts are Matplotlib's.
- Sim-PE's code takes class fractions from the private labels and calls them public; here they are uniform.
- Drawings as simulator are the bench's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from baselines.sim_pe.public_images import read_images
from baselines.sim_pe.simulator import Drawings, Moved, NearestImages, Population, Simulator, UserSimulator
from baselines.sim_pe.simulator import Source as UserSource
from baselines.sim_pe.text import DrawText, find_fonts
from baselines.sim_pe.voting import Embedding, EmbeddingName, make_embedding, noisy_votes
from bench import priors, validate
from bench.api import Context, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size, Solved
from bench.data import to_float
from bench.dp_training.games import accounted_game
from bench.dp_training.synthetic_data import (
    QUICK,
    SMOKE,
    STUDENT_BY_ADAM,
    FiniteSet,
    PrivateGenerator,
    Synthesis,
)
from bench.errors import BadOption
from bench.priors.drawn import DrawnPrior
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.counts import require_count_scale
from bench.privacy.events import gaussian_event

CHOSEN = "chosen on the attacker's part of MNIST, which is neither private (split iid) nor the test set"
SOURCE = "PE (Lin et al. 2024), T Gaussian histograms"
MOST_ROUNDS = 1000
PLAYED = 64
"""Plays that one release of an audit game simulates."""


@dataclass(frozen=True)
class Votes:
    """Parameters of the mechanism.

    Attributes:
        steps: T, number of histograms.
        sigma: deviation of the noise on a count; 0 = none.
    """

    steps: int
    sigma: float

    def ledger(self) -> Ledger:
        """Return the ledger of T histograms of sensitivity 1, for a record added or removed."""
        ledger = Ledger()
        ledger.spend(gaussian_event(self.sigma), count=self.steps, why="histogram of the private records' votes")
        return ledger

    def epsilon(self, delta: float) -> float:
        """Return the accounted epsilon."""
        return account(self.ledger(), Unit.EXAMPLE, delta).epsilon


@dataclass(frozen=True)
class SimPe(PrivateGenerator):
    """Train a student on images of a simulator that noisy votes selected; the defaults are Sim-PE's for MNIST."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Lin et al., PE, ICLR 2024, Algorithm 1; Lin et al., Sim-PE, 2025"
    tiers: ClassVar[Tiers] = {
        "smoke": {**SMOKE, "population": 40, "variations": 1},
        "quick": {**QUICK, "samples": 10_000, "passes": 12, "population": 10_000, "variations": 0},
    }
    departures: ClassVar[tuple[Departure, ...]] = (
        STUDENT_BY_ADAM,
        Departure(
            what="six rounds with H = 2 sigma instead of four with H = sigma",
            why=f"at H = sigma noise keeps one candidate in six that got no votes; {CHOSEN}",
            sets={"steps": 6, "threshold": 2.0},
        ),
        Departure(
            what="the last variation has degree 0.2 instead of 0",
            why="few candidates of 10,000 survive, and at degree 0 the drawings of S_T would be copies of them",
            sets={"last_degree": 0.2},
        ),
        Departure(
            what="votes in 64 principal components of the wavelet features",
            why="votes take a twentieth of the time, so that 10,000 candidates can get votes on two CPU cores",
            sets={"embedding": "pca"},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {
        "characters": "api=text",
        "prior": "api=drawings",
        "folder": "api=folder",
        "components": "embedding=pca",
    }

    samples: Size[int] = 60_000
    """Number of images of S_T, on which the student is trained."""
    api: Literal["text", "drawings", "folder"] = "text"
    """Simulator: rendered characters, drawings of a prior, or the nearest of public images (flag `public-data`)."""
    characters: str = "0123456789"
    """Characters of the simulator text; each image has one, independent of its class."""
    prior: str = priors.AUTO
    """Prior of the simulator drawings; auto = that of the data set."""
    folder: str = ""
    """Public images of the simulator folder: a folder of image files, an .npy or .npz file; empty = the data set's."""
    population: Size[int] = 60_000
    """N, number of images that receive votes, equal for all classes."""
    steps: int = 4
    """T, number of rounds, one histogram each; solved from the budget with --solve steps."""
    variations: Size[int] = 8
    """L, variations whose embeddings are averaged for an image; 0 = the image's own embedding."""
    sigma: Solved[float] = 1.064
    """sigma, deviation of the noise on a count; solved from the budget unless --solve steps or --epsilon none."""
    threshold: float = 1.0
    """H over sigma: noisy counts below H become 0."""
    first_degree: float = 0.8
    """v_1, degree of the variations in the first round, 0 to 1."""
    last_degree: float = 0.0
    """v_T, degree of the variations in the last round, 0 to 1; it changes linearly."""
    embedding: EmbeddingName = "scattering"
    """Features in which the nearest image is found: fixed wavelets, their principal components in S_0, or pixels."""
    components: int = 64
    """Number of principal components."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "population", "steps", "components")
        validate.at_most(self, MOST_ROUNDS, "steps")
        validate.at_least(self, 0, "variations", "sigma", "threshold")
        validate.below(self, math.inf, "sigma", "threshold")
        validate.between(self, 0, 1, "first_degree", "last_degree")
        if not self.characters:
            raise ValueError("characters is empty; expected at least one character")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The private records, and the data set's public images if they are the simulator."""
        uses_public = self.api == "folder" and self.folder == ""
        return frozenset({"private_data"} | ({"public_data"} if uses_public else set()))

    def least_public(self) -> int:
        """Return the smallest number of public images, two."""
        return 2

    def public_source(self) -> str | None:
        """Return the digest of the public images that the option `folder` names; None without it."""
        return read_images(self.folder).source if self.api == "folder" and self.folder else None

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit than one record, fewer images than classes, and noise that cannot be drawn."""
        super().check(budget, dataset, classes)
        if self.population < classes:
            raise BadOption(
                f"--method.population {self.population} for {classes} classes; expected at least one image each"
            )
        if self.api == "text":
            find_fonts(self.characters)
        require_count_scale("the noise on the votes", self.calibrate(budget).sigma)

    def calibrate(self, budget: Budget) -> Votes:
        """Calibrate sigma or T to `budget`. Raises BenchError if nothing meets it."""
        fields = Votes(self.steps, self.sigma)
        return noise_or_steps(fields, budget, lambda votes: votes.epsilon(budget.delta), "sigma", MOST_ROUNDS)

    def user_source(self, shape: tuple[int, int, int], dataset: str) -> UserSource | None:
        """Return the simulator of a subclass, which replaces the option `api`; None = that of the option."""
        return None

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 5."""
        self.check(budget, teacher.dataset, teacher.classes)
        release, rng, classes = self.calibrate(budget), ctx.generator("simulator"), teacher.classes
        simulator, each = self._simulator(teacher, rng), self.population // classes
        population = simulator.random(each * classes, rng)  # 1
        embed = make_embedding(self.embedding, self.components, population.images)
        records, noise, undecided = embed(images), ctx.privacy_noise("votes"), 0
        degrees = torch.linspace(self.first_degree, self.last_degree, release.steps).tolist()
        with ctx.track("private evolution", release.steps) as advance:
            for t, degree in enumerate(degrees, 1):
                candidates = self._embedded(simulator, population, degree, embed, rng)  # 2
                candidates = candidates.unflatten(0, (classes, each))
                counts = noisy_votes(records, labels, candidates, release.sigma, noise)  # 3 and 4
                shares = selection(counts, self.threshold * release.sigma)
                undecided += int((counts <= self.threshold * release.sigma).all(1).sum())
                count = each if t < release.steps else -(-self.samples // classes)
                population = simulator.vary(population[draw_rows(shares, count, rng)], degree, rng)  # 5
                advance(1)
        made = by_turns(population.images, classes)[: self.samples]
        answers = torch.arange(len(made), device=made.device) % classes
        claim = Claim(release.epsilon(budget.delta), budget.delta, Unit.EXAMPLE, SOURCE)
        solved = {"sigma": release.sigma, "steps": release.steps, "undecided": undecided}
        return Synthesis(FiniteSet(made, answers), release.ledger(), claim, solved)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: one noisy histogram of votes, with a private record or without.

        Records have different classes of two candidates each, so that one release simulates PLAYED plays. An absent
        record has a further class, which has no candidates.
        """
        once = Votes(1, self.calibrate(budget).sigma)
        records = 2.0 * torch.arange(PLAYED)[:, None]
        candidates = torch.stack([records, records + 1], 1)

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            labels = torch.arange(PLAYED) if world else torch.full((PLAYED,), PLAYED)
            rounds = range(-(-n // PLAYED))
            return torch.cat([noisy_votes(records, labels, candidates, once.sigma, generator) for _ in rounds])[:n]

        describe = "one noisy histogram of votes, with one private record and without"
        return accounted_game(play, once.ledger(), budget.delta, describe)

    def _simulator(self, teacher: Teacher, rng: torch.Generator) -> Simulator:
        """Build the simulator of a subclass, or that of the option `api`."""
        if (own := self.user_source(teacher.shape, teacher.dataset)) is not None:
            return UserSimulator(own, teacher.shape)
        if self.api == "text":
            return DrawText.of(self.characters, teacher.shape)
        if self.api == "drawings":
            prior = priors.for_dataset(self.prior, teacher.dataset)
            return Drawings.of(prior, teacher.shape) if isinstance(prior, DrawnPrior) else Moved(prior, teacher.shape)
        public = read_images(self.folder).resized(teacher.shape) if self.folder else teacher.public_images()
        images = to_float(public.to(rng.device))
        return NearestImages(images, make_embedding(self.embedding, self.components, images)(images))

    def _embedded(
        self, simulator: Simulator, population: Population, degree: float, embed: Embedding, rng: torch.Generator
    ) -> Tensor:
        """Step 2: return e(s) of each image, (N, D) whole numbers."""
        if self.variations == 0:
            return embed(population.images)
        varied = [embed(simulator.vary(population, degree, rng).images) for _ in range(self.variations)]
        return embed.rounded(torch.stack(varied).mean(0))


def selection(counts: Tensor, threshold: float) -> Tensor:
    """Step 4: return p, (C, N_c), proportional to the excess of noisy counts over H; uniform in a row without any."""
    excess = (counts - threshold).clamp_min(0)
    total = excess.sum(1, keepdim=True)
    return torch.where(total > 0, excess / total, 1 / counts.shape[1])


def draw_rows(shares: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Return `count` rows of the population for each class, (C count,), drawn from p (C, N_c) with replacement."""
    classes, each = shares.shape
    drawn = torch.multinomial(shares, count, replacement=True, generator=rng)
    return (drawn + each * torch.arange(classes, device=drawn.device)[:, None]).flatten()


def by_turns(images: Tensor, classes: int) -> Tensor:
    """Reorder images of class 0, then of class 1, ... so that the classes take turns: 0, 1, ..., 0, 1, ..."""
    return images.unflatten(0, (classes, -1)).transpose(0, 1).flatten(0, 1)
