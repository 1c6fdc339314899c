"""What DP-SGD and its relatives share: the options, and that a network is trained privately and released itself.

The algorithm is `dp_sgd.py`. A relative overrides what makes it one: the activation, the groups that are clipped, the
schedule of the noise, or the theorem it claims by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from bench import nets
from bench.api import Context, Release, Teacher
from bench.dp_training.dp_sgd import Plan, Settings, check_unit, private_records, refuse_mixing, solve, train
from bench.nets import Classifier
from bench.privacy import Budget, Claim, Unit


class Recipe(NamedTuple):
    """B, T and the learning rate of one data set."""

    batch: int
    steps: int
    rate: float


RECIPES = {
    "mnist": Recipe(512, 4680, 0.5),
    "fmnist": Recipe(2048, 1160, 4.0),
    "cifar10": Recipe(1024, 1440, 1.0),
}
"""Tramer and Boneh's, of 40, 40 and 30 passes over all training images; other data sets have the first."""

SMOKE: dict[str, Any] = {"batch": 256, "steps": 3}
QUICK: dict[str, Any] = {"batch": 1024, "steps": 600, "rate": 2.0, "decay": True}
"""dp-teacher's, which were chosen for two CPU cores."""


@dataclass(frozen=True)
class PrivateTraining:
    """Options of DP-SGD, with the defaults of Tramer and Boneh (ICLR 2021), and the conversion."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    activation: ClassVar[str] = "relu"
    clipping: ClassVar[Literal["flat", "layer"]] = "flat"
    source: ClassVar[str]
    """Whose algorithm the claim is for."""

    network: str = "auto"
    """Network trained and released: auto = {relu,tanh}-cnn, of colour images -vgg; student = the run's --student; or a
    name. None with batch normalisation."""
    batch: int = 0
    """B = qN, records expected in a batch; 0 = 512, of fmnist 2048, of cifar10 1024."""
    steps: int = 0
    """T; 0 = 4680, of fmnist 1160, of cifar10 1440. Solved from the budget with --solve steps."""
    multiplier: float = 1.07
    """sigma (or z), noise over the clipping norm; solved from the budget unless --solve steps or --epsilon none."""
    clip: float = 0.1
    """C, the clipping norm of one record's gradient."""
    rate: float = 0.0
    """eta, learning rate of SGD; 0 = 0.5, of fmnist 4, of cifar10 1."""
    momentum: float = 0.9
    """Momentum of SGD."""
    decay: bool = False
    """The learning rate falls to 0 linearly."""
    average: float = 0.0
    """Release an exponential average of the weights with this decay (post-processing); 0 = the last weights."""
    views: int = 1
    """Jittered copies of each record, whose mean gradient is clipped; costs time, no privacy. 1 = the record itself."""
    gradients: Literal["opacus", "func"] = "opacus"
    """Per-sample gradients by opacus' hooks or by torch.func; the results are the same."""
    mean: float = 0.0
    """The network sees (image - mean) / std; a public constant."""
    std: float = 1.0
    """The network sees (image - mean) / std; a public constant."""

    def __post_init__(self) -> None:
        if not self.std > 0:
            raise ValueError(f"std is {self.std}; expected more than 0")
        self._settings("mnist")

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit and an unknown network, before anything is trained."""
        check_unit(budget)
        if self.network not in ("auto", "student"):
            nets.check(self.network)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Train privately on `teacher.private` and release; `teacher.model` is used for nothing."""
        private, name = private_records(teacher), self._name(teacher.shape, student)
        network, settings = self._network(name, teacher), self._settings(teacher.dataset)
        plan = self._plan(settings, len(private[0]), budget)
        train(network, name, private, settings, plan, ctx, "private training")
        self._finish(network)
        solved = {"sigma": plan.multiplier, "steps": plan.steps, "sampling": plan.sampling}
        return Release(network, name, plan.ledger(), self._claim(plan, budget.delta), solved=solved)

    def _plan(self, settings: Settings, records: int, budget: Budget) -> Plan:
        """q, T and sigma within the budget; claim and account are one number."""
        return solve(settings, records, budget)

    def _claim(self, plan: Plan, delta: float) -> Claim:
        return plan.claim(delta, f"{self.source}, by the bench's accountant")

    def _finish(self, network: Classifier) -> None:
        """What is done to the trained network before it is released."""

    def _name(self, shape: tuple[int, int, int], student: str) -> str:
        auto = f"{self.activation}-{'vgg' if shape[0] == 3 else 'cnn'}"
        return {"auto": auto, "student": student}.get(self.network, self.network)

    def _network(self, name: str, teacher: Teacher) -> Classifier:
        network = nets.build(name, teacher.shape, teacher.classes)
        refuse_mixing(network, name)
        network.mean.fill_(self.mean)
        network.std.fill_(self.std)
        return network

    def _settings(self, dataset: str) -> Settings:
        recipe = RECIPES.get(dataset, RECIPES["mnist"])
        return Settings(
            batch=self.batch or recipe.batch,
            steps=self.steps or recipe.steps,
            multiplier=self.multiplier,
            clip=self.clip,
            clipping=self.clipping,
            rate=self.rate or recipe.rate,
            momentum=self.momentum,
            decay=self.decay,
            views=self.views,
            average=self.average,
            gradients=self.gradients,
        )
