"""Splits: which image of a data set belongs to which part of a run.

A run has up to four parts. No two of them share an image, since duplicates are removed.

* The **test set** is the data set's test part. It measures accuracy, and no split reads it.
* The **private part** is the teacher's training set. The privacy guarantee covers its records.
* The **attacker's part** (`aux`) contains the images that the attacker has, from the same data set or from another one.
  The attacker also has their labels where these images are training records of the private classes.
* The **public part** contains unlabelled images of the private records' distribution for methods that need them, such
  as PATE. It is half of the attacker's part; other methods have none.

**Choice of the parts.** The part of a record is a function of the data set's name and of the record's index, class or
person. Pixels and other records never matter, so that replacing one record moves no other one. "By hash" means the
order of the SHA-256 of "<data set's name>:<index>". With n training records:

| split | private | attacker's |
|---|---|---|
| iid | all others | the n // 6 records with the smallest hashes |
| canaries | as iid, and some labels are wrong (below) | as iid |
| few | the 300 records with the largest hashes; all of them are private under iid too | all others |
| full, cross | all records | the data set that the facts name as `other` or `cross` |
| disjoint-low | the lower half of the classes; the middle one of an odd number belongs to it | the upper half |
| disjoint-high | the upper half of the classes | the lower half |
| identity | all others | a sixth of the people or other groups, by the SHA-256 of "<data set's name>:person <number>" |
| identity, if people are classes | all records | the outsiders: images of people who are in no class |

The public part of iid, canaries, few and identity is the half of the attacker's records with the larger hashes. The
private part does not change.

**Canaries** are mislabelled private records that only a model trained on them can predict: min(1000, n // 20) of the n
private records, in the order of the SHA-256 of "<data set's name>:canary <index>". Jagielski et al., "Students parrot
their teachers" (NeurIPS 2023, arXiv 2303.03446), and audits of one training run query such records. A network that
generalises predicts clean records with or without training on them; a mislabelled record is explained only by itself
and leaks first.

**Duplicates.** An image with equal pixels in two parts stays in the first of: test set, public part, attacker's part,
private part. Near-duplicates are counted and stay (`bench.data.parts`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.data.catalog import facts
from bench.data.images import ImageData
from bench.errors import BadData, unknown

if TYPE_CHECKING:
    from torch import LongTensor, Tensor

CANARIES = "canaries"
"""Name of the split with mislabelled records."""
_SPLITS = {
    "iid": "a sixth of the training set, chosen by hash, is the attacker's; the rest is private",
    "few": "300 training images, chosen by hash, are private, which teachers remember; the attacker has the others",
    CANARIES: "as iid, but one private image in twenty (at most 1,000) has a wrong label, and attacks query those",
    "full": "all of the training set is private; the attacker has another data set (mnist and fmnist for each other)",
    "disjoint-low": "the lower half of the classes is private; the attacker has the others",
    "disjoint-high": "the upper half of the classes is private; the attacker has the others",
    "identity": "a sixth of the people or other groups, chosen by hash, is the attacker's; or all who are in no class",
    "cross": "all of the training set is private; the attacker has images of the same kind from another source",
}
FROM_ANOTHER_SET = ("full", "cross")
"""Splits with the attacker's images from another data set."""
HALVES = ("disjoint-low", "disjoint-high")
"""Splits in which half of the classes is private."""
FEW = 300
"""Number of private images of split `few`."""
MOST_CANARIES = 1000
_CANARY_SHARE = 20
"""At most one in this many private records is mislabelled."""
AUX_SHARE = 6
"""One training record in this many is the attacker's under split iid."""
_PUBLIC_SHARE = 2


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into a data set's training set.

    Attributes:
        name: one of `split_names()`.
        private: (n,) int64, ascending: the teacher's records.
        aux: (m,) int64, ascending, disjoint from `private`: the attacker's records; empty if `aux_dataset` is set.
        aux_dataset: name of the data set that provides the attacker's images instead, or None.
        public: (p,) int64, ascending, disjoint from both: images that a method may use without labels; None if the
            method needs none.
        outside: whether `aux` and `public` are indices into the data set's outsiders instead.
        before: (k,) int64: `private` before duplicates were removed, as the training set was numbered then; None if no
            private record was removed. These numbers decide which labels are wrong under split canaries.
        kept: (k,) bool: which of `before` remain.
    """

    name: str
    private: LongTensor
    aux: LongTensor
    aux_dataset: str | None = None
    public: LongTensor | None = None
    outside: bool = False
    before: LongTensor | None = None
    kept: Tensor | None = None


def split_names() -> dict[str, str]:
    """Return {name: one line of description} of all splits."""
    return dict(_SPLITS)


def split(data: ImageData, name: str, public: bool = False, attacked: bool = True) -> Split:
    """Split `data`'s training set; depends only on its name, size, labels and groups, never on the test set.

    Args:
        public: reserve unlabelled images from the private records' own distribution for the method.
        attacked: whether there is an attacker, who needs images: without one, full and cross need no second data set.

    Raises:
        BenchError: unknown split, one that this data set cannot have, or one without public images.
        RuntimeError: the parts overlap or leave the training set (a defect of this file).
    """
    import torch

    if name not in _SPLITS:
        raise unknown("split", name, _SPLITS)
    total, outside = len(data.train_labels), name == "identity" and data.outsiders is not None
    other = _attackers_data_set(data.name, name) if name in FROM_ANOTHER_SET and attacked else None
    if outside and data.outsiders is not None:
        private, is_aux = torch.arange(total), torch.ones(len(data.outsiders), dtype=torch.bool)
    else:
        is_aux = _attackers_records(data, name)
        private = (~is_aux).nonzero().flatten()
    public_rows: LongTensor | None = None
    if public:
        if name in (*FROM_ANOTHER_SET, *HALVES):
            raise BadData(
                f"split '{name}' has no public images of the private records' distribution; use iid, or a setting of "
                "the method that needs none"
            )
        order = order_by_hash(data.name, is_aux.nonzero().flatten().tolist())
        count = len(order) // _PUBLIC_SHARE
        if count == 0:
            kept = f"{len(order)} images from the teachers"
            raise BadData(f"split '{name}' of data set '{data.name}' keeps {kept}; expected 2")
        public_rows = torch.tensor(sorted(order[-count:]))  # type: ignore[assignment]
        is_aux[public_rows] = False
    found = Split(name, private, is_aux.nonzero().flatten(), other, public_rows, outside)  # type: ignore[arg-type]
    if not outside:
        check_split(found, total, attacked)
    return found


def _attackers_records(data: ImageData, name: str) -> Tensor:
    """Return (n,) bool: the attacker's training records. Raises BadData if the data set cannot have this split."""
    import torch

    total = len(data.train_labels)
    is_aux = torch.zeros(total, dtype=torch.bool)
    if name in FROM_ANOTHER_SET:
        return is_aux
    if name in ("iid", CANARIES):
        if total < AUX_SHARE:
            needed = f"{AUX_SHARE} or more training images"
            raise BadData(f"split 'iid' needs {needed}; data set '{data.name}' has {total}")
        is_aux[order_by_hash(data.name, range(total))[: total // AUX_SHARE]] = True
        return is_aux
    if name == "few":
        if total < 2 * FEW:
            needed = f"{2 * FEW} or more training images"
            raise BadData(f"split 'few' needs {needed}; data set '{data.name}' has {total}; use iid")
        is_aux[order_by_hash(data.name, range(total))[:-FEW]] = True
        return is_aux
    if name == "identity":
        if data.train_groups is None:
            raise BadData(
                f"split 'identity' needs to know who is on an image, and data set '{data.name}' does not say; use it "
                "with celeba-g, celeba-h, celeba-id, lfw or your own data with groups (--groups), or use iid"
            )
        groups = data.train_groups.unique().tolist()
        order = sorted(groups, key=lambda person: _sha256(f"{data.name}:person {person}"))
        chosen = torch.tensor(order[: len(order) // AUX_SHARE], dtype=torch.int64)
        is_aux = torch.isin(data.train_groups, chosen)
    else:
        is_low = data.train_labels * 2 < data.classes
        is_aux = is_low if name == "disjoint-high" else ~is_low
    private = data.train_labels[~is_aux].unique()
    if len(private) < 2 or not bool(is_aux.any()):
        raise BadData(
            f"split '{name}' leaves data set '{data.name}' {len(private)} private of {data.classes} classes and "
            f"{int(is_aux.sum())} aux images; expected 2 or more and 1 or more; use split iid"
        )
    return is_aux


def _attackers_data_set(name: str, split: str) -> str:
    """Return the attacker's data set in split full or cross. Raises BadData if there is none."""
    known = facts(name)
    other = known.other if split == "full" else known.cross
    if other is None:
        which = "mnist or fmnist" if split == "full" else "mnist, usps, celeba-id or lfw, say"
        raise BadData(
            f"split '{split}' gives an attack a second data set and '{name}' has none; use it with {which}, use iid, "
            "or leave --attack out"
        )
    return other


def check_split(found: Split, total: int, attacked: bool = True) -> None:
    """Raise RuntimeError if parts overlap, are empty, are not ascending or leave the range of `total` records."""
    import torch

    parts = {"private": found.private, "aux": found.aux}
    parts |= {} if found.public is None else {"public": found.public}
    for part, indices in parts.items():
        if len(indices) and (int(indices[0]) < 0 or int(indices[-1]) >= total):
            raise RuntimeError(f"split '{found.name}': {part} indices leave the range 0 to {total - 1}")
        if bool((indices.diff() <= 0).any()):
            raise RuntimeError(f"split '{found.name}': {part} indices are not ascending")
    if len(torch.cat(list(parts.values())).unique()) < sum(map(len, parts.values())):
        raise RuntimeError(f"split '{found.name}': {', '.join(parts)} overlap")
    has_aux = bool(len(found.aux)) or (found.name in FROM_ANOTHER_SET and not attacked)
    if not len(found.private) or (found.aux_dataset is None) != has_aux:
        raise RuntimeError(f"split '{found.name}': {len(found.private)} private, {len(found.aux)} aux images")


def choose_canaries(name: str, private: LongTensor) -> LongTensor:
    """Choose by hash the rows of the private part to mislabel: min(1000, n // 20) of its n, (m,) int64, ascending.

    Args:
        name: name of the data set.
        private: (n,) indices into its training set.

    Raises:
        BenchError: fewer than 20 private records.
    """
    import torch

    count = min(MOST_CANARIES, len(private) // _CANARY_SHARE)
    if not count:
        needed = f"{_CANARY_SHARE} or more private images"
        raise BadData(f"split 'canaries' needs {needed}; data set '{name}' has {len(private)}; use iid")
    hashes = [_sha256(f"{name}:canary {index}") for index in private.tolist()]
    return torch.tensor(sorted(sorted(range(len(hashes)), key=hashes.__getitem__)[:count]))  # type: ignore[return-value]


def wrong_labels(where: str, indices: Iterable[int], labels: Tensor, classes: int) -> Tensor:
    """Return (m,) int64: a different class for each of (m,) labels, chosen by the hash of its index.

    Args:
        where: name of the set that the indices count in, part of the hash: the same index gets independent labels in
            the training set and in the test set.
        classes: 2 or more.
    """
    import torch

    offsets = [1 + int.from_bytes(_sha256(f"{where} label {index}")[:8], "big") % (classes - 1) for index in indices]
    return (labels + torch.tensor(offsets)) % classes


def order_by_hash(name: str, indices: Iterable[int]) -> list[int]:
    """Sort indices by the SHA-256 of "<name>:<index>"."""
    return sorted(indices, key=lambda index: _sha256(f"{name}:{index}"))


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
