"""Check a contributed row: the account of its record against its bundle, and the accuracy of its student.

The board's row is computed from the record, and the bundle has the released student and its ledger. A record that
states a lower epsilon, another method or another accuracy than its bundle has is refused. As with `verify`, a ledger
that does not describe what the method did cannot be seen from the files: run the record's command again to see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from bench import data, teachers
from bench.bundle import account
from bench.bundle.checking import Verified
from bench.bundle.network import student
from bench.bundle.schema import Failed, Privacy, first_error
from bench.core.epsilon import epsilon_from_json, format_epsilon
from bench.errors import BadData
from bench.storage.records import Record

TOLERANCE = 0.002
"""Largest difference of an accuracy on another machine; rounding of the network may change single images."""


@dataclass(frozen=True)
class Checked:
    """A contributed row that its bundle confirms.

    Attributes:
        stated: accuracy of the record, in [0, 1].
        measured: accuracy of the bundle's student on the same public test images.
        images: number of the test images.
    """

    stated: float
    measured: float
    images: int


def check_record(path: Path, folder: Path, bundle: Verified, root: Path | None = None) -> Checked:
    """Check that a record states what its verified bundle has; the student runs on all test images, without limits.

    Args:
        path: file of the record.
        folder: directory of the bundle.
        bundle: the result of `verify` on it.
        root: folder of the data sets; default $BENCH_DATA.

    Raises:
        BenchError: not a record, a record without a release, or missing data.
        Failed: the record and the bundle differ.
    """
    try:
        record = Record.read(path)
    except (OSError, ValueError) as error:
        raise BadData(f"--record {path}: {error}; give the record.json of the run that was exported") from None
    if record.status == "failed":
        raise BadData(f"--record {path}: this run failed ({record.reason}) and released nothing")
    try:
        expected = account.account(record)
    except (KeyError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        what = first_error(error) if isinstance(error, ValidationError) else str(error)
        raise BadData(f"--record {path}: a bundle cannot hold it: {what}; give the run's own record") from None
    _check_account(record, expected, bundle)
    return _check_accuracy(record, folder, bundle, root)


def _check_account(record: Record, expected: Privacy, bundle: Verified) -> None:
    """Compare what the record says of the method, its noise and its epsilons (`expected`) with the bundle."""
    present = bundle.privacy
    for name in ("method", "tier", "noise", "unit", "delta", "claimed", "audited", "events"):
        if getattr(expected, name) != getattr(present, name):
            raise Failed(f"the record and the bundle have different values of '{name}'")
    for unit, stated in record.privacy["accounted_units"].items():
        _check_epsilon(f"per {unit}", stated["epsilon"], bundle, unit)
    _check_epsilon("of the board", record.privacy["accounted"]["epsilon"], bundle, present.unit)


def _check_epsilon(which: str, stated: float | str, bundle: Verified, unit: str) -> None:
    """Refuse an epsilon of the record that is below the one that the bundle's ledger gives for the unit."""
    found = next((each for each in bundle.recomputed.values() if each.unit == unit), None)
    if found is None:
        raise Failed(f"the record has an epsilon {which}, the ledger of the bundle has none per {unit}")
    epsilon, least = epsilon_from_json(stated), found.epsilon
    if epsilon < least * (1 - 1e-6):
        raise Failed(
            f"the record has an epsilon {which} of {format_epsilon(epsilon)}, the ledger of the bundle of "
            f"{format_epsilon(least)}"
        )


def _check_accuracy(record: Record, folder: Path, bundle: Verified, root: Path | None) -> Checked:
    """Measure the accuracy of the bundle's student on the public test images that the record names."""
    where = record.spec["release"]["teacher"]["data"]
    name, split = where["dataset"], where["split"]
    if bundle.model.data != name:
        raise Failed(f"the record is of the data set '{name}', the bundle of '{bundle.model.data}'")
    if not data.facts(name).is_public:
        raise BadData(f"the record is of the data set '{name}', which is not public; boards have public data only")
    images = data.load(data.base_name(name), root)
    if images.name != name:
        raise BadData(f"the record is of the data set '{name}', and here is '{images.name}'; fetch the other version")
    images = data.private_domain(images, data.split(images, split))
    stated = record.metrics.get("accuracy")
    if stated is None:
        raise Failed("the record has no accuracy")
    logits = teachers.predict(student(folder, bundle.model), images.test_images, torch.device("cpu"))
    measured = float((logits.argmax(1) == images.test_labels).double().mean())
    published = bundle.model.accuracy
    if published is None or published.share != stated:
        raise Failed(f"the record has an accuracy of {stated}, the bundle of {published and published.share}")
    if abs(measured - stated) > TOLERANCE:
        raise Failed(f"the record has an accuracy of {stated:.4f}, the student of the bundle {measured:.4f}")
    return Checked(stated, measured, len(images.test_images))
