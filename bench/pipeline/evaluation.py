"""Metrics of the images that an attack reconstructed, computed by the bench and never by the attack."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from bench.api import AttackResult
from bench.metrics.distribution import frechet_distance, knn_gap, matched_subset, prdc, too_few_images
from bench.metrics.inception import inception, splits_for
from bench.metrics.inversion import confusion, knn_distance
from bench.metrics.metric import Labelled, Metric, Reconstructions
from bench.metrics.pairs import best_match, psnr_pairs, ssim_pairs
from bench.metrics.table import computed
from bench.nets import Classifier
from bench.pipeline.material import Victims
from bench.pipeline.trained import Metrics, with_interval
from bench.teachers import features, predict
from bench.validate import present

SEED = 2020
VERSION = 1
"""Version of the stored features and scores; a new version computes them again."""
DIRECTIONS = 32
"""Number of principal components of the private features in which the Frechet distance is computed."""


@dataclass(frozen=True)
class Scored:
    """The scores of one target's reconstructions.

    Attributes:
        metrics: name to value; None if a metric could not be computed.
        missing: the reason for each None.
        confusion: (c, c) counts, or (c, c + 1) if the evaluator knows one more class: row = intended class, column =
            class by the evaluator; the power gate uses them.
    """

    metrics: Metrics
    missing: dict[str, str]
    confusion: Tensor


@dataclass(frozen=True)
class FeatureCache:
    """An evaluator's features, the same for all runs on the same data.

    Attributes:
        private: (m, d) features of all private images.
        held_out: (h, d) features of the test images.
        directions: (d, k) leading principal directions of the private features.
    """

    private: Tensor
    held_out: Tensor
    directions: Tensor


@dataclass(frozen=True)
class Scorer:
    """The evaluator network with the images that reconstructions are compared with.

    Attributes:
        private: the private images.
        held_out: the test images, on which neither teacher nor evaluator was trained (except if a data set repeats
            test images in its training part).
        directions: as in a `FeatureCache`.
        classes: c, the number of private classes, which are the evaluator's first outputs.
    """

    evaluator: Classifier
    private: Labelled
    held_out: Labelled
    device: torch.device
    directions: Tensor
    classes: int


def extract_features(evaluator: Classifier, private: Tensor, held_out: Tensor, device: torch.device) -> FeatureCache:
    """Compute the features of all private and held-out uint8 images."""
    ours, theirs = (features(evaluator, images, device) for images in (private, held_out))
    centred = (ours - ours.mean(0)).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    return FeatureCache(ours, theirs, vectors[:, -DIRECTIONS:].float())


def make_scorer(
    evaluator: Classifier,
    private: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    cache: FeatureCache,
    device: torch.device,
    classes: int,
) -> Scorer:
    """Build a scorer with cached features of the private and held-out (images, labels) of the private classes."""
    ours, theirs = Labelled(*private, cache.private), Labelled(*held_out, cache.held_out)
    return Scorer(evaluator, ours, theirs, device, cache.directions, classes)


def score(
    found: AttackResult,
    scorer: Scorer,
    target: nn.Module | None,
    victims: Victims | None,
    wanted: Collection[str] | None = None,
) -> Scored:
    """Score reconstructions, images in [0, 1], with a network that the attack did not see.

    Args:
        target: the attacked network on the scorer's device; None for images made without a target.
        victims: if the images reconstruct victims: the victims; the intended class is then the victim's.
        wanted: metrics that the caller reads; None = all. Other metrics may be missing.
    """
    found = with_intended_classes(found, victims)
    images = (found.images * 255).round().to(torch.uint8)
    logits = predict(scorer.evaluator, images, scorer.device).double()
    ours = Labelled(images, found.targets, features(scorer.evaluator, images, scorer.device))
    correct = logits.argmax(1) == found.targets
    metrics = with_interval("attack_accuracy", int(correct.sum()), len(correct))
    # The standard deviation over the attack's independent draws
    shares = torch.stack([correct[found.draws == draw].double().mean() for draw in found.draws.unique()])
    metrics["attack_accuracy_std"] = float(shares.std(unbiased=False)) if len(shares) > 1 else None
    if target is not None:
        agreed = predict(target, images, scorer.device).argmax(1) == found.targets
        metrics["target_accuracy"] = float(agreed.double().mean())
    private = scorer.private
    metrics["knn_distance"] = knn_distance(ours.features, ours.labels, private.features, private.labels)
    missing: dict[str, str] = {}
    for names, measure in optional_measures(found, ours, logits[:, : scorer.classes], scorer, victims):
        if wanted is not None and not set(names) & set(wanted):
            continue
        try:
            metrics |= dict(zip(names, measure(), strict=True))
        except ValueError as error:
            metrics |= dict.fromkeys(names)
            missing |= dict.fromkeys(names, str(error))
    return Scored(metrics, missing, confusion(logits, found.targets, scorer.classes))


def with_intended_classes(found: AttackResult, victims: Victims | None) -> AttackResult:
    """Return reconstructions with their intended classes in `targets`: the victim's class if there are victims."""
    if victims is None:
        return found
    return replace(found, targets=victims.labels[present(found.victims, "victim of the reconstructions")])


