"""Distance of reconstructions from the mean feature of their target class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.metrics.metric import Metric

if TYPE_CHECKING:
    from torch import Tensor


def feature_distance(features: Tensor, targets: Tensor, private_features: Tensor, private_labels: Tensor) -> float:
    """Return the mean squared L2 distance of reconstructions to the mean feature of the target class's private images.

    Arguments and errors as for `bench.metrics.inversion.knn_distance`.
    """
    from bench.metrics.inversion import check_classes  # needs torch: not for readers of the table only

    check_classes(features, targets, private_features, private_labels)
    total = 0.0
    for c in targets.unique():
        centre = private_features[private_labels == c].double().mean(0)
        total += float((features[targets == c].double() - centre).square().sum())
    return total / len(features)


METRIC = Metric(
    "feature_distance",
    "feature distance",
    "Mean squared distance, in the evaluator's features, to the mean of the class's private images.",
    "distance",
    "up",
    averaged=False,
    compute=lambda given: feature_distance(given.features, given.targets, given.private.features, given.private.labels),
)
