"""CIFAR-100, 32x32 colour, 50,000 + 10,000 images, 100 classes

Small photographs with the 100 fine labels (Krizhevsky, technical report, 2009). The publisher's training and test parts
are used. The pickled files are unpickled only if torchvision confirms their published md5.
"""

from __future__ import annotations

from pathlib import Path

from bench.data.dataset import Dataset, DatasetFacts
from bench.data.images import ImageData

_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CLASSES = tuple(_NAMES.split())
FOLDER = "cifar-100-python"


class Cifar100(Dataset):
    """Small photographs of a hundred kinds of things (Krizhevsky, 2009), in torchvision's layout."""

    facts = DatasetFacts(
        shape=(3, 32, 32),
        class_names=CLASSES,
        is_public=True,
        counts=(50_000, 10_000),
        layout="cifar-100-python/ (torchvision)",
        licence="no licence is stated; its author wants to be cited",
        cross="cifar10",
        candidates=50,
        dp_dfd_images=500_000,
        dp_sgd=(1024, 1440, 1.0),
    )

    def files(self, root: Path) -> list[Path]:
        """Return the three files of root/cifar-100-python."""
        return [root / FOLDER / name for name in ("train", "test", "meta")]

    def load(self, root: Path, download: bool) -> ImageData:
        """Read the set; it is unpickled only if torchvision confirms the published md5.

        Raises:
            BenchError: missing files, or a file whose md5 is not the published one.
        """
        from bench.data.torchvision_files import load_batches

        return load_batches("cifar100", "CIFAR100", self, root, download)
