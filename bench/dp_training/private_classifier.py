"""A classifier trained by DP-SGD and released: the options and the conversion, shared by DP-SGD and its variants.

The algorithm is in `dp_sgd.py`. A variant overrides its specific part: the activation, the clipping groups, the noise
schedule, the theorem of its claim, or the coding of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from bench import data, nets, validate
from bench.api import Context, Release, Teacher
from bench.config import Departure, Size, Solved
from bench.dp_training.accounting import DpSgdParameters, calibrate, require_unit_example
from bench.dp_training.clipping import Clipping
from bench.dp_training.coding import MakeCoding
from bench.dp_training.dp_sgd import refuse_mixing, train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.games import RECORDS
from bench.dp_training.gradient_game import Lanes, gradient_game
from bench.dp_training.record_groups import groups_of
from bench.dp_training.records import private_records
from bench.nets import Classifier
from bench.privacy import Budget, Claim, Unit
from bench.privacy.audit import DistinguishingGame

SMOKE: dict[str, int] = {"batch": 256, "steps": 3}
QUICK: dict[str, int] = {"batch": 1024, "steps": 600}
"""Settings of tier quick, for two CPU cores, with `FALLING_RATE`."""
LIGHT: dict[str, int] = {"batch": 1024, "steps": 300}
"""Settings of tier quick for variants with more expensive steps."""
STANDARD: dict[str, int] = {"batch": 4096, "steps": 600}
"""Settings of tier standard: large batches (De et al., arXiv 2204.13650), less noise per epsilon; with
`FALLING_RATE`."""
QUIET = 0.02
"""A decaying learning rate starts at no more than QUIET q N / sigma, at which the noise of a step on a weight is
QUIET C."""
FALLING_RATE = Departure(
    what="a learning rate of 8, or less where noise is strong, that falls linearly to 0, instead of the published "
    "constant one",
    why="tiers quick and standard take 600 steps where thousands are published; chosen on data that are neither "
    "private nor test data. At quick, for dp-sgd: the rate among 2, 4, 8 and 16 on the attacker's part of "
    "Fashion-MNIST, the limit on that of digits (benchmarks/attackers_part.py). At standard: among 16 settings on "
    "USPS (benchmarks/large_batches.py)",
    sets={"rate": 8.0, "decay": True},
)


@dataclass(frozen=True)
class PrivateTraining:
    """Options of DP-SGD, with the defaults of Tramer and Boneh (ICLR 2021), and the conversion."""

    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    departures: ClassVar[tuple[Departure, ...]] = (FALLING_RATE,)
    activation: ClassVar[str] = "relu"
    clipping: ClassVar[Clipping] = "flat"
    releases_images: ClassVar[bool] = False
    protects_groups: ClassVar[bool] = False
    source: ClassVar[str]
    """Name of the paper whose algorithm the claim refers to."""

    network: Size[str] = "auto"
    """Network that is trained and released: a name (without batch normalisation); auto = relu-cnn or tanh-cnn, by the
    method's activation, for colour images relu-vgg or tanh-vgg; student = the run's --student."""
    batch: Size[int] = 0
    """B = qN, expected number of records in a batch; 0 = 512, for fmnist 2048, for cifar10 and cifar100 1024."""
    steps: Size[int] = 0
    """T, number of steps; 0 = 4680, for fmnist 1160, for cifar10 and cifar100 1440. Solved from the budget with --solve
    steps."""
    multiplier: Solved[float] = 1.07
    """sigma (or z), noise over the clipping norm; solved from the budget unless --solve steps or --epsilon none."""
    clip: float = 0.1
    """C, the clipping norm of one record's gradient."""
    rate: float = 0.0
    """eta, learning rate of SGD; 0 = 0.5, for fmnist 4, for cifar10 and cifar100 1."""
    momentum: float = 0.9
    """Momentum of SGD."""
    decay: bool = False
    """Whether the learning rate falls to 0 linearly, from `rate` or from 0.02 B / sigma, whichever is smaller."""
    average: float = 0.0
    """Release an exponential average of the weights with this decay (post-processing); 0 = the last weights."""
    views: int = 1
    """Augmented copies of each record, whose mean gradient is clipped; they cost time, not privacy. 1 = only the record
    itself."""
    gradients: Literal["opacus", "func", "layers"] = "opacus"
    """Per-sample gradients by opacus' hooks, by torch.func, or by layers (a rule for each kind of layer, the fastest
    on a CPU); the results are the same."""
    mean: float = 0.0
    """Public constant; the input of the network is (image - mean) / std."""
    std: float = 1.0
    """Public constant; the input of the network is (image - mean) / std."""

    def __post_init__(self) -> None:
        validate.positive(self, "std")
        self.settings("mnist")

    @property
    def trains_student(self) -> bool:
        """Return whether the run's `--student` network is the one that is built."""
        return self.network == "student"

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Raise BenchError, before any training, for a unit that the method does not protect or an unknown network."""
        if not (budget.unit == Unit.GROUP and self.protects_groups):
            require_unit_example(budget)
        if self.network not in ("auto", "student"):
            nets.check(self.network)

    def group_bound(self) -> int:
        """Return the largest number of records of a group that are used; 0 for a method without groups."""
        return 0

    def networks(self, shape: tuple[int, int, int], student: str) -> tuple[str, ...]:
        """Return the name of the network that is trained and released."""
        return (self._name(shape, student),)

    def gradients_at_once(self, dataset: str, group_sizes: Sequence[int] = ()) -> int:
        """Return the number of views of records whose gradients or activations are in memory at once.

        Args:
            dataset: name of the data set.
            group_sizes: numbers of private records of all groups, for unit group.
        """
        settings = self.settings(dataset)
        records = min(settings.batch, settings.chunk)
        if group_sizes:
            groups = min(settings.batch, max(settings.chunk // self.group_bound(), 1))
            records = sum(sorted((min(size, self.group_bound()) for size in group_sizes), reverse=True)[:groups])
        return records * settings.views

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Train privately on `teacher.private` and return the release; `teacher.model` is not used."""
        private, name = private_records(teacher), self._name(teacher.shape, student)
        network, settings = self._network(name, teacher), self.settings(teacher.dataset)
        groups = groups_of(teacher, budget, self.group_bound())
        units = len(private[0]) if groups is None else len(groups)
        parameters = self._calibrate(settings, units, budget)
        settings = self.limit_rate(settings, parameters, units)
        coding = self._coding(teacher, parameters, ctx)
        train(network, name, private, settings, parameters, ctx, "private training", coding, groups)
        self._finish(network)
        claim = self._claim(parameters, budget.delta)
        return Release(network, name, parameters.ledger(), claim, solved=self._solved(parameters))

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the audit's game: one noisy gradient of training."""
        settings = self.settings(dataset)
        parameters = self._calibrate(settings, RECORDS, budget)
        return gradient_game(
            settings,
            parameters,
            self._played_claim(budget.delta),
            budget.delta,
            lanes := self._played_lanes(),
            lambda teacher, ctx: self._played_coding(teacher, parameters, ctx),
            self._played_gradients(lanes),
        )

    def _played_claim(self, delta: float) -> Callable[[DpSgdParameters], float] | None:
        """Return the epsilon of one step according to the paper; None = the accounted epsilon."""
        return None

    def _played_lanes(self) -> Lanes:
        """Return gradients for the game in disjoint parts of the weights (lanes), which the coding keeps disjoint."""
        return Lanes.rows()

    def _played_gradients(self, lanes: Lanes) -> dict[str, Tensor]:
        """Return the records' game gradients, longer than the clipping norm."""
        return lanes.gradients(self.clip)

    def _played_coding(self, teacher: Teacher, parameters: DpSgdParameters, ctx: Context) -> MakeCoding | None:
        """Return the coding for the toy network of a game, as `_coding`."""
        return self._coding(teacher, parameters, ctx)

    def limit_rate(self, settings: DpSgdSettings, parameters: DpSgdParameters, records: int) -> DpSgdSettings:
        """Return settings with a rate low enough that noise does not dominate the first, fastest steps (`QUIET`)."""
        if not self.decay or parameters.multiplier == 0:
            return settings
        expected = min(settings.batch, records)
        return replace(settings, rate=min(settings.rate, QUIET * expected / parameters.multiplier))

    def _calibrate(self, settings: DpSgdSettings, records: int, budget: Budget) -> DpSgdParameters:
        """Return q, T and sigma for this many records, or groups, calibrated to the budget.

        The claim is the accounted epsilon.
        """
        parameters = settings.parameters(records)
        if budget.unit == Unit.GROUP and self.protects_groups:
            parameters = replace(parameters, unit=Unit.GROUP, largest=self.group_bound())
        return calibrate(parameters, budget)

    def _claim(self, parameters: DpSgdParameters, delta: float) -> Claim:
        return parameters.claim(delta, f"{self.source}, by the bench's accountant")

    def _solved(self, parameters: DpSgdParameters) -> dict[str, float]:
        return parameters.solved()

    def _coding(self, teacher: Teacher, parameters: DpSgdParameters, ctx: Context) -> MakeCoding | None:
        """Return the transform of the gradients before clipping, for the noise of `parameters`.

        None = no transform.
        """
        return None

    def _finish(self, network: Classifier) -> None:
        """Post-process the trained network before it is released; by default nothing."""

    def _name(self, shape: tuple[int, int, int], student: str) -> str:
        auto = f"{self.activation}-{'vgg' if shape[0] == 3 else 'cnn'}"
        return {"auto": auto, "student": student}.get(self.network, self.network)

    def _network(self, name: str, teacher: Teacher) -> Classifier:
        network = nets.build(name, teacher.shape, teacher.classes)
        refuse_mixing(network, name)
        network.mean.fill_(self.mean)
        network.std.fill_(self.std)
        return network

    def settings(self, dataset: str) -> DpSgdSettings:
        """Return the training settings, with the published values for `dataset` where an option is 0."""
        batch, steps, rate = data.facts(dataset).dp_sgd
        return DpSgdSettings(
            batch=self.batch or batch,
            steps=self.steps or steps,
            multiplier=self.multiplier,
            clip=self.clip,
            clipping=self.clipping,
            rate=self.rate or rate,
            momentum=self.momentum,
            decay=self.decay,
            views=self.views,
            average=self.average,
            gradients=self.gradients,
        )
