"""The distinguishing game of one step of DP-SGD, or of a variant that clips and noises coded gradients.

The adversary chooses the network, and so each record's gradient. Here the gradients of different records are in
disjoint parts of the weights, called *lanes*. Clipping, coding and noise treat every lane independently, so that one
step is an independent play for each record. Every record's gradient is longer than the clipping norm, by various
factors. For unit group a lane has a group of records, each with the lane's gradient.
"""

from __future__ import annotations

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
from bench.privacy.audit import DistinguishingGame

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
    labels, groups, who = torch.arange(len(lanes)), None, "one private record"
    if parameters.unit == Unit.GROUP:
        labels, who = labels.repeat_interleave(GROUP), "one group of private records"
        groups = RecordGroups(torch.arange(len(labels)), torch.full((len(lanes),), GROUP), GROUP)

    def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
        ctx = played_context(generator, len(lanes) if world else 0)
        images = torch.full((len(labels), 1, 1, lanes.first.shape[2]), 0.0 if world else torch.nan)
        private = images, labels
        network = lanes.network()
        toy = Teacher(network, "two linear layers", (1, 1, lanes.first.shape[2]), 2, "toy", private)
        make = coding(toy, ctx) if coding else None
        noisy = NoisyGradients(network, toy.arch, private, played, ctx, "play", make, chosen, groups)
        own = {name: rows[: len(lanes)] for name, rows in chosen.chosen.items()}
        steps = range(-(-n // len(lanes)))
        return torch.cat([_projections(noisy.coding, noisy.noisy_mean(0, z, SAMPLING), own) for _ in steps])[:n]

    describe = f"one step's noisy sum of clipped gradients, with {who} in half of the samples and without"
    return accounted_game(play, once.ledger(), delta, describe, once.unit, claim(once) if claim else None)


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
