"""Private drawings: images with labels, at the privacy cost of one private linear classifier.

1. A private classifier is trained on the records: the baseline `private-features` or `patch-features` at its defaults
   (`--method.classifier`), a linear layer on fixed features.
2. Images are drawn from a prior that uses no data (`--method.prior`), in rounds. From the second round on, half of the
   candidates are varied copies of earlier images; of all candidates, half are chosen so that the classifier's classes
   are even.
3. In each round half of the images are moved by gradients towards where records are typical by the second moment that
   `private-features` released (`--method.typical`), and towards a random class of the classifier
   (`--method.class_weight`).
4. Each image gets the most likely class of the classifier as its label. Images whose label has a probability of at
   least `confidence` are kept.
5. `samples` of them, equally many of each class, are released with their labels; the student is trained on these images
   and hard labels only (`bench/dp_training/synthetic_data.py`).

Steps 2 to 4 are in `bench/distillation/labelled_images.py`.

Reference: none. Labelled drawings are the queries of `dp-teacher --method.conversion transcribe`, which trains its
student on soft responses instead and releases no labelled images. Moved images follow Yin et al., "Dreaming to
Distill", CVPR 2020 (`bench/distillation/class_moments/typical_images.py`).

Privacy. Only step 1 reads private records. Its T Gaussian mechanisms on clipped gradients, and the one on the second
moment with `private-features`, are composed exactly (`baselines/private_features.py`, `bench/dp_training/
head_accounting.py`); claim and account are the same number, for one record added or removed, or for one replaced with
`neighbours replace`. The ledger is for records added or removed in either case. Steps 2 to 5 use the released layer,
the released second moment and public constants: any number of images, of labels and of students is post-processing, and
costs nothing. The mechanism that an audit plays is that of the layer. The number of records is public. The choice of
hyper-parameters is not accounted.

Settings. Candidates, varied copies and moves are those of `dp-teacher --method.conversion transcribe`, whose settings
were partly chosen on test sets (`seen_test_sets`). The least confidence was tried on the attacker's part of MNIST and
Fashion-MNIST (split iid), which is neither private nor the test set: docs/baselines.md, "Labelled drawings".

Differs from the paper: this method has no paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

from torch import Tensor

from bench import data, priors, validate
from bench.api import Context, Teacher
from bench.api.context import Tiers
from bench.config import Size, Solved
from bench.distillation.class_moments.typical_images import ClassTargets, TypicalImages
from bench.distillation.labelled_images import DrawingRounds, SoftClassifier, select_labelled
from bench.dp_training.feature_training import SMOKE as SMALL_HEAD
from bench.dp_training.feature_training import FeatureTraining
from bench.dp_training.head_accounting import Neighbours
from bench.dp_training.patch_training import PatchTraining
from bench.dp_training.synthetic_data import QUICK, SMOKE, FiniteSet, PrivateGenerator, Synthesis
from bench.dp_training.whitening import Typicality, Whitening
from bench.errors import BadOption
from bench.nets import Classifier
from bench.privacy import Budget
from bench.privacy.audit import DistinguishingGame

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class PrivateDrawings(PrivateGenerator):
    """Train a student on drawings that a private linear layer labelled; the images and labels are released."""

    version: ClassVar[int] = 1
    own: ClassVar[bool] = True
    reference: ClassVar[str] = "this project; Yin et al., CVPR 2020"
    seen_test_sets: ClassVar[dict[str, str]] = {
        "mnist": "settings of the varied copies, and of the filters of patch-features, were chosen",
        "digits": "settings of the varied copies were chosen",
        "fmnist": "settings of patch-features were chosen",
        "cifar10": "mirroring, public whitening and settings of patch-features were chosen",
        "usps": "settings of private-features were chosen",
    }
    tiers: ClassVar[Tiers] = {
        "smoke": {**SMOKE, "drawn": 400, "steps": SMALL_HEAD["steps"]},
        "quick": {**QUICK, "drawn": 60_000},
    }
    only_with: ClassVar[dict[str, str]] = {
        "evolve": "rounds>1",
        "typical": "classifier=private-features",
        "class_weight": "classifier=private-features typical=auto|on",
    }

    samples: Size[int] = 60_000
    """N, number of labelled images that are released and on which the student is trained."""
    passes: Size[int] = 30
    """Passes of the student over the synthetic images."""
    student_batch: Size[int] = 128
    """Synthetic images per step of the student."""
    student_optimiser: Literal["sgd", "adam"] = "adam"
    """Optimiser of the student: plain SGD at 2e-3 (DataLens, G-PATE), or Adam at 1e-3, falling linearly to 0."""
    classifier: Literal["private-features", "patch-features"] = "private-features"
    """The private classifier: the baseline private-features or patch-features at its defaults."""
    steps: Size[int] = 0
    """T, steps of the private classifier; 0 = the default of its baseline. Solved from the budget with --solve steps.
    """
    multiplier: Solved[float] = 30.0
    """z, noise of a step over its sensitivity to one record; solved from the budget unless --solve steps or none."""
    neighbours: Neighbours = "add-or-remove"
    """Neighbours for which the noise is calibrated: one record added or removed, or one record replaced."""
    prior: str = priors.AUTO
    """Prior of the drawings (`bench list priors`) or several, A+B; auto = the data set's."""
    drawn: Size[int] = 120_000
    """Number of images that the private classifier labels; the released ones are chosen among them."""
    rounds: int = 6
    """Number of rounds in which images are drawn; images of later rounds may be copies of earlier ones, varied."""
    choose: float = 2.0
    """Number of candidates per image, from which images of even classes are chosen; 1 = no choice."""
    evolve: float = 0.5
    """Share of the candidates that are varied copies of earlier images; 0 = all are new drawings."""
    typical: Literal["auto", "on", "off"] = "auto"
    """Move half of the images towards typical records by the released second moment; auto = where features are whitened
    by private moments (grey images)."""
    class_weight: float = 0.0
    """Weight of a random class of the private classifier in the descent of a moved image; 0 = none."""
    confidence: float = 0.5
    """Least probability of an image's label by the private classifier; 0 = all images are kept."""
    balanced: bool = True
    """Release equally many images of each class; false = as frequent as they are among the confident images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.at_least(self, 1, "drawn", "rounds", "choose")
        validate.at_least(self, 0, "evolve", "class_weight", "confidence")
        validate.below(self, 1, "evolve", "confidence")
        self._training()

    def check(self, budget: Budget, dataset: str, classes: int) -> None:
        """Refuse, before any training, another unit, an unknown prior, too few images and a budget that is not met."""
        super().check(budget, dataset, classes)
        priors.for_dataset(self.prior, dataset)
        for option, count in (("samples", self.samples), ("drawn", self.drawn)):
            if count < classes:
                raise BadOption(f"--method.{option} {count} for {classes} classes; expected at least one image each")
        training, shape = self._training(), data.facts(dataset).shape
        training.spending(training.whitening if shape is None else training.kind(shape), budget)
        if shape is not None:
            self._moves(shape)

    def networks(self, shape: Shape, student: str) -> tuple[str, ...]:
        """Return the networks that are built: the private classifier and the student."""
        return (*self._training().networks(shape, student), student)

    def synthesise(self, images: Tensor, labels: Tensor, teacher: Teacher, budget: Budget, ctx: Context) -> Synthesis:
        """Run steps 1 to 5, up to the student."""
        training, shape, classes = self._training(), teacher.shape, teacher.classes
        spending = training.spending(training.kind(shape), budget)
        moves = self._moves(shape)
        holder = replace(teacher, private=(images, labels))
        head, white = training.train_and_whiten(holder, spending, budget.delta, ctx)  # 1
        network, prior = cast(Classifier, head.student), priors.for_dataset(self.prior, teacher.dataset)
        network.eval().requires_grad_(False)
        classifier = SoftClassifier.on_prior(network, prior, shape, classes, ctx)
        move = None
        if moves:
            typicality = Typicality(network, cast(Whitening, white), ctx)
            objective = typicality.objective(self.class_weight, classifier.temperature)
            move = TypicalImages(typicality, ClassTargets(objective, classes) if self.class_weight else None)
        rounds = DrawingRounds(self.drawn, self.rounds, self.choose, self.evolve)
        drawn = rounds.draw(classifier, prior, shape, classes, ctx, move)  # 2 and 3
        rng = ctx.generator("selection")
        made = select_labelled(drawn, self.samples, self.confidence, self.balanced, rng)  # 4 and 5
        solved = {**head.solved, "confident": made.confident}
        return Synthesis(FiniteSet(made.images, made.labels), head.ledger, spending.claim(budget.delta), solved)

    def game(self, budget: Budget, dataset: str, classes: int) -> DistinguishingGame:
        """Return the audit's game: that of the private classifier."""
        return self._training().game(budget, dataset, classes)

    def _moves(self, shape: Shape) -> bool:
        """Whether images are moved towards typical records; this needs a second moment of the private records."""
        if self.classifier != "private-features":
            return False
        whitened = (kind := self._training().kind(shape)) == "private"
        if not whitened and (self.typical == "on" or self.class_weight):
            option = "typical on" if self.typical == "on" else f"class_weight {self.class_weight:g}"
            raise BadOption(
                f"--method.{option}: features of images of shape {shape[0]}x{shape[1]}x{shape[2]} are not whitened "
                f"by private moments ({kind}); expected images for which they are; leave this option out"
            )
        return whitened and self.typical != "off"

    def _training(self) -> FeatureTraining:
        """Return the training of the private classifier."""
        kind = PatchTraining if self.classifier == "patch-features" else FeatureTraining
        training = kind(multiplier=self.multiplier, neighbours=self.neighbours)
        if self.steps == SMALL_HEAD["steps"]:  # as the baselines at tier smoke
            training = replace(training, drawings=SMALL_HEAD["drawings"])
        return replace(training, steps=self.steps) if self.steps else training
