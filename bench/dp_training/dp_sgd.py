"""Differentially private stochastic gradient descent, as the baselines that train on private data share it.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. N records, q sampling rate, B = q N
expected batch, C clipping norm, z noise multiplier, T steps. Every step:

1. every record is in the batch with probability q, independently of the others;
2. g_i = gradient of record i's loss, by opacus' hooks or by torch.func;
3. g_i <- g_i min(1, C / ||g_i||), over all parameters jointly or layer by layer;
4. g = (sum_i g_i + N(0, z^2 C^2)) / B, one draw a step, B being the expected size, an empty batch noise alone;
5. an optimiser's step along g.

Privacy. A step is a Poisson-sampled Gaussian of multiplier z, for one added or removed record, and that is what the
ledger says; N is taken as public. Averages of the weights, and whatever is made of the weights, are post-processing.
Sampling and noise both come from the context's source of privacy noise: amplification needs secret samples. The draws
by which a record's views are moved about are made for all N records and indexed by the record, so that leaving one out
moves nobody else's; a network that draws anything itself while it trains (dropout) trains without it.

Norms and clipped sums of a chunk are formed in float32, chunks are added and noise is drawn in float64. Rows are
clipped to C (1 - 2^-7), which leaves room for float32's rounding: a sum of 256 rows of norm C is off by at most 255
2^-24 256 C = 0.0039 C, and neighbours have a sum each.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from torch import Tensor, nn

from bench.api import Context, Teacher
from bench.data import to_float
from bench.data.affine import apply_affine, draw_affine
from bench.errors import BenchError
from bench.nets import Classifier
from bench.privacy import Budget, Claim, Ledger, Unit, noise_or_steps
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.noise import Noise, Source

MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
"""Layers that mix the images of a batch, or may keep statistics of them in buffers that are never clipped or noised."""
MOST_STEPS = 1_000_000
ROOM = 1 - 2.0**-7
"""Of the clipping norm, for rounding errors."""
MOST_CHUNK = 256
LEAST_CLIP, LARGEST_CLIP = 1e-10, 1e10
"""Clipping norms within which float32's gradients neither underflow nor overflow when they are squared."""

Schedule = Callable[[int, int], float]
"""(step from 0, T) to the noise multiplier of the step over that of the plan; piecewise constant, > 0."""


