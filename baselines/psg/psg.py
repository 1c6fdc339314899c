"""PSG, a private set of a few synthetic images that give a network the gradients that the private records give it.

Reference: Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information", NeurIPS 2022, Algorithm
1 and its published code; after Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching", ICLR 2021.

S are `images_per_class` images of every class, labels fixed. N private records, theta a network's weights.

1. S starts as N(0, I), in units in which a network sees images.
2. `iterations` times: theta is drawn anew; then, `outer` times:
   a. `batches` times: every record is in the batch with probability q = B / N;
      g = (sum_i clip(grad l(theta; x_i, y_i), C) + N(0, sigma^2 C^2 I)) / B; S takes a step of SGD down
      D(grad l(theta; S), g) = sum over layers and over their outputs of 1 - cosine; 1-D parameters are left out;
   b. theta is trained on S for `inner` passes, but for the last time.
3. S, as pixels, is what there is: a network is trained on it from scratch (`synthetic_set.py`) and released.

Privacy. T = iterations x outer x batches Poisson-sampled Gaussians of multiplier sigma, for one private record added or
removed; the steps on S, the training on S and the student are post-processing. Claim and account are the same number,
so that `--account` makes no difference. The noise (`--solve sigma`) or T (`--solve steps`) is calibrated on the bench's
accountant. N is taken as public. Choosing hyper-parameters is in no epsilon.

Differs from the paper:
- T gradients exactly: the published code's loop runs 1,001 iterations where 1,000 are accounted for.
- Accounted by privacy loss distributions, the paper by the moments accountant; so sigma is a little smaller.
- Networks see (pixel - mean) / std for public constants; the paper's are statistics of the training set.
- S is clamped to pixels in [0, 1] before anything is trained on it; the paper clamps for pictures alone.
- theta comes from the run's seed, in the published code from the clock.
- The student is the run's; `network` names another, the paper's being convnet. It sees pixels in [0, 1]. One student is
  trained where the paper averages three. Moved images get a black border, the paper's the mean grey or black.
- `replays` goes on with S after the last gradient has been released: the weights and private gradients are kept, and S
  takes more steps on them, in random order. The paper uses every gradient once. It is post-processing.
- `optimiser adam`, `decay`, `start black` and `clamp` are the bench's, off by default; tier `quick` has them on, with
  fewer, larger batches and a smaller matching network, for two CPU cores. They were chosen by accuracy on the
  attacker's part of MNIST, which is neither private nor the test set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baselines.psg.synthetic_set import BATCH, RATE, fit_set
from bench import nets
from bench.api import Context, Release, Teacher
from bench.data import to_float
from bench.dp_training.dp_sgd import Plan, Settings, solve
from bench.dp_training.private_gradient import Parameters, PrivateGradient
from bench.dp_training.synthetic_data import SHOWN, PrivateGenerator, Protocol, Synthesis, by_class, seeing_pixels
from bench.errors import BenchError
from bench.nets.classifiers.convnet import ConvNet
from bench.privacy import Budget

SOURCE = "PSG (Chen et al. 2022), Algorithm 1, by the bench's accountant"
LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 50: (50, 10)}
"""Images per class to the paper's (outer, inner)."""
AUGMENTED = ("mnist", "fmnist", "digits")
PASSES = {("faithful", True): 1000, ("faithful", False): 300, ("fast", True): 300, ("fast", False): 100}
"""(evaluation, with moved images) to passes over the set."""
SMALL, MOST_KEPT = 1e-6, 500_000_000


class Released(NamedTuple):
    """One private gradient: theta, and the noisy mean gradient there. Both may be looked at for ever."""

    weights: Parameters
    gradient: Parameters


