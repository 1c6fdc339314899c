"""Priors: images drawn without any data, for a teacher to be asked about.

Every prior is a plug-in: a file in `kinds/`, or an entry point `bench.priors`.
"""

from bench.priors.prior import AUTO, Prior, for_dataset, load

__all__ = ["AUTO", "Prior", "for_dataset", "load"]
