"""Facts about images that need no model: features for the baseline, and copies between the two sets."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bench.assess.records import FILE_FACTS, Records
from bench.assess.schema import Copies
from bench.assess.scores import FEWEST
from bench.data.image_files import difference_hash, pixel_keys
from bench.data.parts import NEAR
from bench.errors import BenchError
from bench.membership.blind import Facts
from bench.membership.image_facts import image_facts

COMPARED = 8
"""Largest number of members with the same difference hash that a non-member is compared with."""


def facts_of(records: Records, seed: int) -> Facts:
    """Compute features of images and of their files, for the baseline without the model.

    File names and their order are left out: they differ between most folders, and no model has seen them.
    """
    found = image_facts(records.images, seed)
    names, values = found.names, found.values
    if records.facts.shape[1]:
        values = np.concatenate([values, records.facts], 1)
        names += tuple(FILE_FACTS)
    return Facts(names, values, records.labels.numpy(), records.groups)


def find_copies(members: Records, others: Records) -> tuple[Copies, NDArray[np.bool_]]:
    """Find copies of members among the non-members; return their counts, and (m,) bool: which non-members to keep.

    Exact copies have equal pixels. Near copies have the same 64-bit difference hash and pixels that differ by at most
    16 grey levels (root mean square). Their number is a lower bound, as the hashes of near copies may differ by a bit.
    The model was trained on a non-member that equals a member, so it is removed.

    Raises:
        BenchError: fewer than 30 non-members are left.
    """
    seen = set(pixel_keys(members.images))
    exact = np.array([key in seen for key in pixel_keys(others.images)])
    near = np.zeros(len(others), bool)
    of_look: dict[int, list[int]] = defaultdict(list)
    for row, look in enumerate(_looks(members.images)):
        of_look[look].append(row)
    for row, look in enumerate(_looks(others.images)):
        candidates = of_look.get(look, [])[:COMPARED]
        if candidates and not exact[row]:
            apart = members.images[candidates].float() - others.images[row].float()
            near[row] = bool((apart.square().flatten(1).mean(1).sqrt() <= NEAR).any())
    removed = exact | near
    found = Copies(
        exact=int(exact.sum()),
        near=int(near.sum()),
        removed=int(removed.sum()),
        method="equal pixels; equal difference hash and pixels within 16 grey levels",
    )
    if found.removed and int((~removed).sum()) < FEWEST:
        raise BenchError(
            f"{found.removed} of {len(others)} non-members are copies of members; give records that were not trained on"
        )
    return found, ~removed


def _looks(images: Tensor) -> list[int]:
    found: list[int] = []
    for image in images.numpy():
        grey: NDArray[np.uint8] = image[0] if len(image) == 1 else np.rint(image.mean(0)).astype(np.uint8)
        found.append(int(difference_hash(Image.fromarray(grey))))
    return found
