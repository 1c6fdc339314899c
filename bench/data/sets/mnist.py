"""MNIST, 28x28 grey, 60,000 + 10,000 images, 10 classes

Handwritten digits (LeCun et al., Proceedings of the IEEE 1998): high-school students and employees of the Census
Bureau. The publisher's training and test parts are used. `IdxDataset` says what is checked.
"""

from __future__ import annotations

from bench.data.dataset import DatasetFacts, IdxDataset


class Mnist(IdxDataset):
    """Handwritten digits (LeCun et al., 1998), in torchvision's layout."""

    name, source = "mnist", "MNIST"
    facts = DatasetFacts(
        shape=(1, 28, 28),
        class_names=tuple("0123456789"),
        is_public=True,
        counts=(60_000, 10_000),
        layout="MNIST/raw/*-ubyte (torchvision)",
        licence="CC BY-SA 3.0",
        prior="pen",
        other="fmnist",
        cross="usps",
        dp_dfd_images=50_000,
        mmd_bandwidth=105.0,
        dp_sgd=(512, 4680, 0.5),
        augments_psg=True,
    )
