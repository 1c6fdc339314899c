"""The distinguishing game of one step of DP-SGD, or of a variant that clips and noises coded gradients.

The adversary chooses the network, and so each record's gradient. Here the gradients of different records are in
disjoint parts of the weights, called *lanes*. Clipping, coding and noise treat every lane independently, so that one
step is an independent play for each record. Every record's gradient is longer than the clipping norm, by various
factors. For unit group a lane has a group of records, each with the lane's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench.api import Context, Teacher
from bench.dp_training.accounting import DpSgdParameters, constant
from bench.dp_training.clipping import MOST_CHUNK
from bench.dp_training.coding import Coding, DrawsByRecord, MakeCoding
from bench.dp_training.dp_sgd import NoisyGradients
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.games import GROUP, SAMPLING, accounted_game, played_context
from bench.dp_training.per_sample_gradients import mean_over_views
from bench.dp_training.record_groups import RecordGroups
from bench.nets import Classifier
from bench.privacy import Unit
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.reconstruction import ReconstructionGame, SampledGaussian, sampled_log_ratio

FIRST, LAST = "body.1.weight", "body.2.weight"
"""Weights of the network in the game."""
SHORT, LONG = 3.0, 100.0
"""Norms of the records' gradients divided by the clipping norm. A quarter of the gradients is long, so that an audit
refutes a mechanism that bounds only their mean."""
LANES = 256
"""Default number of records, and so of independent plays, in one step of the game."""

PlayedCoding = Callable[[Teacher, Context], MakeCoding | None]
"""Factory of the coding for toy records; returns None for uncoded gradients."""


@dataclass(frozen=True)
class Lanes:
    """One gradient per record, in disjoint parts of the weights.

    Attributes:
        first: (lanes, outputs, inputs), gradients of the first layer's weight.
        last: (lanes, classes, outputs), gradients of the last layer's weight.
    """

    first: Tensor
    last: Tensor

    @classmethod
    def rows(cls, lanes: int = LANES, width: int = 2, last: bool = True) -> Lanes:
        """Build lanes: each is a row of the first layer's weight, of `width` numbers, and a column of the last layer's.

        Args:
            lanes: number of lanes.
            last: whether records have a gradient in the last layer.
        """
        each = torch.arange(lanes)
        of_first, of_last = torch.zeros(lanes, lanes, width), torch.zeros(lanes, 2, lanes)
        of_first[each, each] = 1 - 1.5 * torch.linspace(0, 1, width)
        if last:
            of_last[each, :, each] = torch.tensor([0.6, -0.8])
        return cls(of_first, of_last)

    def __len__(self) -> int:
        return len(self.first)

    def gradients(self, clip: float) -> dict[str, Tensor]:
        """Return {weight: (lanes, *shape)}, with norms above the clipping norm."""
        lengths = clip * torch.tensor([LONG if i % 4 == 0 else SHORT for i in range(len(self))])[:, None, None]
        norms = [each.flatten(1).norm(dim=1)[:, None, None].clamp_min(1e-30) for each in (self.first, self.last)]
        return {FIRST: lengths * self.first / norms[0], LAST: lengths * self.last / norms[1]}

    def network(self) -> Classifier:
        """Build two linear layers of the lanes' shapes."""
        layers = [
            nn.Linear(each.shape[2], each.shape[1], bias=False, dtype=torch.float32) for each in (self.first, self.last)
        ]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for layer in layers:
                nn.init.orthogonal_(layer.weight)
        return Classifier(nn.Sequential(nn.Flatten(), *layers), 0.0, 1.0)


