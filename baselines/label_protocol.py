"""Label-only DP-SGD: noise is added only to the part of a batch's gradient that depends on labels.

Reference: Yuan, Shen, Mironov, Nascimento, "Practical, Label Private Deep Learning Training based on Secure Multiparty
Computation and Differential Privacy", IACR ePrint 2021/835, NeurIPS PriML workshop 2021: one party has the images,
another one the labels, and noisy information is released during a joint computation. This is its differentially private
part without the cryptography. theta are the weights, z_i the logits of record i, p_i their softmax, J_i the Jacobian of
z_i with respect to theta, e_c a one-hot vector:

1. Records are shuffled independently of labels and passed over E times, in batches of B.
2. s_i = min(1, C / max over c, c' of ||J_i^T (e_c - e_c')||): the party with the images bounds the effect of a label.
3. The gradient of the cross-entropy is the sum of J_i^T (p_i - e_{y_i}). The clear part is sum_i s_i J_i^T p_i; the
   secret part, linear in one-hot labels, is released as sum_i s_i J_i^T e_{y_i} + N(0, sigma^2 C^2 I).
4. theta takes a step of SGD along (clear - secret) / B.

The undefended teacher of the run is not used.

Privacy. Replacing label y_i by y' moves the secret part of the one batch of a pass that has i by
s_i ||J_i^T (e_{y_i} - e_{y'})|| <= C, and nothing else: one Gaussian mechanism of multiplier sigma a pass, E in all,
for one label replaced (unit `label`). Later steps depend on earlier releases, which adaptive composition covers. Random
batches do not amplify privacy: the party with the images knows their records. The images are used unprotected (unit
`example`: no guarantee).

Differs from the paper:
- It is a reconstruction: the protocol itself, its settings and its theorem were not available. The claim is computed by
  the bench's accountant; E, B, C and the rates are this project's.
- The secure multiparty computation of the secret part is left out, and so is its cost.
- The network stays in evaluation mode: no dropout, and BatchNorm, which would mix records, keeps its initial
  statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from torch import Tensor, nn

from bench import data, nets, validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Departure, Size
from bench.data import to_float
from bench.dp_training.clipping import LARGEST_CLIP, LEAST_CLIP, MOST_CHUNK, ROOM
from bench.dp_training.games import accounted_game
from bench.dp_training.label_privacy import label_claim, label_epsilon, label_ledger, released
from bench.dp_training.records import private_records
from bench.errors import BenchError
from bench.nets import Classifier, SmallNet
from bench.privacy import Budget, Claim, Ledger, Unit, Unreachable, calibrate_noise
from bench.privacy.accountant import account
from bench.privacy.audit import DistinguishingGame
from bench.privacy.noise import Noise

SOURCE = "label-only DP-SGD after Yuan et al. 2021, by the bench's accountant"
WHY = "noise on the labels' part of a batch's gradient; a label is in one batch of a pass"
MOST_NUMBERS, MOST_OF_A_RECORD = 1 << 25, 1 << 27
"""Largest number of entries of the Jacobians in memory, and of one record's Jacobian."""
PLAYED = 64
"""Plays that one release of an audit game simulates."""
Parts = tuple[Tensor, Tensor]
"""The clear and the secret part of a gradient, (P,) float64 each."""
Split = Callable[[Tensor], Parts]
"""Maps the indices of a batch's records to the parts of its gradient."""


