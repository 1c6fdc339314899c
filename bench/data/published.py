"""Data sets that anybody can have: their images' shape and their classes, known without reading them."""

from __future__ import annotations

from dataclasses import dataclass

_DIGITS = tuple("0123456789")
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Published:
    """What is public of a published data set: shape (c, h, w) of an image and the names of its classes."""

    shape: tuple[int, int, int]
    class_names: tuple[str, ...]

    def classes_of(self, split: str) -> tuple[str, ...]:
        """The names of the private classes of a split, in the order of their numbers there (`private_domain`)."""
        half = -(-len(self.class_names) // 2)
        return {"disjoint-low": self.class_names[:half], "disjoint-high": self.class_names[half:]}.get(
            split, self.class_names
        )


PUBLISHED = {
    "digits": Published((1, 16, 16), _DIGITS),
    "mnist": Published((1, 28, 28), _DIGITS),
    "fmnist": Published((1, 28, 28), _CLOTHES),
    "cifar10": Published((3, 32, 32), _CIFAR10),
    "cifar10-jpeg": Published((3, 32, 32), _CIFAR10),
}
"""By the name of the loaded `ImageData`. Their test parts are public too; a user's own data set is not among them."""
