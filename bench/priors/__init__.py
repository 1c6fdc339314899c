"""Priors: data-free distributions of images, used as queries to a teacher.

Every prior is a plug-in: a file in `kinds/`, or an entry point `bench.priors`.
"""

from bench.priors.prior import AUTO, Prior, for_dataset, load

__all__ = ["AUTO", "Prior", "for_dataset", "load"]
