"""Linear layers on fixed patch features, with or without scattering features: only the last layer is trained.

Features of an image (after Coates and Ng, ICML 2011; Thiry et al., ICLR 2021), with K = 800 filters of 6x6 pixels, or
1,600 in the networks `wide-...`:

1. Every patch p of the image is normalised: (p - mean(p)) / sqrt(var(p) + (10/255)^2 / 10), with the unbiased variance.
2. y = D Z (p - mu): Z and mu whiten the patches of drawings, and the rows of D are K whitened patches of drawings,
   scaled to norm 1 (`PatchFeatures.fit`).
3. Two responses for each filter, max(y - 0.25, 0) and max(-y - 0.25, 0), averaged over the cells of a 3x3 grid.
4. The square root of each of the 18 K averages; rows are scaled to norm 1.

The features depend only on that image and on the filters, which are public: they are fitted to synthetic drawings and
are saved with the network.

Differs from the papers: the dictionary is made from drawings instead of photographs, so that no public data are used;
the square root and the number of filters are this project's.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.errors import Incompatible
from bench.nets.classifiers.wavelet_nets import WaveletFeatures
from bench.nets.small_net import SmallNet, check_image_size

NETWORKS = {
    "patch-linear": "PatchLinear",
    "patch-linear-mirrored": "PatchLinearMirrored",
    "patch-wavelet-linear": "PatchWaveletLinear",
    "patch-wavelet-linear-mirrored": "PatchWaveletLinearMirrored",
    "wide-patch-linear": "WidePatchLinear",
    "wide-patch-linear-mirrored": "WidePatchLinearMirrored",
    "wide-patch-wavelet-linear": "WidePatchWaveletLinear",
    "wide-patch-wavelet-linear-mirrored": "WidePatchWaveletLinearMirrored",
}
"""Network name -> class."""
SMALLEST, LARGEST = 8, 64
"""Limits of an image's sides, in pixels."""
FILTERS, SIDE, GRID = 800, 6, 3
"""K; the side of a patch in pixels; cells along each side of the image in which responses are averaged."""
THRESHOLD = 0.25
"""Responses of a smaller magnitude count as 0."""
CONTRAST = 10 / 255**2
"""Added to a patch's variance before it is divided by its root, so that flat patches are not amplified."""
REGULARISED = 0.1
"""Added to the eigenvalues of the patches' covariance."""
FLAT = 1e-4
"""Drawn patches of a smaller variance are left out of the dictionary."""
CACHED, ON_ACCELERATOR = 3000, 64
"""Patches processed at once, whose responses fit into the CPU's cache; factor on that number on an accelerator."""
LEAST = 1e-20
"""Added under a square root, so that its gradient at 0 is finite."""

Shape = tuple[int, int, int]