@dataclass(frozen=True)
class LabelProtocol:
    """DP-SGD with noise that protects only labels; images are public."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Yuan et al., ePrint 2021/835, the differentially private part, reconstructed"
    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    releases_images: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.LABEL)
    tiers: ClassVar[Tiers] = {"smoke": {"epochs": 1}, "quick": {"epochs": 20}}
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure(
            what="only the last layer of scatter-linear is trained, on fixed wavelet features (of the mean over "
            "colours)",
            why="every weight gets noise, and with it 20 passes do not train convolutions; the Jacobian of one layer "
            "has a closed form, that of a whole network takes a backward pass for every class and record",
            sets={"network": "scatter-linear"},
        ),
        Departure(
            what="all records are one batch, and the rate is 0.3",
            why="the ratio of noise to signal is smallest for the largest batch; the rate is the best of 0.03, 0.3 and "
            "3 for 1,200 images of USPS at epsilon 1, tier quick, one seed, tested on 1,000 others",
            sets={"batch": 0, "rate": 0.3},
            worth="78 % there, 61 % at 0.03 and 71 % at 3",
        ),
    )

    label_epsilon: float = 1.0
    """epsilon of one label if the budget does not determine it (--epsilon none or --solve none)."""
    epochs: Size[int] = 50
    """E, passes over the records; the noise grows with sqrt(E)."""
    batch: Size[int] = 1024
    """B, records per step; an incomplete last batch of a pass is left out. 0 = all records in one step."""
    clip: float = 1.0
    """C, largest change of the secret part by one label."""
    rate: float = 0.1
    """Learning rate of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""
    network: str = "student"
    """Network that is trained and released: student = the run's --student, or the name of a network."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "epochs")
        validate.at_least(self, 0, "batch", "momentum")
        validate.below(self, 1, "momentum")
        validate.positive(self, "label_epsilon", "rate")
        validate.between(self, LEAST_CLIP, LARGEST_CLIP, "clip")

    @property
    def trains_student(self) -> bool:
        """Whether the run's --student network is trained."""
        return self.network == "student"

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse budgets that label privacy cannot meet, and an unknown network, before anything is trained."""
        self._sigma(budget)
        if self.network != "student":
            nets.check(self.network)

    def networks(self, shape: tuple[int, int, int], student: str) -> tuple[str, ...]:
        """Return the networks that are built in addition to the teacher's."""
        return (student if self.network == "student" else self.network,)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Train by steps 1 to 4 on `teacher.private`; `teacher.model` is not used."""
        images, labels = private_records(teacher, ctx.device)
        sigma, name = self._sigma(budget), student if self.network == "student" else self.network
        model = ctx.prepared(nets.build(name, teacher.shape, teacher.classes)).eval()
        self._train(model, splitter(model, images, labels, self.clip), len(labels), sigma, ctx)
        ledger, claim = self._ledger(sigma), self._claim(sigma, budget.delta)
        return released(model, name, ledger, claim, claim.epsilon, sigma=sigma)

    def _train(self, model: Classifier, split: Split, records: int, sigma: float, ctx: Context) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)
        rng, noise = ctx.generator("label-protocol"), ctx.privacy_noise("label-protocol")
        size = min(self.batch or records, records)
        with ctx.track("label-only DP-SGD", self.epochs * (records // size)) as advance:
            for _ in range(self.epochs):
                order = torch.randperm(records, generator=rng, device=rng.device)  # 1
                for start in range(0, records - size + 1, size):
                    chosen = order[start : start + size]
                    clear, secret = noisy_parts(split, chosen, sigma * self.clip, noise)  # 2 and 3
                    assign(parameters, (clear - secret) / size)  # 4
                    optimizer.step()
                    advance(1)
        optimizer.zero_grad(set_to_none=True)
        if not all(bool(p.isfinite().all()) for p in parameters):
            raise RuntimeError("label-only DP-SGD: the weights became NaN or infinite; lower the learning rate")

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: the secret part of one pass, with a record of one of two classes.

        The network is linear, and every record has a separate bright pixel, so that one release simulates PLAYED plays.
        """
        sigma, fixed = self._sigma(budget), self._fixed_features(dataset, classes)
        images = (255 * torch.eye(PLAYED, dtype=torch.uint8)).view(PLAYED, 1, 1, PLAYED)
        model = Classifier(
            PlayedHead() if fixed else nn.Sequential(nn.Flatten(), played_layer()), 0.0, 1e-3 / self.clip
        )

        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            split = splitter(model, images, torch.full((PLAYED,), int(world)), self.clip)
            every, noise = torch.arange(PLAYED), Noise.of(generator)
            rounds = range(-(-n // PLAYED))
            found = [noisy_parts(split, every, sigma * self.clip, noise)[1] for _ in rounds]
            return torch.cat([part[: 2 * PLAYED].view(2, PLAYED).T for part in found])[:n]

        ledger = label_ledger(GaussianDpEvent(sigma) if sigma else NonPrivateDpEvent(), WHY)
        describe = "the secret part of one pass, with a record of class 0 or of class 1"
        return accounted_game(play, ledger, budget.delta, describe, Unit.LABEL)

    def _fixed_features(self, dataset: str, classes: int) -> bool:
        """Whether only the last layer of the named network has weights."""
        if self.network == "student":
            return False
        body = nets.build(self.network, data.facts(dataset).shape or (1, 28, 28), classes).body
        return isinstance(body, SmallNet) and not list(body.trunk.parameters())

    def _sigma(self, budget: Budget) -> float:
        """Return the smallest sigma with which E releases meet the budget; 0 for an infinite epsilon."""
        if budget.solve == "steps":
            raise BenchError("--solve steps: the number of passes is an option here; use --solve sigma")
        epsilon = label_epsilon(budget, self.label_epsilon)
        if math.isinf(epsilon):
            return 0.0

        def cost(sigma: float) -> float:
            return account(self._ledger(sigma), Unit.LABEL, budget.delta).epsilon

        try:
            return calibrate_noise(cost, epsilon, 0.5, 8.0, rtol=1e-5)
        except Unreachable as error:
            raise BenchError(f"--epsilon {epsilon:g}: {error}") from None

    def _ledger(self, sigma: float) -> Ledger:
        if sigma == 0:
            return label_ledger(NonPrivateDpEvent(), "labels without noise")
        return label_ledger(GaussianDpEvent(sigma), WHY, count=self.epochs)

    def _claim(self, sigma: float, delta: float) -> Claim:
        found = account(self._ledger(sigma), Unit.LABEL, delta).epsilon
        return label_claim(found, SOURCE, delta if math.isfinite(found) else 0.0)


def noisy_parts(split: Split, chosen: Tensor, std: float, noise: Noise) -> Parts:
    """Return the clear part, and the secret part with noise: the only use of the labels of the `chosen` records.

    Both training and the audit's game call this function.
    """
    clear, secret = split(chosen)
    return clear, noise.gaussian(secret, std)


def played_layer(bias: bool = False) -> nn.Linear:
    """Build the last layer of an audit game's network: two classes with zero weights."""
    layer = nn.Linear(PLAYED, 2, bias=bias)
    for weight in layer.parameters():
        nn.init.zeros_(weight)
    return layer


class PlayedHead(SmallNet):
    """Network of an audit game whose features are the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Sequential(nn.Flatten()), played_layer(bias=True)


def splitter(model: Classifier, images: Tensor, labels: Tensor, clip: float) -> Split:
    """Return the function that computes the parts of a batch's gradient (steps 2 and 3).

    It uses the closed form for the last layer if no other layer has weights.
    """
    body = model.body
    if isinstance(body, SmallNet) and not list(body.trunk.parameters()):
        with torch.no_grad():
            rows = torch.cat([model.features(to_float(part)) for part in images.split(MOST_CHUNK)])
        return lambda chosen: of_last_layer(body.head, rows[chosen], labels[chosen], clip)
    return lambda chosen: of_all_weights(model, images[chosen], labels[chosen], clip)


def of_all_weights(model: Classifier, images: Tensor, labels: Tensor, clip: float) -> Parts:
    """Compute the clear and the secret part from the Jacobians of all weights, which are ordered as `parameters()`."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    numbers = sum(p.numel() for p in parameters.values())
    classes = int(model(to_float(images[:1])).shape[1])

    def logits(weights: dict[str, Tensor], image: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.func.functional_call(model, weights, (image[None],))[0]
        return found, found

    jacobian = torch.func.vmap(torch.func.jacrev(logits, has_aux=True), in_dims=(None, 0))
    clear, secret = (torch.zeros(numbers, dtype=torch.float64, device=images.device) for _ in range(2))
    if numbers * classes > MOST_OF_A_RECORD:
        raise BenchError(
            f"label-protocol: the Jacobian of one record has {numbers:,} weights times {classes} classes = "
            f"{numbers * classes:,} entries; expected at most {MOST_OF_A_RECORD:,}: use a smaller --student, or "
            "--method.network scatter-linear"
        )
    size = max(1, min(MOST_CHUNK, MOST_NUMBERS // (numbers * classes)))
    for part, own in zip(images.split(size), labels.split(size), strict=True):
        found, z = jacobian(parameters, to_float(part))
        rows = torch.cat([found[name].flatten(2) for name in parameters], 2)
        one, other = parts(rows, z.softmax(1), own, clip)
        clear, secret = clear + one, secret + other
    return clear, secret


def parts(jacobians: Tensor, p: Tensor, labels: Tensor, clip: float) -> Parts:
    """Compute sum_i s_i J_i^T p_i and sum_i s_i J_i^T e_{y_i} from (n, K, P) Jacobians, (n, K) p and (n,) labels."""
    # In float64: in float32 another label would change the rounding errors of the whole sum, by more than C in total
    scaled = factors(jacobians, clip)[:, None, None].double() * jacobians.nan_to_num(0.0, 0.0, 0.0).double()
    own = F.one_hot(labels, p.shape[1]).double()
    clear, secret = (torch.einsum("nk,nkp->p", each, scaled) for each in (p.nan_to_num(0.0).double(), own))
    return clear, secret


def factors(jacobians: Tensor, clip: float) -> Tensor:
    """Compute (n,) factors s_i of (n, K, P) Jacobians; 0 for a record with NaN or infinity.

    The differences of classes are bounded: the mean over classes is subtracted before the norms, against rounding.
    """
    centred = jacobians - jacobians.mean(1, keepdim=True)
    gram = centred @ centred.mT
    squares = gram.diagonal(dim1=1, dim2=2)
    widest = (squares[:, :, None] + squares[:, None, :] - 2 * gram).flatten(1).amax(1)
    factor = (ROOM * clip / widest.clamp_min(1e-30).sqrt()).clamp(max=1.0)
    return factor.masked_fill(~widest.isfinite(), 0.0)


@torch.no_grad()
def of_last_layer(head: torch.nn.Linear, rows: Tensor, labels: Tensor, clip: float) -> Parts:
    """Compute the clear and the secret part if only the last layer has weights.

    Then J_i^T e_c is record i's feature row, with a 1 appended for the bias, at class c, and 0 at the other classes.
    """
    numbers = (head.out_features, head.in_features + 1)
    clear, secret = (torch.zeros(numbers, dtype=torch.float64, device=rows.device) for _ in range(2))
    for part, own in zip(rows.split(MOST_CHUNK), labels.split(MOST_CHUNK), strict=True):
        longer = F.pad(part, (0, 1), value=1.0).double()  # as in `parts`
        factor = (ROOM * clip / (math.sqrt(2) * longer.norm(dim=1, keepdim=True))).clamp(max=1.0)
        clear += (factor * head(part).softmax(1)).T @ longer
        secret += (factor * F.one_hot(own, head.out_features)).T @ longer
    one, other = (torch.cat([sums[:, :-1].flatten(), sums[:, -1]]) for sums in (clear, secret))
    return one, other


def assign(parameters: list[torch.nn.Parameter], gradient: Tensor) -> None:
    """Store a (P,) gradient in the parameters' `grad`."""
    for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p).to(p.dtype)
