"""Networks: classifiers by name, students, generators and critics."""

from __future__ import annotations

from bench.nets.students import DataLensNet, EvaluatorNet, SmallNet
from bench.nets.zoo import Classifier, build, check

__all__ = ["Classifier", "DataLensNet", "EvaluatorNet", "SmallNet", "build", "check"]