class ChosenGradients:
    """Per-sample gradients chosen by the adversary: record i's is row `labels[i]`; NaN if its image is NaN.

    All augmented views of a record have its gradient, which is the worst case for a step that does not average them.
    """

    def __init__(self, chosen: dict[str, Tensor]) -> None:
        self.chosen = chosen

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Implement `PerSampleGradients`."""
        count = max(len(images) // max(len(labels), 1), 1)
        present = (1 + 0 * images.flatten(1).sum(1))[:, None, None]
        chosen = labels.repeat_interleave(count)
        return {name: mean_over_views(rows[chosen] * present, count) for name, rows in self.chosen.items()}

    def close(self) -> None:
        """Do nothing, as the network was not changed."""


def gradient_game(
    settings: DpSgdSettings,
    parameters: DpSgdParameters,
    claim: Callable[[DpSgdParameters], float] | None,
    delta: float,
    lanes: Lanes | None = None,
    coding: PlayedCoding | None = None,
    gradients: dict[str, Tensor] | None = None,
) -> DistinguishingGame:
    """Build the game of one `NoisyGradients` step.

    In world 1 a private record, or a group of them for unit group, is in half of the samples; in world 0 it is absent.

    Args:
        settings: settings of the training, whose clipping and augmentation the game uses.
        parameters: parameters of the mechanism; the game has the step with the least noise.
        claim: the epsilon of such a step according to the paper; None = the accounted epsilon.
        lanes: the lanes; None = `Lanes.rows()`.
        coding: factory of the coding; None = none.
        gradients: {weight: (lanes, *shape)} of the records; further rows belong to no record.
    """
    lanes = lanes or Lanes.rows()
    z = min(parameters.multipliers())
    once = replace(parameters, sampling=SAMPLING, steps=1, multiplier=z, schedule=constant)
    played = replace(settings, chunk=MOST_CHUNK, gradients="func")
    chosen = ChosenGradients(gradients or lanes.gradients(settings.clip))
    is_grouped = parameters.unit == Unit.GROUP
    training = PlayedTraining(lanes, played, coding, chosen, GROUP if is_grouped else 0)
    who = "one group of private records" if is_grouped else "one private record"

    def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
        ctx = played_context(generator, len(lanes) if world else 0)
        noisy = training.noisy_gradients(ctx, torch.full((len(lanes),), world))
        steps = range(-(-n // len(lanes)))
        own = training.gradients
        return torch.cat([_projections(noisy.coding, noisy.noisy_mean(0, z, SAMPLING), own) for _ in steps])[:n]

    describe = f"one step's noisy sum of clipped gradients, with {who} in half of the samples and without"
    game = accounted_game(play, once.ledger(), delta, describe, once.unit, claim(once) if claim else None)
    return replace(game, reconstruction=lambda steps: reconstruction_game(training, parameters, steps, who))


@dataclass(frozen=True)
class PlayedTraining:
    """Parts of a game's training except the records that are present.

    Attributes:
        settings, coding: as of `gradient_game`.
        chosen: the gradients.
        group: number of records with a lane's gradient, which are a group; 0 = one record, and no groups.
    """

    lanes: Lanes
    settings: DpSgdSettings
    coding: PlayedCoding | None
    chosen: ChosenGradients
    group: int

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Return {weight: (lanes, *shape)}: the gradients of the lanes' records."""
        return {name: rows[: len(self.lanes)] for name, rows in self.chosen.chosen.items()}

    def noisy_gradients(self, ctx: Context, present: Tensor) -> NoisyGradients:
        """Build the noisy gradients of a network.

        Args:
            present: (lanes,) bool, whether a lane's records are in the data; an absent record's image is NaN.
        """
        count, width = max(self.group, 1), self.lanes.first.shape[2]
        labels = torch.arange(len(self.lanes)).repeat_interleave(count)
        pixels = torch.where(present.repeat_interleave(count), 0.0, torch.nan)
        private = pixels[:, None, None, None].expand(-1, 1, 1, width).contiguous(), labels
        groups = None
        if self.group:
            sizes = torch.full((len(self.lanes),), self.group)
            groups = RecordGroups(torch.arange(len(labels)), sizes, self.group)
        network = self.lanes.network()
        toy = Teacher(network, "two linear layers", (1, 1, width), 2, "toy", private)
        make = self.coding(toy, ctx) if self.coding else None
        return NoisyGradients(network, toy.arch, private, self.settings, ctx, "play", make, self.chosen, groups)


