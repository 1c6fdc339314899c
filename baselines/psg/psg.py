"""PSG: a private set of a few synthetic images with the same network gradients as the private records.

Reference: Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information", NeurIPS 2022, Algorithm
1 and its published code; after Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching", ICLR 2021.

S has `images_per_class` images of every class with fixed labels. N private records, theta a network's weights.

1. S starts as N(0, I), in the units of a network's normalised input.
2. `iterations` times: theta is drawn again; then, `outer` times:
   a. `batches` times: every record is in the batch with probability q = B / N;
      g = (sum_i clip(grad l(theta; x_i, y_i), C) + N(0, sigma^2 C^2 I)) / B; S takes a step of SGD down
      D(grad l(theta; S), g) = sum over layers and over their outputs of 1 - cosine; 1-D parameters are left out;
   b. theta is trained on S for `inner` passes, except after the last of the `outer` rounds.
3. A network is trained on S, as pixels, from scratch (`synthetic_set.py`) and released.

Privacy. T = iterations x outer x batches Poisson-sampled Gaussians of multiplier sigma, for one private record added or
removed; the steps on S, the training on S and the student are post-processing. Claim and account are the same number,
so that `--account` makes no difference. The noise (`--solve sigma`) or T (`--solve steps`) is calibrated on the bench's
accountant. N is public. The choice of hyper-parameters is not accounted.

Differs from the paper:
- Exactly T gradients: the published code's loop runs 1,001 iterations and accounts for 1,000.
- Accounted by privacy loss distributions instead of the moments accountant, so that sigma is slightly smaller.
- Inputs of networks are (pixel - mean) / std with public constants; the paper's are statistics of the training set.
- S is clamped to pixels in [0, 1] before the student is trained on it; the paper clamps only for display. While S is
  trained, theta is used with unclamped S, as in the paper, unless `clamp`.
- theta is seeded by the run, in the published code by the clock.
- The student is the run's; `network` selects another one, such as the paper's convnet. Its inputs are pixels in [0, 1].
  One student is trained; the paper averages three. Augmented images get a black border, the paper's the mean grey or
  black.
- `replays` continues with S after the last gradient has been released: the weights and private gradients are kept, and
  S takes more steps on them, in random order. The paper uses every gradient once. This is post-processing.
- `optimiser adam`, `decay`, `start black` and `clamp` are the bench's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.psg.gradient_matching import Released, gradient_distance, reinitialise, train_on_set
from baselines.psg.synthetic_set import fit_set
from bench import data, nets, validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size, Solved
from bench.data import to_float
from bench.dp_training.accounting import DpSgdParameters, calibrate, require_unit_example
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP
from bench.dp_training.games import RECORDS, SAMPLING, PlayedNoise, accounted_game
from bench.dp_training.private_gradient import Parameters, PrivateGradient
from bench.dp_training.records import private_records
from bench.dp_training.synthetic_data import SHOWN, by_class, seeing_pixels
from bench.errors import BenchError
from bench.nets.classifiers.small_cnns import ConvNet
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Source

SOURCE = "PSG (Chen et al. 2022), Algorithm 1, by the bench's accountant"
CHOSEN = "chosen by accuracy on the attacker's part of MNIST, which is neither private (split iid) nor the test set"
LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 50: (50, 10)}
"""Images per class to the paper's (outer, inner)."""
PASSES = {True: 1000, False: 300}
"""Whether images are augmented, to the paper's passes of the student over the set."""
MOST_KEPT = 500_000_000
"""Largest number of values that the kept gradients and weights may have."""
PLAYED = 64
"""Plays that one release of an audit game simulates."""
NO_CLASS = -100
"""The label that cross-entropy ignores; the mean over only such labels is NaN."""


