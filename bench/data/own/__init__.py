"""A user's own images as values: from arrays, folders, torch and Hugging Face data sets.

    data = bench.data.from_arrays(x, y, x_test, y_test, name="mine")
    bench.run("rr", dataset=data)

Importing this package imports neither NumPy nor torch.
"""

from bench.data.own.arrays import from_arrays
from bench.data.own.datasets import OwnDataset
from bench.data.own.folders import from_folder
from bench.data.own.rows import from_huggingface
from bench.data.own.torch_items import from_torch

__all__ = ["OwnDataset", "from_arrays", "from_folder", "from_huggingface", "from_torch"]