def reconstruction_game(
    training: PlayedTraining, parameters: DpSgdParameters, steps: int | None, who: str
) -> ReconstructionGame:
    """Build the game of an informed adversary: every step's noisy sum, with one of K candidates in the data.

    The candidates' gradients are in different lanes, so that they are orthogonal. The known records are in no lane of a
    candidate and cannot change the scores. Lanes are divided among independent plays.

    Args:
        steps: number of steps that are played, the first ones; None = all.
        who: the candidate in words.
    """
    noise = parameters.multipliers()[: steps or parameters.steps]
    release = replace(parameters, steps=len(noise))
    ledger, lanes, q = release.ledger(), training.lanes, parameters.sampling

    def play(truths: Tensor, candidates: int, generator: torch.Generator) -> Tensor:
        found = []
        for part in truths.split(len(lanes) // candidates):
            present = torch.zeros(len(lanes), dtype=torch.bool)
            present[torch.arange(len(part)) * candidates + part] = True
            noisy = training.noisy_gradients(played_context(generator), present)
            scores = torch.zeros(len(lanes), dtype=torch.float64)
            for step, z in enumerate(noise):
                mean = noisy.noisy_mean(step, z, q)
                scores += _log_ratios(noisy.coding, mean, training.gradients, z, q, q * noisy.units)
            found.append(scores[: len(part) * candidates].view(-1, candidates))
        return torch.cat(found)

    def curve(delta: float) -> float:
        return account(ledger, parameters.unit, delta).epsilon

    is_constant = len(set(noise)) == 1
    return ReconstructionGame(
        play,
        most=len(lanes),
        curve=curve,
        pure=math.inf,
        describe=f"{len(noise)} noisy sums of clipped gradients at sampling rate {q:.4g}, with {who} of K candidates",
        gaussian=SampledGaussian(q, noise[0], len(noise)) if is_constant else None,
    )


def _log_ratios(
    coding: Coding, mean: dict[str, Tensor], gradients: dict[str, Tensor], z: float, q: float, expected: float
) -> Tensor:
    """Return (lanes,) log-likelihood ratios of one step's release, with and without each lane's record.

    With the clipped row c, the released sum R and noise of variance v per group, a sampled record has the ratio
    sum over groups of (<R, c> - |c|^2 / 2) / v. Without noise this sum with v = 1 is returned.

    Args:
        gradients: {weight: (lanes, *shape)}.
        expected: the number by which sums were divided.
    """
    if isinstance(coding, DrawsByRecord):
        coding.of(torch.arange(len(gradients[FIRST])))
    rows = {name: each.flatten(1).double() for name, each in coding.encode(gradients).items()}
    total = torch.zeros(len(gradients[FIRST]), dtype=torch.float64)
    for group in coding.groups():
        coded = torch.cat([rows[name] for name in group.names], 1)
        clipped = coded * (group.bound / coded.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp(max=1.0)
        released = torch.cat([mean[name].flatten().double() for name in group.names]) * expected
        variance = (z * group.bound) ** 2 / group.share if z else 1.0
        total += (clipped @ released - clipped.square().sum(1) / 2) / variance
    return sampled_log_ratio(total, q) if z else total


def _projections(coding: Coding, mean: dict[str, Tensor], gradients: dict[str, Tensor]) -> Tensor:
    """Return (lanes, parts): the projection of each released part on the contribution of each record's gradient.

    Args:
        gradients: {weight: (lanes, *shape)}.
    """
    if isinstance(coding, DrawsByRecord):
        coding.of(torch.arange(len(gradients[FIRST])))
    added = {name: rows.flatten(1).double() for name, rows in coding.encode(gradients).items()}
    norms = {name: rows.norm(dim=1) for name, rows in added.items()}
    along = [
        added[name] @ released.flatten().double() / norms[name]
        for name, released in mean.items()
        if bool((norms[name] > 0).all())
    ]
    return torch.stack(along, 1)
