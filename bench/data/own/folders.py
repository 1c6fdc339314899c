"""Data sets from folders of image files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bench.data.folder_parts import find_tree, subfolders
from bench.data.own.datasets import OwnDataset, checked_reading, of_files
from bench.data.request import Fit
from bench.errors import BadData, NotFound


@dataclass(frozen=True, eq=False)
class FolderDataset(OwnDataset):
    """Image files in one folder per class, at an absolute `path`; they are read when a run needs them."""

    path: Path

    def located(self, out: Path) -> str:
        """Return its name as a data set; writes nothing."""
        return f"imagefolder:{self.path}{self.shape_words}"


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    channels: int | None = None,
    fit: Fit = "crop",
    value_range: tuple[float, float] | None = None,
) -> OwnDataset:
    """Make a data set of image files with one folder per class.

    Args:
        path: a folder with train/CLASS/ and test/CLASS/, or with CLASS/, of which a sixth of the files is held out.
        size: side in pixels, 8 to 256, to which images are resized; None = 32.
        channels: 1 = grey, 3 = RGB; None = grey if all files are, else RGB.
        fit: how non-square images become square, as in `from_arrays`.
        value_range: the values that mean black and white in files of more than 8 bits; None = those of the format.

    Returns:
        A value for `bench.run(dataset=...)`. Its files are read when a run needs them.

    Raises:
        NotFound: no such folder.
        BadData: a folder without classes, or with a test part and no training part.
        BadOption: an impossible size, fit or range.
    """
    reading, shape_words = checked_reading(fit, value_range), of_files(size, channels)
    folder = Path(os.path.abspath(os.path.expanduser(path)))
    if not folder.is_dir():
        raise NotFound(f"no folder {folder}; expected PATH/{{train,test}}/CLASS/* or PATH/CLASS/*")
    tree = find_tree(folder, folder.name)
    if len(found := subfolders(tree.train)) < 2:
        raise BadData(f"{tree.train} has {len(found)} class folders; expected 2 or more, each with image files")
    return FolderDataset(folder.name, reading, shape_words, folder)
