"""Image data sets and their splits.

Importing this package loads neither torch nor any data library, so that `bench list datasets` answers at once; the
readers are imported by `load`.
"""

from bench.data.catalog import check, load, names, slug
from bench.data.images import ImageData, corrupted, to_float
from bench.data.splits import (
    Split,
    aux_labels,
    aux_part,
    private_domain,
    private_part,
    public_part,
    split,
    split_names,
)

__all__ = [
    "ImageData",
    "Split",
    "aux_labels",
    "aux_part",
    "check",
    "corrupted",
    "load",
    "names",
    "private_domain",
    "private_part",
    "public_part",
    "slug",
    "split",
    "split_names",
    "to_float",
]
