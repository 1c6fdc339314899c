"""Label differential privacy, as the baselines that train on private images with noisy labels share it.

Neighbours differ in one private record's label, which is replaced; the images are public in this model. A label is
randomised once, before any training, and nothing else of it is used, so that whatever is trained on the noisy labels,
for however many passes, is post-processing. Where labels are randomised in disjoint parts, one after the other, a
label is still used once (parallel composition).

Privacy. Unit `label`: the one randomisation of a label, pure where it is a randomised response or Laplace noise. Unit
`example`: infinite, as the private images train the student unprotected. The two are never comparable.

Training is plain: passes over the records in random order, by SGD or Adam; a pass leaves out the records that do not
fill a batch. Orders, jitter and mixing do not depend on the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting import DpEvent, NonPrivateDpEvent
from torch import Tensor

from bench import nets
from bench.api import Context, Release, Teacher
from bench.data import to_float
from bench.data.affine import random_affine
from bench.errors import BenchError
from bench.nets import Classifier
from bench.privacy import Budget, Claim, Ledger, Unit, randomised_response_event
from bench.privacy.accountant import epsilon as accounted_epsilon
from bench.privacy.audit import Game, worst
from bench.privacy.limits import check_response_epsilon
from bench.privacy.mechanisms import randomised_response
from bench.seeds import derive

RowLoss = Callable[[Tensor, Tensor, float], Tensor]
"""(b, c) logits, (b,) numbers of the records, share in [0, 1) of the training that is done, to (b,) losses."""
Answer = Callable[[Tensor, torch.Generator], Tensor]
"""(n,) labels and a generator to (n, d): all that is released of them."""

UNITS = (Unit.LABEL, Unit.EXAMPLE)
CHUNK = 8192
SMOKE = {"epochs": 1, "batch": 32, "optimizer": "adam", "rate": 1e-3, "augment": False}
QUICK = {
    "epochs": 3,
    "least_steps": 300,
    "batch": 256,
    "optimizer": "adam",
    "rate": 1e-3,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "warmup": 0.0,
    "augment": False,
}
"""A few passes for two CPU cores; chosen by time, without looking at any accuracy."""


@dataclass(frozen=True)
class LabelPrivate:
    """Training on noisy labels, and what all of these methods promise; the defaults are Ghazi et al.'s (2021)."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    unit: ClassVar[str] = str(Unit.LABEL)
    responds: ClassVar[bool] = True
    """Whether labels are answered by a randomised response, whose epsilon has a limit."""

    label_epsilon: float = 1.0
    """epsilon of one label's randomisation, where no budget determines it (--epsilon none or --solve none)."""
    epochs: int = 200
    """Passes over the records, in each stage."""
    least_steps: int = 0
    """Steps of a stage at least: small data sets are passed over more often."""
    batch: int = 512
    """Records per step; at least 2."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    rate: float = 0.4
    """Highest learning rate."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 1e-4
    """L2 penalty on all parameters."""
    schedule: Literal["steps", "cosine", "constant"] = "steps"
    """After the warm-up the rate is multiplied by `drop` at 30, 60 and 90 % of the steps, or falls along a cosine."""
    warmup: float = 0.15
    """Share of the steps in which the rate rises linearly."""
    drop: float = 0.1
    """Factor of schedule steps."""
    augment: bool = True
    """Images are turned, scaled, sheared and moved a little whenever they are seen."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("least_steps", 0), ("batch", 2), ("weight_decay", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        for name in ("label_epsilon", "rate", "drop"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("momentum", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 <= {name} < 1")
        if self.optimizer == "sgd" and self.momentum == 0:
            raise ValueError("momentum is 0; expected more, as Nesterov's SGD needs it (or optimizer adam)")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse what label privacy cannot promise, before anything is trained."""
        epsilon = self.epsilon_of(budget)
        if self.responds:
            check_response_epsilon(epsilon, 2)

    def epsilon_of(self, budget: Budget) -> float:
        """epsilon of one label's randomisation within `budget`, > 0; infinity = no noise.

        Raises:
            BenchError: a unit other than label and example, an account of examples, steps to solve for, or fields over
                the budget.
        """
        if budget.unit not in UNITS:
            raise BenchError(f"--unit {budget.unit}: labels are protected and images are not; use --unit label")
        if budget.epsilon is None:
            return self.label_epsilon
        if math.isinf(budget.epsilon):
            return math.inf
        if budget.account == "accounted" and budget.unit != Unit.LABEL:
            raise BenchError(
                f"--account accounted --unit {budget.unit}: the private images are used unprotected, so that no "
                "finite epsilon holds for a record; add --unit label"
            )
        if budget.solve == "steps":
            raise BenchError("--solve steps: a label is randomised once, whatever the steps; use --solve sigma")
        if budget.solve == "sigma":
            return budget.epsilon
        if self.label_epsilon > budget.epsilon:
            raise BenchError(
                f"--solve none: --method.label_epsilon {self.label_epsilon:g} is over --epsilon {budget.epsilon:g}; "
                "lower it, or use --solve sigma"
            )
        return self.label_epsilon

    def network(self, teacher: Teacher, student: str, ctx: Context) -> Classifier:
        """A fresh student on the context's device."""
        return ctx.prepared(nets.build(student, teacher.shape, teacher.classes))

    def train(
        self,
        model: Classifier,
        images: Tensor,
        records: Tensor,
        loss: RowLoss,
        ctx: Context,
        stage: str,
        mixup: float = 0.0,
    ) -> None:
        """Train `model` in place on some of the records; it ends in eval mode.

        Args:
            images: (n, c, h, w) uint8, on the context's device.
            records: (m,) int64, which of them; m at least 2.
            loss: from noisy labels alone.
            stage: what the progress bar says, and the name of the randomness.
            mixup: alpha of the Beta distribution by which two images, and their losses, are mixed; 0 = none.

        Raises:
            BenchError: fewer than 2 records.
            RuntimeError: the weights became NaN or infinite.
        """
        if len(records) < 2:
            raise BenchError(f"{stage}: {len(records)} private record(s) to train on; expected at least 2")
        batch = min(self.batch, len(records))
        per_epoch = len(records) // batch
        total = max(self.epochs * per_epoch, self.least_steps)
        rng, mix = ctx.generator(stage), np.random.default_rng(derive(ctx.seed, stage, "mixup"))
        ask, optimizer = ctx.compiled(model), self._optimizer(model)
        model.train()
        with ctx.track(stage, total) as advance:
            for step in range(total):
                place = step % per_epoch
                if place == 0:
                    shuffled = records[torch.randperm(len(records), generator=rng, device=rng.device)]
                chosen = shuffled[place * batch : (place + 1) * batch]
                for group in optimizer.param_groups:
                    group["lr"] = self.rate * self.rate_factor(step, total)
                share = mix.beta(mixup, mixup) if mixup else 1.0
                partner = torch.randperm(batch, generator=rng, device=rng.device)
                x = to_float(images[chosen])
                x = random_affine(x, rng) if self.augment else x
                x = share * x + (1 - share) * x[partner] if mixup else x
                with ctx.precision():
                    logits = ask(x)
                rows = loss(logits.float(), chosen, step / total)
                if mixup:
                    rows = share * rows + (1 - share) * loss(logits.float(), chosen[partner], step / total)
                optimizer.zero_grad(set_to_none=True)
                rows.mean().backward()
                optimizer.step()
                advance(1)
        optimizer.zero_grad(set_to_none=True)
        model.eval()
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            raise RuntimeError(f"{stage}: the weights became NaN or infinite; lower the learning rate")

    def rate_factor(self, step: int, total: int) -> float:
        """The rate of a step from 0 to total - 1 over the highest one."""
        rising = int(self.warmup * total)
        if step < rising:
            return (step + 1) / rising
        if self.schedule == "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * (step - rising) / (total - rising))
        if self.schedule == "constant":
            return 1.0
        return self.drop ** sum(10 * step >= at * total for at in (3, 6, 9))

    def _optimizer(self, model: Classifier) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return torch.optim.Adam(model.parameters(), lr=self.rate, weight_decay=self.weight_decay)
        return torch.optim.SGD(
            model.parameters(), lr=self.rate, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=True
        )