@dataclass(frozen=True)
class Psg(PrivateGenerator):
    """A few private images whose gradients match those of the private records."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Chen, Kerkouche and Fritz, NeurIPS 2022, Algorithm 1"
    tiers: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"images_per_class": 1, "iterations": 2, "batches": 2, "batch": 256, "width": 4, "depth": 1,
                  "replays": 1, "evaluation": "fast", "passes": 3},
        "quick": {"images_per_class": 1, "iterations": 60, "batches": 1, "batch": 4096, "width": 16, "depth": 1,
                  "norm": False, "replays": 30, "optimiser": "adam", "rate": 0.03, "decay": True, "start": "black",
                  "clamp": True},
    }  # fmt: skip

    evaluation: Literal["faithful", "fast"] = "faithful"
    """The student's training: faithful = 1,000 passes over moved images (300 over plain ones); fast = 300 (100)."""
    samples: int = 0
    """Not used: the set is all there is. See images_per_class."""
    passes: int = 0
    """Passes of the student over the set; 0 = the protocol's."""
    augment: Literal["auto", "always", "never"] = "auto"
    """The student sees shifted, scaled or turned images; auto = on mnist, fmnist and digits."""
    network: str = "student"
    """What is trained on the set and released: the run's --student, or a network's name (the paper: convnet)."""
    images_per_class: int = 10
    """Synthetic images of each class; the paper has 1, 10, 20, 50."""
    iterations: int = 1000
    """Networks theta that gradients are matched on, one after the other."""
    outer: int = 0
    """States of each network that gradients are matched at; 0 = the paper's for 1, 10, 20 or 50 images per class."""
    inner: int = 0
    """Passes over S that train theta between two states; 0 = the paper's for 1, 10, 20 or 50 images per class."""
    batches: int = 10
    """Private gradients at each state of theta, each from a batch of its own."""
    batch: int = 256
    """B = qN, records expected in a batch; a record is in it with probability B / N, at most 1."""
    multiplier: float = 1.0
    """sigma, noise over the clipping norm; solved from the budget unless --solve steps or none."""
    clip: float = 0.1
    """C, the clipping norm of one record's gradient."""
    rate: float = 0.1
    """Learning rate of the steps on S."""
    momentum: float = 0.5
    """Momentum of the steps on S by SGD."""
    rate_network: float = 0.01
    """Learning rate of theta on S, by plain SGD in batches of 256."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Of the steps on S."""
    decay: bool = False
    """The learning rate of the steps on S falls to 0 linearly."""
    replays: int = 0
    """More passes over all private gradients after the last one, in random order: post-processing."""
    start: Literal["noise", "black"] = "noise"
    """S starts as N(0, 1) around `mean`, or nearly black, at a tenth of that deviation."""
    clamp: bool = False
    """Every step on S is followed by clamping to pixels in [0, 1]; S is clamped at the end in any case."""
    width: int = 128
    """Channels of the matching network."""
    depth: int = 3
    """Blocks of the matching network; the sides of images are at least 2^depth."""
    norm: bool = True
    """The matching network normalises every image's every channel."""
    mean: float = 0.5
    """Matching networks see (pixel - mean) / std; a public constant."""
    std: float = 0.5
    """Matching networks see (pixel - mean) / std; a public constant."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples:
            raise ValueError(f"samples is {self.samples}; expected 0: the set has images_per_class images of a class")
        for name in ("images_per_class", "iterations", "batches", "width", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("outer", "inner", "replays"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        for name in ("std", "rate_network"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        if self.images_per_class not in LOOPS and not (self.outer and self.inner):
            raise ValueError(
                f"images_per_class is {self.images_per_class}; expected one of {', '.join(map(str, LOOPS))}, or outer "
                "and inner to be given"
            )
        self._training()

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit than one record and an unknown network, before anything is trained."""
        super().check(budget, dataset, classes)
        if self.network != "student":
            nets.check(self.network)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Make the set, then train the student on it; `teacher.model` is used for nothing."""
        if teacher.private is None:
            raise RuntimeError('the private records are used; the method\'s `needs` must name "private_data"')
        private, labels = (part.to(ctx.device) for part in teacher.private)
        made = self.synthesise(private, labels, teacher, budget, ctx)
        if made.fixed is None:
            raise RuntimeError("PSG makes a fixed set")
        arch = student if self.network == "student" else self.network
        network = seeing_pixels(nets.build(arch, teacher.shape, teacher.classes))
        augment = self._augments(teacher.dataset)
        fit_set(network, *made.fixed, self.protocol(augment), augment, ctx, "training on the private set")
        shown = by_class(*made.fixed, teacher.classes)[:SHOWN]
        return Release(network, arch, made.ledger, made.claim, None, shown, made.solved)

    def protocol(self, augment: bool = True) -> Protocol:
        """The student's training on the set, over moved images or plain ones."""
        return Protocol(0, self.passes or PASSES[self.evaluation, augment], BATCH, RATE, False)

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """The set, as `PrivateGenerator.synthesise` says; `fixed` holds images_per_class x classes images."""
        plan = solve(self._training(), len(images), budget)
        network = ctx.prepared(ConvNet(teacher.shape, teacher.classes, self.width, self.depth, self.norm))
        self._check_memory(network, plan)
        targets = torch.arange(teacher.classes, device=ctx.device).repeat(self.images_per_class)
        synthetic = self._distil(network, (images, labels), targets, plan, ctx)
        pixels = (synthetic * self.std + self.mean).clamp(0, 1)
        if not bool(pixels.isfinite().all()):
            raise RuntimeError("the synthetic images became NaN: lower the rate")
        solved = {"sigma": plan.multiplier, "steps": plan.steps, "sampling": plan.sampling}
        claim = plan.claim(budget.delta, SOURCE)
        return Synthesis(None, plan.ledger(), claim, solved, None, (pixels, targets))

    def _distil(
        self, network: ConvNet, private: tuple[Tensor, Tensor], targets: Tensor, plan: Plan, ctx: Context
    ) -> Tensor:
        """S, (n, c, h, w) in the network's units, after every private gradient and the replays."""
        rng, kept = ctx.generator("psg"), list[Released]()
        synthetic = self._start((len(targets), *private[0].shape[1:]), rng)
        optimizer = self._optimizer(synthetic)
        total, done = plan.steps * (1 + self.replays), 0
        with ctx.track("matching private gradients", total) as advance:
            for found in self._gradients(network, private, synthetic, targets, plan, ctx):
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
        plan: Plan,
        ctx: Context,
    ) -> Iterator[Released]:
        """The T private gradients, each at weights that depend on S as it then is and on nothing private besides."""
        outer, inner = self._loops()
        rng, records = ctx.generator("psg/networks"), len(private[0])
        sampling, noise = ctx.privacy_noise("psg/sampling"), ctx.privacy_noise("psg/noise")
        mechanism = PrivateGradient(plan.sampling, plan.multiplier, self.clip)

        def loss(weights: Parameters, image: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(network, weights, (image[None],)), label[None])

        for step in range(plan.steps):
            if step % (outer * self.batches) == 0:
                renew(network, rng)
            elif step % self.batches == 0:
                train_on_set(network, synthetic.detach(), targets, inner, self.rate_network, rng)
            weights = {name: p.detach().clone() for name, p in network.named_parameters()}
            batch = mechanism.sample(records, sampling)
            rows = ((to_float(private[0][batch]) - self.mean) / self.std, private[1][batch])
            yield Released(weights, mechanism(weights, loss, rows, records, noise))

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        network: ConvNet,
        found: Released,
        synthetic: Tensor,
        targets: Tensor,
        progress: float,
    ) -> None:
        """One step on S along the gradient of D."""
        if self.decay:
            optimizer.param_groups[0]["lr"] = self.rate * (1 - progress)
        distance = gradient_distance(network, found, synthetic, targets)
        (synthetic.grad,) = torch.autograd.grad(distance, [synthetic])
        optimizer.step()
        if self.clamp:
            with torch.no_grad():
                synthetic.clamp_(-self.mean / self.std, (1 - self.mean) / self.std)

    def _start(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        drawn = torch.randn(shape, generator=rng, device=rng.device)
        if self.start == "black":
            drawn = drawn / 10 - self.mean / self.std
        return drawn.requires_grad_()

    def _optimizer(self, synthetic: Tensor) -> torch.optim.Optimizer:
        if self.optimiser == "adam":
            return torch.optim.Adam([synthetic], lr=self.rate)
        return torch.optim.SGD([synthetic], lr=self.rate, momentum=self.momentum)

    def _loops(self) -> tuple[int, int]:
        """outer and inner."""
        outer, inner = LOOPS.get(self.images_per_class, (0, 0))
        return self.outer or outer, self.inner or inner

    def _training(self) -> Settings:
        """What `solve` reads: B, T, sigma; the rest is checked for its range."""
        steps = self.iterations * self._loops()[0] * self.batches
        return Settings(self.batch, steps, self.multiplier, self.clip, "flat", self.rate, self.momentum)

    def _augments(self, dataset: str) -> bool:
        return self.augment == "always" or (self.augment == "auto" and dataset in AUGMENTED)

    def _check_memory(self, network: ConvNet, plan: Plan) -> None:
        kept = 2 * plan.steps * sum(p.numel() for p in network.parameters())
        if self.replays and kept > MOST_KEPT:
            raise BenchError(
                f"--method.replays {self.replays} would keep {kept:.1e} numbers of {plan.steps} private gradients, "
                f"at most {MOST_KEPT:.0e} are kept: use --method.replays 0, fewer iterations or a smaller width"
            )


def gradient_distance(network: nn.Module, found: Released, synthetic: Tensor, targets: Tensor) -> Tensor:
    """D, a scalar that is differentiable in `synthetic`: the sum over weights of two or more dimensions, and over their
    first dimension, of 1 - <a, b> / (|a| |b| + 1e-6), between the gradient of S and the private one.

    Args:
        network: its own weights are not read.
        synthetic, targets: (n, c, h, w) in the network's units, (n,) int64.
    """
    weights = {name: value.detach().requires_grad_() for name, value in found.weights.items()}
    loss = F.cross_entropy(torch.func.functional_call(network, weights, (synthetic,)), targets)
    matched = [name for name, value in weights.items() if value.ndim > 1]
    gradients = torch.autograd.grad(loss, [weights[name] for name in matched], create_graph=True)
    total = synthetic.new_zeros(())
    for name, gradient in zip(matched, gradients, strict=True):
        ours, theirs = gradient.flatten(1), found.gradient[name].flatten(1)
        norms = ours.norm(dim=1) * theirs.norm(dim=1)
        total = total + (1 - (ours * theirs).sum(1) / (norms + SMALL)).sum()
    return total


@torch.no_grad()
def renew(network: nn.Module, rng: torch.Generator) -> None:
    """New weights, in place: U(-b, b), b = 1 / sqrt(inputs), torch's own start, for linear and convolutional layers;
    normalisations back to scale 1 and shift 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            layer.weight.uniform_(-bound, bound, generator=rng)
            if layer.bias is not None:
                layer.bias.uniform_(-bound, bound, generator=rng)
        elif isinstance(layer, nn.GroupNorm):
            layer.weight.fill_(1.0)
            layer.bias.fill_(0.0)


def train_on_set(
    network: nn.Module, images: Tensor, labels: Tensor, passes: int, rate: float, rng: torch.Generator
) -> None:
    """Step 2b: plain SGD on S in shuffled batches of 256, in place."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    for _ in range(passes):
        for chosen in torch.randperm(len(images), generator=rng, device=rng.device).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
