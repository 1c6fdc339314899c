"""Kuzushiji-MNIST, 28x28 grey, 60,000 + 10,000 images, 10 classes

Cursive Japanese characters from old books (Clanuwat et al., arXiv 1812.01718, 2018), in MNIST's format. The publisher's
training and test parts are used. `IdxDataset` says what is checked.
"""

from __future__ import annotations

from bench.data.dataset import DatasetFacts, IdxDataset


class Kmnist(IdxDataset):
    """Japanese characters of old books (Clanuwat et al., 2018), in torchvision's layout."""

    name, source = "kmnist", "KMNIST"
    facts = DatasetFacts(
        shape=(1, 28, 28),
        class_names=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        is_public=True,
        counts=(60_000, 10_000),
        layout="KMNIST/raw/*-ubyte (torchvision)",
        licence="CC BY-SA 4.0",
        prior="pen",
        other="mnist",
        augments_psg=True,
    )
