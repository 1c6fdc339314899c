"""Networks: classifiers by name, ensembles, students, generators and critics."""

from __future__ import annotations

from bench.nets.ensemble import Ensemble
from bench.nets.students import DataLensNet, EvaluatorNet, SmallNet
from bench.nets.zoo import Classifier, build, check

__all__ = ["Classifier", "DataLensNet", "Ensemble", "EvaluatorNet", "SmallNet", "build", "check"]
