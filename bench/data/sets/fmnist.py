"""Fashion-MNIST, 28x28 grey, 60,000 + 10,000 images, 10 classes

Pictures of articles of the shop Zalando (Xiao et al., arXiv 1708.07747, 2017), in MNIST's format. The publisher's
training and test parts are used. `IdxDataset` says what is checked.
"""

from __future__ import annotations

from bench.data.dataset import DatasetFacts, IdxDataset

CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


class FashionMnist(IdxDataset):
    """Clothes of a shop (Xiao et al., 2017), in torchvision's layout."""

    name, source = "fmnist", "FashionMNIST"
    facts = DatasetFacts(
        shape=(1, 28, 28),
        class_names=CLOTHES,
        is_public=True,
        counts=(60_000, 10_000),
        layout="FashionMNIST/raw/*-ubyte (torchvision)",
        licence="MIT",
        other="mnist",
        dp_dfd_images=120_000,
        mmd_bandwidth=127.0,
        dp_sgd=(2048, 1160, 4.0),
        augments_psg=True,
    )
