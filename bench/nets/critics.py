"""The critic of a GAN: images to one unbounded number each, or to several."""

from __future__ import annotations

from torch import Tensor, nn

from bench.nets.generators import Shape, check_square

_LAST_MAP = 4


class Critic(nn.Module):
    """The critic of GMI, for other sizes too (Zhang et al., CVPR 2020).

    5x5 convolutions of stride 2 halve the map (rounding up) until at most 4 pixels are left, with d, 2d, 4d, ...
    channels; affine instance normalisation from the second on; leaky ReLU 0.2; a last convolution over the whole map.
    Nothing couples the images of a batch, which the gradient penalty needs.

    Args:
        shape: (c, h, w) of the images; h = w, a multiple of 4 from 8 to 64.
        width: d.
        outputs: numbers for each image; more than one for a discriminator that says more than real or not.

    Raises:
        BenchError: a size it cannot take.
    """

    def __init__(self, shape: Shape, width: int = 64, outputs: int = 1) -> None:
        check_square(shape)
        super().__init__()
        inputs, size, _ = shape
        layers: list[nn.Module] = []
        channels = width
        while size > _LAST_MAP:
            layers.append(nn.Conv2d(inputs, channels, 5, stride=2, padding=2))
            if len(layers) > 1:
                layers.append(nn.InstanceNorm2d(channels, affine=True))
            layers.append(nn.LeakyReLU(0.2))
            inputs, channels, size = channels, 2 * channels, (size + 1) // 2
        self.layers = nn.Sequential(*layers, nn.Conv2d(inputs, outputs, size), nn.Flatten(0 if outputs == 1 else 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n,) scores; higher means more like the real images. (n, outputs) where there are several."""
        return self.layers(x)