Measure = tuple[tuple[str, ...], Callable[[], tuple[float | None, ...]]]
"""Names of metrics, and the function that computes them; it raises ValueError with the reason if they do not exist."""


def optional_measures(
    found: AttackResult, ours: Labelled, logits: Tensor, scorer: Scorer, victims: Victims | None
) -> list[Measure]:
    """Return the measures that may be impossible, for example with few images.

    Args:
        ours: the reconstructions, with their intended classes and features.
        logits: (n, c) logits of the evaluator on the reconstructions, for the private classes.
    """
    inceptions = ("inception_score", "inception_score_std", "inception_e6", "inception_within_class")
    likeness: Measure
    if victims is None:
        likeness = (("ssim", "psnr", "ssim_class_mean"), partial(best_matches, ours, scorer))
    else:
        likeness = (("ssim", "psnr", "ssim_gap", "psnr_gap"), partial(victim_likeness, found, ours, victims))
    plugin_input = Reconstructions(ours.images, ours.labels, ours.features, logits, scorer.private, scorer.held_out)
    measures: list[Measure] = [
        (inceptions, partial(inception_scores, logits, found.targets)),
        (("fid",), partial(frechet, ours, scorer)),
        (("precision", "recall", "density", "coverage"), partial(precision_and_recall, ours, scorer)),
        (("knn_gap",), partial(neighbour_gap, ours, scorer, victims)),
        likeness,
    ]
    return measures + [((metric.key,), partial(plugin_metric, metric, plugin_input)) for metric in computed()]


def plugin_metric(metric: Metric, reconstructions: Reconstructions) -> tuple[float]:
    """Compute the metric of a plug-in."""
    return (metric.measure(reconstructions),)


def inception_scores(logits: Tensor, targets: Tensor) -> tuple[float, ...]:
    """Compute the inception score of the evaluator's outputs, its standard deviation, and its two variants."""
    found = inception(logits, targets, splits=splits_for(len(logits)))
    return found.score_mean, found.score_std, found.e6_mean, found.within_class


def frechet(ours: Labelled, scorer: Scorer) -> tuple[float]:
    """Compute the Frechet distance to as many private images of each class, in the leading principal directions."""
    directions = scorer.directions
    reason = too_few_images(len(ours.images), directions.shape[1])
    if reason is not None:
        raise ValueError(reason)
    chosen = matched_subset(scorer.private.labels, ours.labels, SEED)
    return (frechet_distance(ours.features @ directions, scorer.private.features[chosen] @ directions),)


def precision_and_recall(ours: Labelled, scorer: Scorer) -> tuple[float, ...]:
    """Compute precision, recall, density and coverage against as many private images of each class."""
    chosen = matched_subset(scorer.private.labels, ours.labels, SEED)
    found = prdc(ours.features, ours.labels, scorer.private.features[chosen], scorer.private.labels[chosen])
    return found.precision, found.recall, found.density, found.coverage


def neighbour_gap(ours: Labelled, scorer: Scorer, victims: Victims | None) -> tuple[float]:
    """Compute how much nearer, in features, private images are than unseen ones. Raises ValueError for victims."""
    if victims is not None:
        # Of the larger side only a sample is searched, in which a victim may be missing
        raise ValueError("unseen images were attacked too, and are the nearest to themselves; read ssim_gap")
    private, unseen = scorer.private, scorer.held_out
    gap = knn_gap(ours.features, ours.labels, private.features, private.labels, unseen.features, unseen.labels, SEED)
    return (gap,)


def best_matches(ours: Labelled, scorer: Scorer) -> tuple[float, ...]:
    """Compare with the most similar private image of the class, and with the class's mean image."""
    best = best_match(ours.images, ours.labels, scorer.private.images, scorer.private.labels)
    return float(best.ssim.mean()), float(best.psnr.mean()), float(best.ssim_mean_image.mean())


def victim_likeness(found: AttackResult, ours: Labelled, victims: Victims) -> tuple[float, ...]:
    """Compare with private victims, and compute the gain over victims that were not in the training data."""
    attacked = present(found.victims, "victim of the reconstructions")
    private = victims.private[attacked]
    ssim, psnr = (f(ours.images, victims.images[attacked]) for f in (ssim_pairs, psnr_pairs))
    (ssim_in, ssim_out), (psnr_in, psnr_out) = (
        (float(x[private].mean()), float(x[~private].mean())) for x in (ssim, psnr)
    )
    return ssim_in, psnr_in, ssim_in - ssim_out, psnr_in - psnr_out
