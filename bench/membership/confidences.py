"""Shared code of membership attacks: true-class confidences in float64, augmented views, and reference models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from bench.api import AttackerKnowledge, Context, Target
from bench.config import Departure, Size
from bench.data import batch_size_for
from bench.errors import RunFailed
from bench.validate import at_least

Views = Literal["none", "mirror", "shifts"]

TINY = torch.finfo(torch.float32).tiny
FEW: dict[str, Any] = {"references": 4}
"""Number of reference models in the tiers smoke and quick."""
TEACHER_REFERENCES = Departure(
    what="the reference models are undefended teachers, not students of the same conversion",
    why="each reference student costs a whole conversion; with teachers, an attack on a student relies on transfer",
    sets={"reference_kind": "teacher"},
)
"""Changes of the `working` attacks in their reference models."""


@dataclass(frozen=True)
class ReferenceAttack:
    """Options and steps of attacks that learn from reference models."""

    references: Size[int] = 4
    """Number of reference (shadow) models, even; each suspect is a training record of half of them."""
    reference_kind: Literal["teacher", "student"] = "student"
    """Reference models: undefended teachers, or students that are converted like the target."""
    batch: Size[int] = 512
    """Images per query of a model; changes only rounding."""

    def __post_init__(self) -> None:
        if self.references < 2 or self.references % 2:
            raise ValueError(f"references is {self.references}; expected an even number, 2 or more")
        at_least(self, 1, "batch")

    def reference_models(self, knowledge: AttackerKnowledge, ctx: Context) -> tuple[list[Target], Tensor]:
        """Return the reference models, and (references, n) bool: which suspects each one was trained on.

        Raises:
            RunFailed: the number of references is wrong, or a suspect is not a member of exactly half of them.
        """
        found = knowledge.references(self.references, self.reference_kind)
        if len(found) != self.references:
            raise RunFailed(f"{len(found)} references were given; expected {self.references}")
        members = torch.stack([one.members for one in found]).to(ctx.device)
        if not bool((2 * members.sum(0) == self.references).all()):
            raise RunFailed(f"a suspect is not a training record of exactly half of the {self.references} references")
        return [one.target for one in found], members


def query_probabilities(target: Target, images: Tensor, batch: int) -> Tensor:
    """Query the target with (n, c, h, w) images and return (n, classes) float64 softmax probabilities.

    Raises:
        RunFailed: a response is not a number.
    """
    return query_parts(target, images.split(batch_size_for(images, batch)))


def query_parts(target: Target, parts: Iterable[Tensor]) -> Tensor:
    """Query the target with parts of images, as `query_probabilities`; the responses are checked once."""
    responses = torch.cat([target.scores(part) for part in parts]).double()
    if not bool(responses.isfinite().all()):
        raise RunFailed("a model returns probabilities that are not numbers; did its training diverge?")
    return responses


def true_class_probability(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the (n,) true-class probabilities p_y, at least the smallest normal float32.

    Args:
        probabilities: (n, classes) float64.
        labels: (n,) int64.
    """
    return probabilities.gather(1, labels.unsqueeze(1)).squeeze(1).clamp_min(TINY)


def scaled_confidence(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return (n,) phi = log p_y - log sum_{j != y} p_j (Carlini et al., S&P 2022), between about -87.3 and 87.3.

    The wrong classes' probabilities are summed: 1 - p_y of float32 responses is 0 or a multiple of 6e-8, their sum is
    not. p_y and the sum are clamped to the smallest normal float32, 1.2e-38, below which devices may return 0.

    Args:
        probabilities: (n, classes) float64, converted from float32 responses.
        labels: (n,) int64.
    """
    others = probabilities.scatter(1, labels.unsqueeze(1), 0.0).sum(1).clamp_min(TINY)
    return true_class_probability(probabilities, labels).log() - others.log()


def views(images: Tensor, kind: Views) -> list[Tensor]:
    """Return the query views of each image.

    "none" is only the image; "mirror" is the image and its mirror image; "shifts" is the image and its four shifts by
    one pixel, up, down, left and right, with the border filled by reflection.

    Args:
        images: (n, c, h, w), h and w at least 2.
    """
    if kind == "none":
        return [images]
    if kind == "mirror":
        return [images, images.flip(-1)]
    height, width = images.shape[-2:]
    framed = pad(images, (1, 1, 1, 1), mode="reflect")
    corners = [(1, 1), (2, 1), (0, 1), (1, 2), (1, 0)]
    return [framed[..., y : y + height, x : x + width] for y, x in corners]


def split_by_membership(values: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Split values into (IN, OUT): per suspect, those of references trained on it, and those of the others.

    Args:
        values: (references, n, ...).
        members: (references, n) bool, each column true in exactly half of its rows.

    Returns:
        Two tensors (references / 2, n, ...), in the order of the references.
    """
    outside, inside = members.long().argsort(stable=True, dim=0).chunk(2)
    suspects = torch.arange(members.shape[1], device=members.device)
    return values[inside, suspects], values[outside, suspects]
