"""Networks: classifiers by name, ensembles, students, generators and critics."""

from __future__ import annotations

from bench.nets.ensemble import Ensemble
from bench.nets.small_net import SmallNet
from bench.nets.users_network import identified
from bench.nets.zoo import Classifier, build, check, own_names, recorded_features

__all__ = ["Classifier", "Ensemble", "SmallNet", "build", "check", "identified", "own_names", "recorded_features"]
