"""GAN critics: map each image to one or several unbounded numbers."""

from __future__ import annotations

from torch import Tensor, nn

from bench.nets.generators import Shape, check_square

_LAST_MAP = 4


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
        while size > _LAST_MAP:
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
