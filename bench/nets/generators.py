"""Image generators, latent vectors to images in [0, 1], and the GAN critic, images to unbounded scores."""

from __future__ import annotations

from torch import Tensor, nn

from bench.errors import Incompatible

Shape = tuple[int, int, int]

SMALLEST, LARGEST = 8, 64
"""Limits of an image's sides, in pixels."""
SMALLEST_MAP = 4
"""Side of the smallest map of a GAN, in pixels."""
CONTRAST = 3.0
"""Initial scale of the last normalisation of `UpsampleGenerator`."""


def check_square(shape: Shape) -> None:
    """Raise an error for image shapes that the convolutional GAN cannot make exactly.

    Raises:
        BenchError: the image is not square, not 8 to 64 pixels wide, or its width is not a multiple of 4.
    """
    _, h, w = shape
    if h != w or h % 4 or not SMALLEST <= h <= LARGEST:
        raise Incompatible(
            f"images of {h}x{w} pixels: the GAN needs square images of {SMALLEST} to {LARGEST} pixels, "
            "a multiple of 4; --size N resizes them"
        )


def doublings(size: int) -> int:
    """Return how often a square map is doubled to reach `size` from an integer start of at least 4 pixels.

    >>> {size: (size >> doublings(size), doublings(size)) for size in (8, 12, 16, 28, 32, 64)}
    {8: (4, 1), 12: (6, 1), 16: (4, 2), 28: (7, 2), 32: (4, 3), 64: (4, 4)}
    """
    count = 0
    while size % 2 == 0 and size // 2 >= SMALLEST_MAP:
        size, count = size // 2, count + 1
    return count


class DeconvGenerator(nn.Module):
    """The transposed-convolution generator of GMI (Zhang et al., CVPR 2020), extended to other image sizes.

    A linear layer makes a small map, `doublings(h)` transposed convolutions (5x5, stride 2) double it to the image:

    | h      | start | doublings | channels           |
    |--------|-------|-----------|--------------------|
    | 8      | 4     | 1         | d, c               |
    | 16, 28 | 4, 7  | 2         | 2d, d, c           |
    | 32     | 4     | 3         | 4d, 2d, d, c       |
    | 64     | 4     | 4         | 8d, 4d, 2d, d, c   |

    with batch normalisation and ReLU between, a sigmoid at the end, and d = `width`.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        latent: length of a latent vector.
        width: d, channels of the last hidden map.

    Raises:
        BenchError: an unsupported image size.
    """

    def __init__(self, shape: Shape, latent: int = 100, width: int = 64) -> None:
        check_square(shape)
        super().__init__()
        self.latent = latent
        stages = doublings(shape[1])
        start, channels = shape[1] >> stages, width << (stages - 1)
        self.start = nn.Sequential(
            nn.Linear(latent, channels * start**2, bias=False),
            nn.BatchNorm1d(channels * start**2),
            nn.ReLU(),
            nn.Unflatten(1, (channels, start, start)),
        )
        layers: list[nn.Module] = []
        for _ in range(stages - 1):
            layers += [_double(channels, channels // 2, bias=False), nn.BatchNorm2d(channels // 2), nn.ReLU()]
            channels //= 2
        self.grow = nn.Sequential(*layers, _double(channels, shape[0], bias=True), nn.Sigmoid())

    def forward(self, z: Tensor) -> Tensor:
        """Map (n, latent) to (n, c, h, w) in [0, 1]."""
        return self.grow(self.start(z))

    def blocks(self) -> list[nn.Module]:
        """Return the blocks that make the first map and double it; one after the other they are the generator.

        >>> [len(DeconvGenerator((1, size, size), 5, 2).blocks()) for size in (8, 16, 28, 64)]
        [2, 3, 3, 5]
        """
        layers = list(self.grow)
        hidden = [nn.Sequential(*layers[first : first + 3]) for first in range(0, len(layers) - 2, 3)]
        return [self.start, *hidden, nn.Sequential(*layers[-2:])]


def _double(inputs: int, outputs: int, bias: bool) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 5, stride=2, padding=2, output_padding=1, bias=bias)


class UpsampleGenerator(nn.Module):
    """The upsampling generator of data-free distillation (Chen et al., DAFL, ICCV 2019).

    Linear to a map of a quarter of the image's size with 2d channels, batch normalisation; twice: nearest-neighbour
    doubling, 3x3 convolution (2d, then d channels), batch normalisation, leaky ReLU 0.2; 3x3 convolution; batch
    normalisation; sigmoid. The last normalisation starts with a scale of 3, so that an untrained generator makes images
    of full contrast.

    Args:
        shape: (c, h, w) of the images; h and w multiples of 4, at least 8.
        latent: length of a latent vector.
        width: d.

    Raises:
        BenchError: an unsupported image size.
    """

    def __init__(self, shape: Shape, latent: int = 100, width: int = 32) -> None:
        c, h, w = shape
        if h % 4 or w % 4 or min(h, w) < SMALLEST:
            raise Incompatible(
                f"images of {h}x{w} pixels: the generator needs height and width to be multiples of 4, "
                f"at least {SMALLEST}; resize the data set"
            )
        super().__init__()
        self.latent = latent
        wide = 2 * width
        self.start = nn.Sequential(
            nn.Linear(latent, wide * (h // 4) * (w // 4)),
            nn.Unflatten(1, (wide, h // 4, w // 4)),
            nn.BatchNorm2d(wide),
        )
        last = nn.BatchNorm2d(c)
        self.grow = nn.Sequential(
            *_upsample(wide, wide),
            *_upsample(wide, width),
            nn.Conv2d(width, c, 3, padding=1),
            last,
            nn.Sigmoid(),
        )
        nn.init.constant_(last.weight, CONTRAST)

    def forward(self, z: Tensor) -> Tensor:
        """Map (n, latent) to (n, c, h, w) in [0, 1]."""
        return self.grow(self.start(z))


def _upsample(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.LeakyReLU(0.2),
    ]


class Critic(nn.Module):
    """The critic of GMI (Zhang et al., CVPR 2020), extended to other image sizes.

    5x5 convolutions of stride 2 halve the map (rounding up) until at most 4 pixels are left, with d, 2d, 4d, ...
    channels; affine instance normalisation from the second on; leaky ReLU 0.2; a last convolution over the whole map.
    No layer mixes the images of a batch, as the gradient penalty requires.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        width: d.
        outputs: numbers per image; more than one for a discriminator with further outputs than real or generated.

    Raises:
        BenchError: an unsupported image size.
    """

    def __init__(self, shape: Shape, width: int = 64, outputs: int = 1) -> None:
        check_square(shape)
        super().__init__()
        inputs, size, _ = shape
        layers: list[nn.Module] = []
        channels = width
        while size > SMALLEST_MAP:
            layers.append(nn.Conv2d(inputs, channels, 5, stride=2, padding=2))
            if len(layers) > 1:
                layers.append(nn.InstanceNorm2d(channels, affine=True))
            layers.append(nn.LeakyReLU(0.2))
            inputs, channels, size = channels, 2 * channels, (size + 1) // 2
        self.layers = nn.Sequential(*layers, nn.Conv2d(inputs, outputs, size), nn.Flatten(0 if outputs == 1 else 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n,) scores, higher for images that look real.

        (n, outputs) if there are several outputs.
        """
        return self.layers(x)
