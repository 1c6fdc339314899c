"""DP-SGD (differentially private stochastic gradient descent), shared by the baselines that train a classifier.

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. N records, q sampling rate, B = q N
expected batch, C clipping norm, z noise multiplier, T steps. Every step:

1. every record is in the batch with probability q, independently of the others;
2. g_i = gradient of record i's loss, by opacus' hooks, by torch.func or by rules for each layer;
3. g_i <- g_i min(1, C / ||g_i||), over all parameters jointly or layer by layer;
4. g = (sum_i g_i + N(0, z^2 C^2)) / B, with one draw per step; B is the expected size, so an empty batch yields noise
   only;
5. an optimiser's step along g.

A variant may clip and noise another quantity than g_i: between steps 2 and 3 it maps each record's gradient to a row by
a public map (`Coding`), and after step 4 it maps the result back.

Privacy. A step is a Poisson-sampled Gaussian mechanism of multiplier z for one added or removed record; the ledger
stores exactly this (`accounting.py`). N is public. Averages of the weights, and anything computed from the weights, are
post-processing.

Groups. For unit group, step 1 samples each of G groups with probability q, and B = q G; g_i is the mean gradient of
group i's records, of which at most a public number are used (`record_groups.py`), and it is clipped as a whole. A step
is then a Poisson-sampled Gaussian mechanism of multiplier z for one added or removed group. G is public.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bench.api import Context
from bench.dp_training.accounting import DpSgdParameters
from bench.dp_training.augmentation import AUGMENTATIONS
from bench.dp_training.clipped_sums import ClippedSums, GroupedClippedSums, SharedClippedSums, Sums
from bench.dp_training.clipping import noisy_mean, poisson_sample
from bench.dp_training.coding import MakeCoding, Uncoded
from bench.dp_training.dp_sgd_settings import DpSgdSettings, WarmUp
from bench.dp_training.per_sample_gradients import GRADIENTS, PerSampleGradients, refuse_shared_rows
from bench.dp_training.record_groups import RecordGroups
from bench.errors import BenchError
from bench.nets import Classifier

MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
"""Layers that mix the images of a batch, or may store unclipped, noiseless statistics of them in buffers."""


def train(
    model: Classifier,
    arch: str,
    private: tuple[Tensor, Tensor],
    settings: DpSgdSettings,
    parameters: DpSgdParameters,
    ctx: Context,
    stage: str,
    coding: MakeCoding | None = None,
    groups: RecordGroups | None = None,
) -> None:
    """Train `model` in place with T steps of DP-SGD; it ends on the context's device, in eval mode.

    Args:
        model: only its weights are trained; buffers must be public constants.
        arch: its architecture name, for messages.
        private: (n, c, h, w) images, uint8 or a floating-point type that the network takes, and (n,) int64 labels.
        settings: public settings; number of steps and noise are those of `parameters`.
        parameters: the mechanism's parameters, for n records or that many groups.
        stage: label of the progress bar and of the random generators.
        coding: transform of the gradients before clipping; None = the gradients themselves.
        groups: the groups of the records, for unit group; None for unit example.

    Raises:
        BenchError: the network mixes the images of a batch.
        RuntimeError: the weights became NaN or infinite.
    """
    noisy = NoisyGradients(model, arch, private, settings, ctx, stage, coding, groups=groups)
    weights = dict(model.named_parameters())
    optimizer = torch.optim.SGD(
        weights.values(),
        lr=settings.rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )
    average = WeightAverage(weights, settings.average, settings.warm_up)
    with ctx.track(stage, parameters.steps) as advance:
        for step, z in enumerate(parameters.multipliers()):
            for name, gradient in noisy(step, z, parameters.sampling).items():  # 1 to 4
                weights[name].grad = gradient
            # 5: an optimiser step along the noisy gradient
            for group in optimizer.param_groups:
                group["lr"] = settings.rate_at(step, parameters.steps)
            optimizer.step()
            average.update()
            advance(1)
    average.apply()
    noisy.close(stage)


class NoisyGradients:
    """Steps 1 to 4 of DP-SGD: computes a noisy gradient at the network's current weights on each call.

    Args:
        model, arch, private, settings, ctx, stage, coding, groups: as in `train`. Groups are trained on one device.
        gradients: per-sample gradients; None = those of the network. An audit passes gradients of its choice.

    Raises:
        BenchError: the network mixes the images of a batch.
    """

    def __init__(
        self,
        model: Classifier,
        arch: str,
        private: tuple[Tensor, Tensor],
        settings: DpSgdSettings,
        ctx: Context,
        stage: str,
        coding: MakeCoding | None = None,
        gradients: PerSampleGradients | None = None,
        groups: RecordGroups | None = None,
    ) -> None:
        refuse_mixing(model, arch)
        shape = private[0].shape[1:]
        train_without_dropout(model.to(ctx.device), arch, shape)
        self.model, self.settings = model, settings
        self.images, self.labels = private[0].to(ctx.device), private[1].to(ctx.device)
        # The sampling needs privacy noise too: amplification by sampling requires that samples stay secret
        self.sampling, self.noise = ctx.privacy_noise(f"{stage}/sampling"), ctx.privacy_noise(f"{stage}/noise")
        self.moves = ctx.privacy_noise(f"{stage}/views")
        self.weights = dict(model.named_parameters())
        # A coding may draw or use public images: the same coding built on another device might differ
        ranks = ctx.ranks if coding is None and groups is None else None
        plain = copy.deepcopy(model) if ranks else None
        self.gradients = gradients or GRADIENTS[settings.gradients](model, settings.views)
        refuse_shared_rows(self.gradients, model, arch, shape, settings.views)
        self.coding = (
            coding(model, self.gradients) if coding else Uncoded(self.weights, settings.clip, settings.clipping)
        )
        self.augmentation = AUGMENTATIONS[settings.augmentation]
        shared = self.gradients, self.coding, settings.views, settings.chunk, self.augmentation
        self.sums: Sums = ClippedSums(*shared)
        self.units = len(self.images) if groups is None else len(groups)
        if groups is not None:
            self.sums = GroupedClippedSums(*shared, groups.to(ctx.device))
        if ranks and plain:
            self.sums = SharedClippedSums(ranks, model, plain, settings, self.coding)

    def __call__(self, step: int, z: float, q: float) -> dict[str, Tensor]:
        """Return {parameter name: noisy mean gradient}; post-processing of `noisy_mean`.

        Args:
            step: number of the step, from 0.
            z: noise multiplier of this step.
            q: sampling probability.
        """
        mean = self.noisy_mean(step, z, q)
        return {name: found.to(self.weights[name].dtype) for name, found in self.coding.decode(mean).items()}

    def noisy_mean(self, step: int, z: float, q: float) -> dict[str, Tensor]:
        """Return {part of the coding: noisy mean}, float64: one sampled Gaussian of multiplier z at rate q.

        Training and `gradient_game` both call this function; private records are used nowhere else.
        """
        self.coding.begin(step)
        # 1: a Poisson sample, of records or of groups
        chosen = poisson_sample(self.units, q, self.sampling)
        # Drawn for every record, sampled or not, and from the privacy noise. Otherwise removing a record would shift
        # the others' draws, and anyone who knows the seed would know their views.
        views_each = self.settings.views
        drawn = self.augmentation.draw(len(self.images) * views_each, self.moves) if views_each > 1 else None
        # 2, 3: each record's gradient, clipped
        total = self.sums((self.images, self.labels), chosen, drawn, len(chosen))
        # 4: noise, divided by the expected batch size, as the actual size would reveal whether a record is in the data
        return noisy_mean(total, self.coding.groups(), z, q * self.units, self.noise, total)

    def close(self, stage: str) -> None:
        """Put the network into eval mode; raise RuntimeError if its weights became NaN or infinite."""
        self.gradients.close()
        for weight in self.weights.values():
            weight.grad = None
        self.model.eval()
        if not all(bool(w.isfinite().all()) for w in self.weights.values()):
            raise RuntimeError(f"{stage}: the weights became NaN or infinite; lower the learning rate")


class WeightAverage:
    """An exponential average of the weights; post-processing of the noisy gradients.

    Args:
        parameters: {name: parameter}, before the first step.
        decay: weight of the old average; 0 = no average.
        warm_up: as in `DpSgdSettings`. With "mean", step t = 0, 1, ... has at most the decay t / (t + 1); with
            "tensorflow" at most (1 + t) / (10 + t), with the initial weights as the first average.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float, warm_up: WarmUp = "mean") -> None:
        self.parameters, self.decay, self.seen = list(parameters.values()), decay, 0
        self.mean = [p.detach().clone() for p in self.parameters] if decay else []
        self.warm_up = warm_up

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average."""
        most = 1 - 1 / (self.seen + 1) if self.warm_up == "mean" else (1 + self.seen) / (10 + self.seen)
        keep = min(self.decay, most)
        self.seen += 1
        for mean, parameter in zip(self.mean, self.parameters, strict=False):
            mean.lerp_(parameter, 1 - keep)

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the average into the weights."""
        for mean, parameter in zip(self.mean, self.parameters, strict=False):
            parameter.copy_(mean)


def refuse_mixing(model: nn.Module, arch: str) -> None:
    """Refuse a network with layers that mix the records of a batch or may store statistics of them (`MIXING`).

    Raises:
        BenchError: one line that names the layer.
    """
    for path, layer in model.named_modules():
        if isinstance(layer, MIXING):
            raise BenchError(
                f"the network '{arch}' cannot be trained privately: {type(layer).__name__} at {path} mixes the "
                "images of a batch; use a network without batch normalisation, such as tanh-cnn"
            )


def train_without_dropout(model: nn.Module, arch: str, shape: Sequence[int]) -> None:
    """Set training mode in place with dropout-like layers off: their masks would depend on a record's batch position.

    Raises:
        BenchError: the network still responds differently to the same image, because of random draws outside such
            layers.
    """
    for layer in model.modules():
        layer.train(any(True for _ in layer.parameters()))
    image = torch.full((1, *shape), 0.5, device=next(model.parameters()).device)
    with torch.no_grad():
        if not torch.equal(model(image), model(image)):
            raise BenchError(
                f"the network '{arch}' cannot be trained privately: its random draws depend on a record's position in "
                "the batch, which no account covers; use a network without dropout, such as tanh-cnn"
            )