@dataclass(frozen=True)
class Settings:
    """How to train; public, and the same whatever the data.

    Attributes:
        batch: B, records expected in a batch; at most N are.
        steps: T.
        multiplier: z, used where no budget determines it; 0 = no noise.
        clip: C, in gradient units.
        clipping: "flat" over all parameters jointly, or "layer": each of the m layers clipped to C / sqrt(m).
        rate, momentum: of SGD.
        decay: the rate falls to 0 linearly.
        views: jittered copies of each record, whose mean gradient is clipped (De et al. 2022); 1 = the record itself.
        average: decay of an exponential average of the weights, which is returned; 0 = the last weights.
        gradients: "opacus" hooks or "func", torch.func's vmap. They give the same.
        chunk: records whose gradients are held in memory at once, at most 256.
    """

    batch: int
    steps: int
    multiplier: float
    clip: float
    clipping: Literal["flat", "layer"]
    rate: float
    momentum: float
    decay: bool = False
    views: int = 1
    average: float = 0.0
    gradients: Literal["opacus", "func"] = "opacus"
    chunk: int = 256

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "views", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        for name in ("clip", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        if not LEAST_CLIP <= self.clip <= LARGEST_CLIP:
            raise ValueError(f"clip is {self.clip}; expected {LEAST_CLIP:g} to {LARGEST_CLIP:g}, as float32 can hold")
        if self.multiplier < 0:
            raise ValueError(f"multiplier is {self.multiplier}; expected at least 0")
        if self.chunk > MOST_CHUNK:
            raise ValueError(f"chunk is {self.chunk}; expected at most {MOST_CHUNK}, which float32 sums are made for")
        for name in ("momentum", "average"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 <= {name} < 1")


def constant(step: int, steps: int) -> float:
    """The schedule of plain DP-SGD."""
    return 1.0


@dataclass(frozen=True)
class Plan:
    """What enters the mechanism: q in (0, 1], T, z and the schedule that multiplies z."""

    sampling: float
    steps: int
    multiplier: float
    schedule: Schedule = constant

    def multipliers(self) -> list[float]:
        """z of every step."""
        return [self.multiplier * self.schedule(step, self.steps) for step in range(self.steps)]

    def ledger(self) -> Ledger:
        """The T steps, steps of equal noise together; without noise, nothing that can be proved."""
        ledger = Ledger()
        for z, run in groupby(sorted(self.multipliers())):
            count = len(list(run))
            if z == 0:
                ledger.spend(NonPrivateDpEvent(), why="gradients without noise")
                continue
            event = PoissonSampledDpEvent(self.sampling, GaussianDpEvent(z))
            ledger.spend(event, count=count, why="clipped gradients of a Poisson sample of the private records")
        return ledger

    def claim(self, delta: float, source: str) -> Claim:
        """What the bench's accountant proves of `ledger`; `source` is whose algorithm it is."""
        return Claim(accounted_epsilon(self.ledger(), Unit.EXAMPLE, delta).epsilon, delta, Unit.EXAMPLE, source)


def check_unit(budget: Budget) -> None:
    """Refuse a budget for another unit than one record, before anything is trained."""
    if budget.unit != Unit.EXAMPLE:
        raise BenchError(f"--unit {budget.unit}: private training is accounted per example; use --unit example")


def solve(settings: Settings, records: int, budget: Budget, schedule: Schedule = constant) -> Plan:
    """The plan that `budget` allows for `records` private records: z, or T, solved; both accounts are the same number.

    Raises:
        BenchError: another unit than example, or a budget that cannot be met.
    """
    check_unit(budget)
    plan = Plan(min(1.0, settings.batch / records), settings.steps, settings.multiplier, schedule)

    def cost(made: Plan) -> float:
        return accounted_epsilon(made.ledger(), Unit.EXAMPLE, budget.delta).epsilon

    return noise_or_steps(plan, budget, cost, "multiplier", MOST_STEPS)


def refuse_mixing(model: nn.Module, arch: str) -> None:
    """Refuse a network in which records have no gradient of their own, or which keeps statistics of them in buffers.

    Raises:
        BenchError: one line that names the layer.
    """
    for path, layer in model.named_modules():
        if isinstance(layer, MIXING):
            raise BenchError(
                f"the network '{arch}' cannot be trained privately: {type(layer).__name__} at {path} mixes the "
                "images of a batch; use a network without batch normalisation, such as tanh-cnn"
            )


def private_records(teacher: Teacher) -> tuple[Tensor, Tensor]:
    """The private images and labels. Raises RuntimeError if the method's `needs` did not ask for them."""
    if teacher.private is None:
        raise RuntimeError('private training uses the private records; the method\'s `needs` must name "private_data"')
    return teacher.private


def train(
    model: Classifier,
    arch: str,
    private: tuple[Tensor, Tensor],
    settings: Settings,
    plan: Plan,
    ctx: Context,
    stage: str,
) -> None:
    """Train `model` in place by T private steps; it ends on the context's device, in eval mode.

    Args:
        model: only its parameters are trained; buffers must be public constants.
        arch: its name, for messages.
        private: (n, c, h, w) uint8 images and (n,) int64 labels.
        plan: as `solve` made it for n records.
        stage: what the progress bar says, and the name of the randomness.

    Raises:
        BenchError: the network mixes the images of a batch.
        RuntimeError: the weights became NaN or infinite.
    """
    refuse_mixing(model, arch)
    without_chance(model.to(ctx.device), arch, private[0].shape[1:])
    images, labels = private[0].to(ctx.device), private[1].to(ctx.device)
    sampling, noise = ctx.privacy_noise(f"{stage}/sampling"), ctx.privacy_noise(f"{stage}/noise")
    augment = ctx.generator(f"{stage}/views")
    parameters = dict(model.named_parameters())
    groups = clipping_groups(parameters, settings)
    gradients = GRADIENTS[settings.gradients](model, settings.views)
    optimizer = torch.optim.SGD(parameters.values(), lr=settings.rate, momentum=settings.momentum)
    average = Average(parameters, settings.average)
    with ctx.track(stage, plan.steps) as advance:
        for step, z in enumerate(plan.multipliers()):
            chosen = poisson_sample(len(images), plan.sampling, sampling)
            total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
            drawn = draw_affine(len(images) * settings.views, augment) if settings.views > 1 else None
            for part in chosen.split(settings.chunk):
                seen = views(to_float(images[part]), settings.views, part, drawn)
                add_clipped(total, gradients(seen, labels[part]), groups)
            add_noise(total, groups, z, noise)
            for name, parameter in parameters.items():
                parameter.grad = (total[name] / (plan.sampling * len(images))).to(parameter.dtype)
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * (1 - step / plan.steps if settings.decay else 1.0)
            optimizer.step()
            average.update()
            advance(1)
    gradients.close()
    average.apply()
    optimizer.zero_grad(set_to_none=True)
    model.eval()
    if not all(bool(p.isfinite().all()) for p in parameters.values()):
        raise RuntimeError(f"{stage}: the weights became NaN or infinite; lower the learning rate")


def without_chance(model: nn.Module, arch: str, shape: Sequence[int]) -> None:
    """Training mode, in place, with dropout and its like switched off: their masks would go by a record's place.

    Raises:
        BenchError: the network still answers the same image differently, by draws that are in no layer of their own.
    """
    for layer in model.modules():
        layer.train(any(True for _ in layer.parameters()))
    image = torch.full((1, *shape), 0.5, device=next(model.parameters()).device)
    with torch.no_grad():
        if not torch.equal(model(image), model(image)):
            raise BenchError(
                f"the network '{arch}' draws at random while it trains, by a record's place in the batch, which no "
                "account covers: use a network without dropout inside of its layers, such as tanh-cnn"
            )


def poisson_sample(records: int, probability: float, source: Source) -> Tensor:
    """(m,) int64 ascending: each record's number with `probability`, independently; m is binomial and may be 0."""
    return Noise.of(source).sample(records, probability)


def views(images: Tensor, count: int, records: Tensor, drawn: Tensor | None) -> Tensor:
    """(n * count, c, h, w): `count` moved copies of each image, next to each other; the images for a count of 1.

    Args:
        records: (n,) int64, which records the images are.
        drawn: (5, N * count) of `draw_affine`, those of record i at i * count and after; None for a count of 1.
    """
    if drawn is None:
        return images
    places = records[:, None] * count + torch.arange(count, device=records.device)
    return apply_affine(images.repeat_interleave(count, 0), drawn[:, places.flatten()])


@dataclass(frozen=True)
class Group:
    """Parameters that are clipped together.

    Attributes:
        names: of the parameters.
        bound: C_g, the largest norm of one record's gradient over these parameters.
        share: of the step's privacy loss; the noise's deviation is z C_g / sqrt(share). All shares sum to 1, so that
            all groups together are one Gaussian of multiplier z (McMahan et al. 2018).
    """

    names: tuple[str, ...]
    bound: float
    share: float


def clipping_groups(names: Sequence[str] | dict[str, nn.Parameter], settings: Settings) -> list[Group]:
    """One group of all parameters, or one per layer (a weight and its bias) with C / sqrt(m) and a share of 1 / m."""
    if settings.clipping == "flat":
        return [Group(tuple(names), settings.clip, 1.0)]
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    m = len(layers)
    return [Group(tuple(members), settings.clip / math.sqrt(m), 1 / m) for members in layers.values()]


def add_clipped(total: dict[str, Tensor], gradients: dict[str, Tensor], groups: list[Group]) -> None:
    """Add the records' clipped gradients to `total`; a record whose gradient holds NaN or infinity counts as zero.

    Args:
        total: parameter name to a tensor of the parameter's shape, float64 best; changed in place.
        gradients: parameter name to (n, *shape), one row per record.
    """
    for group in groups:
        rows = [gradients[name].flatten(1) for name in group.names]
        norms = torch.stack([row.norm(dim=1) for row in rows]).norm(dim=0)
        factor = (ROOM * group.bound / norms.clamp_min(1e-30)).clamp(max=1.0)
        broken = ~norms.isfinite()
        factor = factor.masked_fill(broken, 0.0)
        for name, row in zip(group.names, rows, strict=True):
            clean = row.masked_fill(broken[:, None], 0.0)
            total[name] += (factor @ clean).view_as(total[name])


def add_noise(total: dict[str, Tensor], groups: list[Group], z: float, source: Source) -> None:
    """Replace every group's sums by those with N(0, z^2 C_g^2 / share_g) on every coordinate; z = 0 adds nothing."""
    noise = Noise.of(source)
    for group in groups:
        flat = torch.cat([total[name].flatten() for name in group.names]).double()
        noisy = noise.gaussian(flat, z * group.bound / math.sqrt(group.share))
        for name, part in zip(group.names, noisy.split([total[name].numel() for name in group.names]), strict=True):
            total[name] = part.view_as(total[name]).to(total[name].dtype)


class PerSample(Protocol):
    """Gradients of single records."""

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """(n * views, c, h, w), (n,) to {parameter name: (n, *shape)}: each record's mean over its views."""
        ...

    def close(self) -> None:
        """Leave the network as it was found."""
        ...


class ByOpacus:
    """By opacus' hooks on the layers: one backward pass for all records."""

    def __init__(self, model: Classifier, views: int) -> None:
        try:
            from opacus import GradSampleModule
        except ImportError:
            raise BenchError("private training needs opacus: pip install opacus, or --method.gradients func") from None
        self.model, self.views = model, views
        self.wrapped = GradSampleModule(model.body, loss_reduction="sum")

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """As `PerSample`."""
        inputs = (images - self.model.mean) / self.model.std
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            logits = self.wrapped(inputs)
            F.cross_entropy(logits, labels.repeat_interleave(self.views), reduction="sum").backward()
        found = {}
        for name, parameter in self.model.named_parameters():
            rows: Tensor = parameter.grad_sample  # type: ignore[attr-defined]
            found[name] = rows.unflatten(0, (len(labels), self.views)).mean(1) if self.views > 1 else rows
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]
        return found

    def close(self) -> None:
        """Take the hooks off."""
        self.wrapped.to_standard_module()


class ByFunc:
    """By torch.func: the gradient of one record's loss, mapped over the batch."""

    def __init__(self, model: Classifier, views: int) -> None:
        self.model, self.views = model, views
        self.each = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0), randomness="different")

    def _loss(self, parameters: dict[str, Tensor], images: Tensor, label: Tensor) -> Tensor:
        logits = torch.func.functional_call(self.model, parameters, (images,))
        return F.cross_entropy(logits, label.expand(self.views))

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """As `PerSample`."""
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        if not len(labels):
            return {name: p.new_zeros(0, *p.shape) for name, p in parameters.items()}
        return self.each(parameters, images.unflatten(0, (len(labels), self.views)), labels)

    def close(self) -> None:
        """Nothing was changed."""


GRADIENTS: dict[str, Callable[[Classifier, int], PerSample]] = {"opacus": ByOpacus, "func": ByFunc}


class Average:
    """An exponential average of the weights that starts as the plain mean: post-processing of the noisy gradients."""

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.seen = list(parameters.values()), decay, 0
        self.mean = [p.detach().clone() for p in self.parameters] if decay else []

    @torch.no_grad()
    def update(self) -> None:
        """Take in the current weights."""
        self.seen += 1
        keep = min(self.decay, 1 - 1 / self.seen)
        for mean, parameter in zip(self.mean, self.parameters, strict=False):
            mean.lerp_(parameter, 1 - keep)

    @torch.no_grad()
    def apply(self) -> None:
        """Put the average in the place of the weights."""
        for mean, parameter in zip(self.mean, self.parameters, strict=False):
            parameter.copy_(mean)
