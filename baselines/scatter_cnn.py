"""ScatterNet CNN: two small convolutions on fixed scattering features, trained by DP-SGD.

Reference: Tramer and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", ICLR 2021,
section 3.

1. Features are the scattering maps of a record, 81 per channel, group-normalised for each image. They depend only on
   that record and on public constants, and are computed once per data set and cached.
2. DP-SGD (`bench/dp_training/dp_sgd.py`) trains two convolutions with tanh on the features.
3. Features and convolutions are released as one network, `wavelet-cnn`, which maps raw images to logits.

Privacy. That of `dp-sgd`: T Poisson-sampled Gaussians for one added or removed record; claim and account are the same
number. Step 1 is not accounted, because a record's features do not depend on other records. The choice of
hyper-parameters is not accounted.

Differs from the paper:
- Features are normalised by groups of three maps, at no cost. The paper normalises those of MNIST and CIFAR-10 by
  means and variances of the private data, which it accounts.
- Batches are Poisson samples, as the analysis requires, while the released code shuffles; accounted by privacy loss
  distributions instead of Renyi divergences.
- The defaults, and tier `standard`, are those for MNIST, for every data set. For Fashion-MNIST the paper has
  --method.batch 2048 --method.steps 1172 --method.rate 4, for CIFAR-10 8192, 366 and 4.
- Features are stored in float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from bench import nets, validate
from bench.api import Context, Release, Teacher
from bench.api.context import Tiers
from bench.config import Size, Solved
from bench.dp_training.accounting import DpSgdParameters, calibrate, require_unit_example
from bench.dp_training.dp_sgd import train
from bench.dp_training.dp_sgd_settings import DpSgdSettings
from bench.dp_training.fixed_features import kept_features
from bench.dp_training.games import RECORDS
from bench.dp_training.gradient_game import gradient_game
from bench.dp_training.records import private_records
from bench.nets import Classifier
from bench.privacy import Budget, Unit
from bench.privacy.audit import DistinguishingGame

NAME, FEATURES = "wavelet-cnn", "wavelet-linear"
"""The released network, and the network with the same features, by whose name they are cached."""


@dataclass(frozen=True)
class ScatterCnn:
    """DP-SGD on scattering features of the private records; the network with its features is released."""

    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Tramer and Boneh, ICLR 2021, section 3"
    needs: ClassVar[frozenset[str]] = frozenset({"private_data"})
    releases_images: ClassVar[bool] = False
    trains_student: ClassVar[bool] = False
    unit: ClassVar[str] = str(Unit.EXAMPLE)
    tiers: ClassVar[Tiers] = {
        "smoke": {"batch": 256, "steps": 3},
        "quick": {"batch": 1024, "steps": 500},
        "standard": {"batch": 1024, "steps": 1465},
    }

    batch: Size[int] = 1024
    """B = qN, expected number of records in a batch."""
    steps: Size[int] = 1465
    """T, number of steps. Solved from the budget with --solve steps."""
    multiplier: Solved[float] = 1.35
    """sigma, noise over the clipping norm; solved from the budget unless --solve steps or --epsilon none."""
    clip: float = 0.1
    """C, the clipping norm of one record's gradient."""
    rate: float = 1.0
    """eta, learning rate of SGD."""
    momentum: float = 0.9
    """Momentum of SGD."""

    def __post_init__(self) -> None:
        validate.at_least(self, 1, "batch", "steps")
        self.settings()

    def settings(self) -> DpSgdSettings:
        """Return the settings of DP-SGD."""
        return DpSgdSettings(
            batch=self.batch,
            steps=self.steps,
            multiplier=self.multiplier,
            clip=self.clip,
            clipping="flat",
            rate=self.rate,
            momentum=self.momentum,
        )

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse another unit, before anything is trained."""
        require_unit_example(budget)

    def networks(self, shape: tuple[int, int, int], student: str) -> tuple[str, ...]:
        """Return the networks that are built in addition to the teacher's."""
        return (FEATURES, NAME)

    def convert(self, teacher: Teacher, student: str, budget: Budget, ctx: Context) -> Release:
        """Run steps 1 to 3; `teacher.model` is not used."""
        images, labels = private_records(teacher)
        network, trained = scatter_cnn(teacher.shape, teacher.classes)
        rows = kept_features(nets.build(FEATURES, teacher.shape, teacher.classes), FEATURES, images, ctx)  # 1
        maps = rows.view(len(rows), -1, teacher.shape[1] // 4, teacher.shape[2] // 4)
        parameters = self._calibrate(len(images), budget)
        train(trained, NAME, (maps, labels), self.settings(), parameters, ctx, "private training")  # 2
        claim = parameters.claim(budget.delta, "ScatterNet CNN (Tramer and Boneh 2021), by the bench's accountant")
        return Release(network.to(ctx.device).eval(), NAME, parameters.ledger(), claim, solved=parameters.solved())  # 3

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the game of an audit: one noisy gradient of the training."""
        return gradient_game(self.settings(), self._calibrate(RECORDS, budget), None, budget.delta)

    def _calibrate(self, records: int, budget: Budget) -> DpSgdParameters:
        """Calibrate sigma or T to the budget; claim and account are the same number."""
        return calibrate(self.settings().parameters(records), budget)


def scatter_cnn(shape: tuple[int, int, int], classes: int) -> tuple[Classifier, Classifier]:
    """Build the network, and its trained part on features (n, 81 c, h // 4, w // 4), which shares its modules."""
    network = nets.build(NAME, shape, classes)
    trunk, head = network.body.trunk, network.body.head
    return network, Classifier(nn.Sequential(*trunk[1:], head), 0.0, 1.0)  # type: ignore[index,arg-type]