class PatchFeatures(nn.Module):
    """Maps (n, c, h, w) images, normalised to [-1, 1] by a `Classifier`, to (n, 18 K) rows of norm 1.

    Before `fit` the filters are random, drawn from torch's global generator, and the offsets are 0.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        mirrored: whether features are averaged over the image and its mirror image.
        wide: whether there are 2 K filters instead of K.

    Raises:
        BenchError: image shapes it cannot take.
    """

    filters: Tensor
    offsets: Tensor
    cells: Tensor

    def __init__(self, shape: Shape, mirrored: bool = False, wide: bool = False) -> None:
        super().__init__()
        check_image_size("patch-linear", shape, SMALLEST, LARGEST)
        channels, height, width = shape
        if channels not in (1, 3):
            raise Incompatible(f"the patch networks take images of 1 or 3 channels, not {channels}: use another one")
        self.mirrored = mirrored
        rows, columns = height - SIDE + 1, width - SIDE + 1
        positions = torch.eye(rows * columns).view(-1, 1, rows, columns)
        self.at_once = max(CACHED // (rows * columns), 1)
        count = FILTERS * (2 if wide else 1)
        self.register_buffer("filters", F.normalize(torch.randn(count, channels * SIDE * SIDE)))
        self.register_buffer("offsets", torch.zeros(count))
        self.register_buffer("cells", F.adaptive_avg_pool2d(positions, GRID).flatten(1), persistent=False)

    @property
    def outputs(self) -> int:
        """Return the number of features, 18 for each filter."""
        return 2 * len(self.filters) * GRID * GRID

    @torch.no_grad()
    def fit(self, drawings: Tensor, rng: torch.Generator) -> None:
        """Compute the filters D Z and the offsets -D Z mu from public images, in place.

        Args:
            drawings: (n, c, h, w) float32 in [0, 1] with at least as many patches that are not flat as filters.
            rng: chooses the patches of the dictionary, on the CPU.

        Raises:
            BenchError: too few patches.
        """
        patches = F.unfold(drawings.cpu(), SIDE, stride=SIDE - 1).transpose(1, 2).flatten(0, 1)
        variance = patches.var(1, keepdim=True)
        patches = (patches - patches.mean(1, keepdim=True)) / (variance + CONTRAST).sqrt()
        patches = patches[variance[:, 0] > FLAT]
        count = len(self.filters)
        if len(patches) < count:
            raise Incompatible(f"{len(patches)} patches of drawings; patch features need {count}: draw more images")
        mean = patches.mean(0)
        values, vectors = torch.linalg.eigh((patches - mean).T.double() @ (patches - mean).double() / len(patches))
        whiten = (vectors * (values + REGULARISED).rsqrt() @ vectors.T).float()
        chosen = torch.randperm(len(patches), generator=rng)[:count]
        dictionary = F.normalize((patches[chosen] - mean) @ whiten)
        self.filters.copy_(dictionary @ whiten)
        self.offsets.copy_(-(self.filters.cpu() @ mean))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features of the images, a few at a time."""
        images = (x + 1) / 2
        if torch.compiler.is_compiling():  # an exported program's batch size is unknown at export
            return self._rows(images)
        at_once = self.at_once * (1 if x.device.type == "cpu" else ON_ACCELERATOR)
        return torch.cat([self._rows(part) for part in images.split(at_once)])

    def _rows(self, images: Tensor) -> Tensor:
        if not self.mirrored:
            return self._one_side(images)
        return F.normalize(self._one_side(images) + self._one_side(images.flip(-1)))

    def _one_side(self, images: Tensor) -> Tensor:
        # Mean and regularised deviation of each patch by moving averages over the image
        mean = F.avg_pool2d(images.mean(1, keepdim=True), SIDE, 1)
        square = F.avg_pool2d(images.square().mean(1, keepdim=True), SIDE, 1)
        pixels = images.shape[1] * SIDE * SIDE
        variance = (square - mean.square()).clamp_min(0) * (pixels / (pixels - 1))
        deviation = (variance + CONTRAST).sqrt().flatten(2)
        normalised = (F.unfold(images, SIDE) - mean.flatten(2)) / deviation  # (n, 36 c, positions)
        filters = self.filters.expand(images.shape[0], -1, -1)
        responses = F.softshrink(torch.baddbmm(self.offsets[:, None], filters, normalised), THRESHOLD)
        signed, absolute = responses @ self.cells, responses.abs() @ self.cells
        positive, negative = (absolute + signed) / 2, (absolute - signed) / 2
        return F.normalize((torch.cat([positive, negative], 1).flatten(1).clamp_min(0) + LEAST).sqrt())


class PatchRows(nn.Module):
    """Rows of norm sqrt(d) of patch features, for images after scattering features of the same norm where there are.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        mirrored: whether features are averaged over the image and its mirror image.
        scattering: whether the row begins with the image's scattering features.
        wide: whether there are 2 K filters instead of K.
    """

    def __init__(self, shape: Shape, mirrored: bool, scattering: bool, wide: bool = False) -> None:
        super().__init__()
        self.patches = PatchFeatures(shape, mirrored, wide)
        self.scattering = WaveletFeatures(shape, mirrored) if scattering else None
        self.blocks = [self.patches.outputs]
        if self.scattering is not None:
            self.blocks.insert(0, math.prod(self.scattering.output_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h, w) in [-1, 1] to (n, d)."""
        rows = self.patches(x)
        if self.scattering is not None:
            rows = torch.cat([F.normalize(self.scattering(x).flatten(1)), rows], 1)
        return rows * math.sqrt(rows.shape[1] / len(self.blocks))


class PatchLinear(SmallNet):
    """A linear layer on patch features, 14,400 numbers; with `scattering` also on scattering features, before them.

    Args:
        shape: (c, h, w), sides of 8 to 64, c 1 or 3.
        classes: number of classes.

    Raises:
        BenchError: image shapes it cannot take.
    """

    mirrored: ClassVar[bool] = False
    """Whether features are averaged over the image and its mirror image: for photographs, not for digits."""
    scattering: ClassVar[bool] = False
    """Whether rows have scattering features too, of the same norm."""
    wide: ClassVar[bool] = False
    """Whether there are 2 K filters instead of K."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        rows = PatchRows(shape, type(self).mirrored, type(self).scattering, type(self).wide)
        self.trunk = nn.Sequential(rows)
        self.head = nn.Linear(sum(rows.blocks), classes)


class PatchLinearMirrored(PatchLinear):
    """`patch-linear` on the mean features of an image and its mirror image, for photographs."""

    mirrored: ClassVar[bool] = True


class PatchWaveletLinear(PatchLinear):
    """A linear layer on scattering and patch features: 18,369 numbers for 1x28x28, 29,952 for 3x32x32."""

    scattering: ClassVar[bool] = True


class PatchWaveletLinearMirrored(PatchLinearMirrored):
    """`patch-wavelet-linear` on the mean features of an image and its mirror image, for photographs."""

    scattering: ClassVar[bool] = True


class WidePatchLinear(PatchLinear):
    """`patch-linear` with 1,600 filters: 28,800 numbers."""

    wide: ClassVar[bool] = True


class WidePatchLinearMirrored(PatchLinearMirrored):
    """`patch-linear-mirrored` with 1,600 filters."""

    wide: ClassVar[bool] = True


class WidePatchWaveletLinear(PatchWaveletLinear):
    """`patch-wavelet-linear` with 1,600 filters: 32,769 numbers for 1x28x28, 44,352 for 3x32x32."""

    wide: ClassVar[bool] = True


class WidePatchWaveletLinearMirrored(PatchWaveletLinearMirrored):
    """`patch-wavelet-linear-mirrored` with 1,600 filters."""

    wide: ClassVar[bool] = True
