"""Image data sets and their splits.

Importing this package loads neither torch nor any data library, so that `bench list datasets` is fast; the
readers are imported by `load`. Every data set is a plug-in: a file in `sets/`, or an entry point `bench.datasets`.
"""

from bench.data.catalog import base_name, check, dataset, facts, is_own, load, names, root_folder, slug, typed
from bench.data.dataset import Dataset, DatasetFacts, FileDataset, Keep, Request
from bench.data.images import (
    QUERY_BATCH,
    ImageData,
    batch_size_for,
    corrupted,
    images_fingerprint,
    query_batch,
    to_float,
)
from bench.data.own import OwnDataset, from_arrays, from_folder
from bench.data.own_items import from_huggingface, from_torch
from bench.data.parts import (
    attacker_has_other_classes,
    aux_labels,
    aux_part,
    mislabelled,
    private_domain,
    private_part,
    public_part,
)
from bench.data.splits import FROM_ANOTHER_SET, Split, split, split_names, wrong_labels

__all__ = [
    "FROM_ANOTHER_SET",
    "QUERY_BATCH",
    "Dataset",
    "DatasetFacts",
    "FileDataset",
    "ImageData",
    "Keep",
    "OwnDataset",
    "Request",
    "Split",
    "attacker_has_other_classes",
    "aux_labels",
    "aux_part",
    "base_name",
    "batch_size_for",
    "check",
    "corrupted",
    "dataset",
    "facts",
    "from_arrays",
    "from_folder",
    "from_huggingface",
    "from_torch",
    "images_fingerprint",
    "is_own",
    "load",
    "mislabelled",
    "names",
    "private_domain",
    "private_part",
    "public_part",
    "query_batch",
    "root_folder",
    "slug",
    "split",
    "split_names",
    "to_float",
    "typed",
    "wrong_labels",
]
