"""Networks: classifiers by name (`zoo`), ensembles, generators and critics, and fixed wavelet features.

This project's own classifiers are in `classifiers`: small CNNs, networks for DP-SGD, and those on wavelet features. A
user's own network is imported by `users_network`; `recognise` guesses the architecture of a weight file, and
`footprint` measures a network's memory.
"""

from __future__ import annotations

from bench.nets.ensemble import Ensemble
from bench.nets.small_net import SmallNet
from bench.nets.users_network import identify
from bench.nets.zoo import Classifier, build, check, own_names, recorded_features

__all__ = ["Classifier", "Ensemble", "SmallNet", "build", "check", "identify", "own_names", "recorded_features"]