def respond(labels: Tensor, classes: int, epsilon: float, rng: torch.Generator) -> Tensor:
    """(n,) labels kept with probability e^epsilon / (e^epsilon + K - 1), else another class, evenly."""
    every = torch.arange(classes, device=labels.device)
    parts = labels.split(CHUNK)
    return torch.cat([randomised_response(part, every.expand(len(part), -1), epsilon, rng) for part in parts])


def response_probabilities(classes: int, epsilon: float) -> tuple[float, float]:
    """Chance of the own class, and of each other one, as an answer of `respond`.

    >>> [round(p, 4) for p in response_probabilities(10, math.log(11))]
    [0.55, 0.05]
    """
    odds = math.exp(-epsilon)
    kept = 1 / (1 + (classes - 1) * odds)
    return kept, kept * odds


def cross_entropy(labels: Tensor) -> RowLoss:
    """The loss of given labels, one per record: (n,) int64."""
    return lambda logits, chosen, done: F.cross_entropy(logits, labels[chosen], reduction="none")


def response_event(epsilon: float, choices: int) -> DpEvent:
    """The event of one randomised response; without noise, nothing that can be proved."""
    return NonPrivateDpEvent() if math.isinf(epsilon) else randomised_response_event(epsilon, choices)


def label_ledger(event: DpEvent, why: str, count: int = 1) -> Ledger:
    """What the randomisation of one label takes, and that the images are not protected at all."""
    ledger = Ledger()
    ledger.spend(event, count=count, unit=Unit.LABEL, why=why)
    ledger.spend(NonPrivateDpEvent(), unit=Unit.EXAMPLE, why="the private images train the student unprotected")
    return ledger


def label_claim(epsilon: float, source: str, delta: float = 0.0) -> Claim:
    """The paper's promise for one label."""
    return Claim(epsilon, delta, Unit.LABEL, source)


def label_game(answer: Answer, pairs: list[tuple[int, int]], ledger: Ledger, claim: Claim, delta: float) -> Game:
    """One label's randomised answer, the label being one of two; the pair that looks worst in a short trial.

    Args:
        answer: the mechanism, for (n,) labels.
        pairs: classes that a label may have in the two worlds.
    """
    proved = accounted_epsilon(ledger, Unit.LABEL, delta)
    held = max(claim.delta, proved.delta if proved.finite else 0.0)

    def game(pair: tuple[int, int]) -> Game:
        def play(world: bool, n: int, generator: torch.Generator) -> Tensor:
            return answer(torch.full((n,), pair[int(world)]), generator).float()

        what = f"what is kept of one label, of class {pair[0]} or {pair[1]}"
        return Game(play, claim.epsilon, proved.epsilon, held, what)

    return worst([game(pair) for pair in pairs])


def released(model: Classifier, student: str, ledger: Ledger, claim: Claim, epsilon: float, **solved: float) -> Release:
    """The trained student with its ledger; what the budget determined is written down where it is finite."""
    if math.isfinite(epsilon):
        solved["label_epsilon"] = epsilon
    return Release(model, student, ledger, claim, solved=solved)
