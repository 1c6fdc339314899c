"""COVIDx, chest X-rays, 64x64 grey, in the layout of COVID-Net; counts and classes differ by version

Chest X-rays of several collections (Wang et al., Scientific Reports 2020), built with the scripts of COVID-Net. The
publisher's training and test parts are used; patients are known, so split `identity` separates them. No paper here
states the size of its images. Checked: lines of four words, at least two classes, and no test class without training
images.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.data.dataset import DatasetFacts, Decoding, FileDataset, Listing, Part, Request, not_found
from bench.errors import BadData

FOLDER, PARTS = "covidx", ("train", "test")


class CovidX(FileDataset):
    """Chest X-rays of several collections (Wang et al., 2020). No paper here states the size of its images."""

    facts = DatasetFacts(
        shape=(1, 64, 64),
        is_public=True,
        layout="covidx/{train,test}/*.png and covidx/{train,test}.txt, lines of PATIENT FILE CLASS SOURCE (COVID-Net)",
        licence="of several sources, each with its own; most for research only",
        candidates=3,
    )

    def missing(self, root: Path) -> list[Path]:
        """Return the missing lists."""
        return [path for part in PARTS if not os.path.isfile(path := root / FOLDER / f"{part}.txt")]

    def listing(self, request: Request) -> Listing:
        """List both parts, with patients as people. Raises BenchError."""
        folder = request.root / FOLDER
        if self.missing(request.root):
            raise not_found("covidx", "train.txt, test.txt, train/ and test/", folder, "build it there")
        rows = {part: read_rows(folder / f"{part}.txt") for part in PARTS}
        classes = sorted({label for _, _, label in rows["train"]})
        extra = sorted({label for _, _, label in rows["test"]} - set(classes))
        if extra or len(classes) < 2:
            fault = f"test class '{extra[0]}' without training images" if extra else f"{len(classes)} class"
            raise BadData(f"data set 'covidx': {folder} has {fault}; build it again")
        patients = sorted({patient for part in PARTS for patient, _, _ in rows[part]})
        numbers = {patient: number for number, patient in enumerate(patients)}
        train, test = (
            Part(
                [folder / part / file for _, file, _ in rows[part]],
                [classes.index(label) for _, _, label in rows[part]],
                [numbers[patient] for patient, _, _ in rows[part]],
            )
            for part in PARTS
        )
        return Listing("covidx", folder, tuple(classes), train, test, Decoding(64, channels=1))


def read_rows(file: Path) -> list[tuple[str, str, str]]:
    """Return patient, file and class of each line; a file's name may contain spaces. Raises BenchError."""
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"data set 'covidx': {file} cannot be read ({error}); build it again") from error
    for number, words in enumerate(lines, start=1):
        if len(words) < 4:
            raise BadData(
                f"data set 'covidx': line {number} of {file} is not PATIENT FILE CLASS SOURCE; build it again"
            )
    return [(words[0], " ".join(words[1:-2]), words[-2]) for words in lines]