@dataclass(frozen=True)
class Psg:
    """Train a student on a few synthetic images whose gradients match noisy ones of the private records."""

    version: ClassVar[int] = 2
    reference: ClassVar[str] = "Chen, Kerkouche and Fritz, NeurIPS 2022, Algorithm 1"
    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    tiers: ClassVar[Tiers] = {
        "smoke": {"images_per_class": 1, "iterations": 2, "batches": 2, "batch": 256, "width": 4, "depth": 1,
                  "passes": 3},
        "quick": {"images_per_class": 1, "iterations": 60, "batches": 1, "batch": 4096, "width": 16, "depth": 1},
    }  # fmt: skip
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="every private gradient is used 30 more times after the last one is released",
            why=f"gradients cost privacy and time, further steps on them are post-processing; {CHOSEN}",
            sets={"replays": 30},
        ),
        Departure(
            what="the images are trained by Adam, 0.03 falling linearly to 0, instead of SGD at a constant 0.1",
            why=f"tier quick has 60 private gradients instead of 100,000; {CHOSEN}",
            sets={"optimiser": "adam", "rate": 0.03, "decay": True},
        ),
        Departure(
            what="images start nearly black instead of as noise, and are clamped to [0, 1] after every step",
            why=f"few steps do not remove the initial noise, and digits are mostly black; {CHOSEN}",
            sets={"start": "black", "clamp": True},
        ),
        Departure(
            what="the matching network has no normalisation",
            why=f"it has one layer of 16 channels, for two cores; {CHOSEN}",
            sets={"norm": False},
        ),
    )
    only_with: ClassVar[dict[str, str]] = {"momentum": "optimiser=sgd"}

    passes: Size[int] = 0
    """Passes of the student over the set; 0 = the paper's, 1,000 over augmented images or 300 over plain ones."""
    augment: Literal["auto", "always", "never"] = "auto"
    """Shift, scale or rotate the student's images; auto = on mnist, fmnist, kmnist,
    usps and digits."""
    network: Size[str] = "student"
    """Network that is trained on the set and released: the run's --student, or a name (the paper: convnet)."""
    images_per_class: Size[int] = 10
    """Synthetic images of each class; the paper has 1, 10, 20, 50."""
    iterations: Size[int] = 1000
    """Number of networks whose gradients are matched, one after the other."""
    outer: Size[int] = 0
    """Training states of each network at which gradients are matched; 0 = the paper's for 1, 10, 20 or 50 per class."""
    inner: Size[int] = 0
    """Passes over the set that train a network between two states; 0 = the paper's for 1, 10, 20 or 50 per class."""
    batches: Size[int] = 10
    """Private gradients at each state of a network, each from an independent batch."""
    batch: Size[int] = 256
    """B = qN, expected number of records in a batch; a record is sampled with probability B / N, at most 1."""
    multiplier: Solved[float] = 1.0
    """sigma, noise over the clipping norm; solved from the budget unless --solve steps or none."""
    clip: float = 0.1
    """C, the clipping norm of one record's gradient."""
    rate: float = 0.1
    """Learning rate of the synthetic images."""
    momentum: float = 0.5
    """Momentum of the steps on the synthetic images by SGD."""
    rate_network: float = 0.01
    """Learning rate of the matching networks, by plain SGD on the synthetic images in batches of 256."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Optimiser of the synthetic images."""
    decay: bool = False
    """The learning rate of the synthetic images falls to 0 linearly."""
    replays: int = 0
    """More passes over all private gradients after the last one, in random order: post-processing."""
    start: Literal["noise", "black"] = "noise"
    """The synthetic images start as N(0, 1) around `mean`, or nearly black, at a tenth of that deviation."""
    clamp: bool = False
    """Clamp the synthetic images to pixels in [0, 1] after every step; they are clamped at the end in any case."""
    width: Size[int] = 128
    """Channels of the matching network."""
    depth: Size[int] = 3
    """Blocks of the matching network; the sides of images are at least 2^depth."""
    norm: bool = True
    """Normalise every channel of every image in the matching network (instance normalisation)."""
    mean: float = 0.5
    """Inputs of matching networks are (pixel - mean) / std; a public constant."""
    std: float = 0.5
    """Inputs of matching networks are (pixel - mean) / std; a public constant."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "images_per_class", "iterations", "batches", "batch", "width", "depth")
        validate.at_least(self, 0, "passes", "outer", "inner", "replays", "multiplier", "momentum")
        validate.below(self, 1, "momentum")
        validate.positive(self, "std", "rate", "rate_network")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")
        if self.images_per_class not in LOOPS and not (self.outer and self.inner):
            raise ValueError(
                f"images_per_class is {self.images_per_class}; expected one of {', '.join(map(str, LOOPS))}, or outer "
                "and inner to be given"
            )

    @property
    def trains_student(self) -> bool:
        """Whether the run's --student network is trained."""
        return self.network == "student"

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit than one record and an unknown network, before anything is trained."""
        require_unit_example(budget)
        if self.network != "student":
            nets.check(self.network)

    def networks(self, shape: tuple[int, int, int], student: str) -> tuple[str, ...]:
        """Return the networks that are built in addition to the teacher's."""
        return (student if self.network == "student" else self.network,)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Make the set, then train the student on it; `teacher.model` is not used."""
        private = private_records(teacher, ctx.device)
        parameters = self.calibrate(len(private[0]), budget)
        images, labels = self.synthesise(private, teacher, parameters, ctx)
        arch = student if self.network == "student" else self.network
        network, augment = seeing_pixels(nets.build(arch, teacher.shape, teacher.classes)), self._augments(teacher)
        passes = self.passes or PASSES[augment]
        fit_set(network, images, labels, passes, augment, ctx, "training on the private set")
        shown = by_class(images, labels, teacher.classes)[:SHOWN]
        claim = parameters.claim(budget.delta, SOURCE)
        return Release(network, arch, parameters.ledger(), claim, None, shown, parameters.solved())

    def calibrate(self, records: int, budget: Budget) -> DpSgdParameters:
        """Calibrate sigma or T to the budget."""
        steps = self.iterations * self._loops()[0] * self.batches
        return calibrate(DpSgdParameters.of(self.batch, records, steps, self.multiplier), budget)

    def synthesise(
        self, private: tuple[Tensor, Tensor], teacher: Teacher, parameters: DpSgdParameters, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Make S as pixels, (n, c, h, w) in [0, 1] with (n,) labels, n = images_per_class x classes.

        Args:
            private: (N, c, h, w) uint8 images and (N,) labels, on the context's device.
            teacher: for its shape and classes; its model is not used.
            parameters: the calibrated mechanism.
            ctx: device, random streams and progress.
        """
        network = ctx.prepared(ConvNet(teacher.shape, teacher.classes, self.width, self.depth, self.norm))
        self._check_memory(network, parameters)
        targets = torch.arange(teacher.classes, device=ctx.device).repeat(self.images_per_class)
        synthetic = self._distil(network, private, targets, parameters, ctx)
        pixels = (synthetic * self.std + self.mean).clamp(0, 1)
        if not bool(pixels.isfinite().all()):
            raise RuntimeError("the synthetic images became NaN: lower the rate")
        return pixels, targets

    def _distil(
        self,
        network: ConvNet,
        private: tuple[Tensor, Tensor],
        targets: Tensor,
        parameters: DpSgdParameters,
        ctx: Context,
    ) -> Tensor:
        """Train S, (n, c, h, w) in the network's units, on every private gradient and the replays."""
        rng, kept = ctx.generator("psg"), list[Released]()
        synthetic = self._start((len(targets), *private[0].shape[1:]), rng)
        optimizer = self._optimizer(synthetic)
        total, done = parameters.steps * (1 + self.replays), 0
        with ctx.track("matching private gradients", total) as advance:
            for found in self._gradients(network, private, synthetic, targets, parameters, ctx):
                self._step(optimizer, network, found, synthetic, targets, done / total)
                if self.replays:
                    kept.append(found)
                done += 1
                advance(1)
            for _ in range(self.replays):
                for chosen in torch.randperm(len(kept), generator=rng, device=rng.device).tolist():
                    self._step(optimizer, network, kept[chosen], synthetic, targets, done / total)
                    done += 1
                    advance(1)
        return synthetic.detach()

    def _gradients(
        self,
        network: ConvNet,
        private: tuple[Tensor, Tensor],
        synthetic: Tensor,
        targets: Tensor,
        parameters: DpSgdParameters,
        ctx: Context,
    ) -> Iterator[Released]:
        """Yield the T private gradients, each at weights that depend only on the current S."""
        outer, inner = self._loops()
        rng = ctx.generator("psg/networks")
        sampling, noise = ctx.privacy_noise("psg/sampling"), ctx.privacy_noise("psg/noise")
        mechanism = PrivateGradient(parameters.sampling, parameters.multiplier, self.clip)
        for step in range(parameters.steps):
            # 2: a new network, or (2b) the same one trained on S
            if step % (outer * self.batches) == 0:
                reinitialise(network, rng)
            elif step % self.batches == 0:
                train_on_set(network, synthetic.detach(), targets, inner, self.rate_network, rng)
            weights = {name: p.detach().clone() for name, p in network.named_parameters()}
            # 2a: its private gradient
            yield Released(weights, self.noisy_gradient(network, weights, private, mechanism, sampling, noise))

    def noisy_gradient(
        self,
        network: nn.Module,
        weights: Parameters,
        private: tuple[Tensor, Tensor],
        mechanism: PrivateGradient,
        sampling: Source,
        noise: Source,
    ) -> Parameters:
        """Step 2a on (N, c, h, w) uint8 images and (N,) labels; both training and the audit's game call it."""

        def loss(weights: Parameters, image: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(network, weights, (image[None],)), label[None])

        batch = mechanism.sample(len(private[0]), sampling)
        rows = ((to_float(private[0][batch]) - self.mean) / self.std, private[1][batch])
        return mechanism(weights, loss, rows, len(private[0]), noise)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: a private gradient, with a record in half of the samples or without.

        The adversary chooses the network: every record has a separate bright pixel and a separate row of the gradient,
        so that one step simulates PLAYED plays. An absent record has no class, and its loss is NaN.
        """
        once = replace(self.calibrate(RECORDS, budget), sampling=SAMPLING, steps=1)
        by, network = replace(self, mean=0.0, std=1.0), PlayedNetwork(10 * self.clip)
        weights = {name: each.detach() for name, each in network.named_parameters()}
        images = (255 * torch.eye(PLAYED, dtype=torch.uint8)).view(PLAYED, 1, 1, PLAYED)
        mechanism = PrivateGradient(SAMPLING, once.multiplier, self.clip)

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            source = PlayedNoise.drawing(generator, PLAYED if world else 0)
            private = images, torch.full((PLAYED,), 1 if world else NO_CLASS)
            rounds = range(-(-n // PLAYED))
            found = [by.noisy_gradient(network, weights, private, mechanism, source, source) for _ in rounds]
            return torch.cat([gradient["weight"] for gradient in found])[:n]

        describe = "one private gradient, with one private record in half of the samples and without"
        return accounted_game(play, once.ledger(), budget.delta, describe)

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        network: ConvNet,
        found: Released,
        synthetic: Tensor,
        targets: Tensor,
        progress: float,
    ) -> None:
        """Take one step on S along the gradient of D."""
        if self.decay:
            optimizer.param_groups[0]["lr"] = self.rate * (1 - progress)
        distance = gradient_distance(network, found, synthetic, targets)
        (synthetic.grad,) = torch.autograd.grad(distance, [synthetic])
        optimizer.step()
        if self.clamp:
            with torch.no_grad():
                synthetic.clamp_(-self.mean / self.std, (1 - self.mean) / self.std)

    def _start(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Draw the initial set S."""
        drawn = torch.randn(shape, generator=rng, device=rng.device)
        if self.start == "black":
            drawn = drawn / 10 - self.mean / self.std
        return drawn.requires_grad_()

    def _optimizer(self, synthetic: Tensor) -> torch.optim.Optimizer:
        """Build the optimiser of S."""
        if self.optimiser == "adam":
            return torch.optim.Adam([synthetic], lr=self.rate)
        return torch.optim.SGD([synthetic], lr=self.rate, momentum=self.momentum)

    def _loops(self) -> tuple[int, int]:
        """Return outer and inner."""
        outer, inner = LOOPS.get(self.images_per_class, (0, 0))
        return self.outer or outer, self.inner or inner

    def _augments(self, teacher: Teacher) -> bool:
        """Whether the student's images are augmented."""
        return self.augment == "always" or (self.augment == "auto" and data.facts(teacher.dataset).augments_psg)

    def _check_memory(self, network: ConvNet, parameters: DpSgdParameters) -> None:
        kept = 2 * parameters.steps * sum(p.numel() for p in network.parameters())
        if self.replays and kept > MOST_KEPT:
            raise BenchError(
                f"--method.replays {self.replays} would keep {kept:.1e} numbers of {parameters.steps} private "
                f"gradients; expected at most {MOST_KEPT:.0e}: use --method.replays 0, fewer iterations or less width"
            )


class PlayedNetwork(nn.Module):
    """The network of an audit game: two equal classes, with the gradient in the row of the brightest pixel."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.weight, self.slope = nn.Parameter(torch.zeros(PLAYED, 2)), slope

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, 1, 1, PLAYED) images to (n, 2) logits."""
        logit = 2 * self.slope * (x.flatten(1) @ self.weight) @ torch.tensor([0.6, 0.8])
        return torch.stack([logit, torch.zeros_like(logit)], 1)
