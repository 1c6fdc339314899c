"""Assess a finished model on the records that it was trained on and on other records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench.assess import pictures
from bench.assess.assembly import Material, accuracies, accuracy_line, require_above_chance
from bench.assess.attacks import AttackTask, confidences, reserve, run_attacks
from bench.assess.canaries import audit, read_canaries
from bench.assess.from_scores import compare_without_model
from bench.assess.inversion import InversionCase, invert_classes
from bench.assess.limits import limit_lines, limits_of
from bench.assess.models import Loaded, ModelGiven, check_normalisation, load_model
from bench.assess.policy import ATTACKS, INVERSION
from bench.assess.records import ReadAs, Records, read_records
from bench.assess.remembered import Remembered, number_records
from bench.assess.schema import Skipped
from bench.assess.scores import check_groups, file_digest
from bench.assess.training import CONTROL, InMemory, Trainer
from bench.errors import BenchError, RunFailed, unknown
from bench.nets import Classifier
from bench.pipeline.challenge import halves
from bench.progress import notify
from bench.storage.store import Store

POPULATION = 1000
"""Number of records that quantile regression needs."""
TRIED = 500
"""Number of members on which other normalisations are tried."""
TRAINED_ON = "trained_on.npy"
UNTESTED = (
    Skipped(name="reconstruction of single records", reason="not part of this assessment"),
    Skipped(name="attribute inference, generators", reason="not part of this assessment"),
)


@dataclass(frozen=True)
class ModelCase:
    """The inputs of an assessment of a model.

    Attributes:
        given: the model and how to load it.
        members, others: a folder with one folder per class, or a .npz file.
        how: how images are read.
        population: labelled records of neither set that attacks learn from; None = a part of the non-members.
        references: number of reference models to train, even; or a folder with their weights and, unless they were
            trained on none of the records, `trained_on.npy`, (models, members + non-members) bool.
        control: network of the unprotected control; also of reference models if the model's network is not known.
        epochs: epochs of a reference model's training.
        attacks: names of the attacks to run.
        work: folder for trained models and results of slow attacks; None = do not store them.
        canaries: `canaries.npz` or the folder of `bench canaries insert`; None = no canaries.
        match: assess matched pairs of records if the sets differ without the model.
        inversion: settings of class inversion.
    """

    given: ModelGiven
    members: Path
    others: Path
    how: ReadAs = ReadAs()  # noqa: RUF009 (frozen)
    population: Path | None = None
    references: int | Path = 0
    control: str = CONTROL
    epochs: int = 30
    attacks: tuple[str, ...] = ATTACKS
    work: Path | None = None
    canaries: Path | None = None
    match: bool = False
    inversion: InversionCase = InversionCase()  # noqa: RUF009 (frozen)


def material_of_model(case: ModelCase, delta: float, seed: int) -> Material:
    """Read the data, test them without the model, load the model, run the attacks on it and on the control.

    Raises:
        BenchError: bad input, or a model at chance level.
    """
    for name in case.attacks:
        if name not in ATTACKS:
            raise unknown("attack", name, ATTACKS)
    material = Material("model", [])
    with timed(material, "read the data"):
        members = read_records(case.members, case.how)
        others = read_records(case.others, case.how, members)
        population = None if case.population is None else read_records(case.population, case.how, members)
    say_limits(members, others, delta)
    with timed(material, "load the model"):
        loaded = load_model(case.given, _shape(members), members.labels)
        for each in (others, population):
            if each is not None and (label := int(each.labels.max())) >= loaded.classes:
                raise BenchError(f"'{each.path}' has the label {label}, and the model has {loaded.classes} outputs")
        numbers = number_records(members, others, population)
        model = Remembered(loaded.module, numbers, loaded.classes)
        _measure_accuracy(material, loaded, model, members, others)
    with timed(material, "copies and baseline without the model"):
        material.copies, is_kept = pictures.find_copies(members, others)
        kept = others.take(is_kept)
        if members.groups is not None and kept.groups is not None:
            check_groups(members.groups, kept.groups)
            material.groups = (members.groups, kept.groups)
        facts = pictures.facts_of(members, seed), pictures.facts_of(kept, seed)
        chosen = compare_without_model(material, *facts, seed, case.match)
    columns = np.concatenate([np.ones(len(members), bool), is_kept])
    if chosen is not None:
        places = np.flatnonzero(columns)
        columns = np.zeros(len(columns), bool)
        columns[places[np.concatenate([chosen[0], len(members) + chosen[1]])]] = True
        members, kept = members.take(chosen[0]), kept.take(chosen[1])
    material.labels, material.names, material.images = members.labels.numpy(), members.names, members.images.numpy()
    reserved = np.empty(0, np.int64) if population is not None else reserve(len(kept), POPULATION, seed)
    work = InMemory() if case.work is None else Store(case.work, notify=notify, option="--report")
    task = AttackTask(members, kept, population, reserved, numbers=numbers, seed=seed, work=work)
    with timed(material, "reference models"):
        _add_references(task, case, loaded, columns, seed)
    with timed(material, "attacks on the model"):
        material.scored, skipped = run_attacks(model, loaded.classes, task, case.attacks)
    if not material.scored:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in skipped) or "none was named"
        raise BenchError(f"no attack on membership can run here ({reasons}); name one with --attacks, such as loss")
    material.not_tested += [*skipped, *UNTESTED]
    if case.canaries is not None:
        material.canaries = audit(loaded.module, loaded.classes, read_canaries(case.canaries, members, case.how), delta)
    trainer = Trainer(_shape(members), loaded.classes, case.control, case.epochs, seed, work)
    control = _attack_control(material, loaded, task, trainer)
    _invert(material, case, loaded, task, control, trainer)
    material.notes += [*loaded.said, f"The model was read as: {loaded.kind}."]
    material.hashes |= {"members": members.digest, "nonmembers": others.digest, **_model_digest(case.given)}
    return material


@contextmanager
def timed(material: Material, part: str) -> Iterator[None]:
    """Record the seconds of a part of an assessment."""
    start = time.perf_counter()
    yield
    material.seconds[part] = time.perf_counter() - start


def say_limits(members: Records, others: Records, delta: float) -> None:
    """Print the detection limits for these numbers of records or groups."""
    units = [len(each) if each.groups is None else len(np.unique(each.groups)) for each in (members, others)]
    for line in limit_lines(limits_of(units[0], units[1], delta), "record" if members.groups is None else "group"):
        notify(line)


def _measure_accuracy(material: Material, loaded: Loaded, model: Remembered, members: Records, others: Records) -> None:
    """Measure and print the accuracy on both sets; refuse a model that was probably loaded wrongly."""
    rows = np.random.default_rng(0).permutation(len(members))[:TRIED]
    some = members.take(np.sort(rows))
    said = check_normalisation(loaded, some.images, some.labels)
    material.notes += [said] if said else []
    inside, outside = (confidences(model, each, loaded.classes) for each in (members, others))
    right, theirs = inside.correct, outside.correct
    if right is None or theirs is None:
        raise RuntimeError("outputs without predicted classes")
    material.accuracy = accuracies(right, theirs)
    notify(accuracy_line(material.accuracy))
    require_above_chance(right, members.labels.numpy(), f"the model ({loaded.kind})")


def _add_references(task: AttackTask, case: ModelCase, loaded: Loaded, kept: NDArray[np.bool_], seed: int) -> None:
    """Train the reference models, or read them from their folder, and add them to the task."""
    if isinstance(case.references, Path):
        _read_references(task, case, loaded, kept)
        return
    count = case.references
    if count == 0:
        return
    if count < 4 or count % 2:
        raise BenchError(f"--references {count}: expected an even number from 4 on, or a folder")
    network = case.given.network or case.control
    suspects = task.others.take(task.suspects)
    images = torch.cat([task.members.images, suspects.images])
    labels = torch.cat([task.members.labels, suspects.labels])
    trainer = Trainer(_shape(task.members), loaded.classes, network, case.epochs, seed, task.work)
    for number, mask in enumerate(halves(count, len(labels))):
        task.references.append((trainer.reference(images[mask], labels[mask], number), mask.numpy()))


def _read_references(task: AttackTask, case: ModelCase, loaded: Loaded, kept: NDArray[np.bool_]) -> None:
    folder = case.references
    if not isinstance(folder, Path) or not folder.is_dir():
        raise BenchError(
            f"--references {folder}: no such folder; give one with weights, or a number of models to train"
        )
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".pt", ".pth", ".onnx"))
    if len(files) < 2:
        raise BenchError(f"--references {folder}: {len(files)} files of weights; expected at least 2")
    models: list[nn.Module] = []
    for path in files:
        given = ModelGiven(path, case.given.network, loaded.classes, case.given.normalise)
        models.append(load_model(given, _shape(task.members), task.members.labels).module)
    table = folder / TRAINED_ON
    if not table.is_file():
        task.outside.extend(models)
        return
    if task.population is None:
        raise BenchError(
            f"--references {folder} has {TRAINED_ON}: give --population, records that no reference model was trained on"
        )
    try:
        trained = np.load(table, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BenchError(
            f"'{table}' cannot be read ({type(error).__name__}); save a bool array by numpy.save"
        ) from error
    if trained.dtype != np.bool_ or trained.shape != (len(models), len(kept)):
        raise BenchError(
            f"'{table}' is {trained.dtype} of shape {trained.shape}; expected bool of ({len(models)}, {len(kept)}), a "
            "row for each file in the order of the names, members then non-members in their order"
        )
    task.references.extend(zip(models, trained[:, kept], strict=True))


def _attack_control(material: Material, loaded: Loaded, task: AttackTask, trainer: Trainer) -> Classifier | None:
    """Run the same attacks on the control: an unprotected network, trained on the members until it fits them.

    Returns:
        The control; None if it could not be trained.
    """
    names = tuple(each.name for each in material.scored)
    with timed(material, "unprotected control"):
        try:
            control = trainer.control(task.members.images, task.members.labels)
        except (BenchError, RunFailed) as error:
            reason = f"the unprotected control could not be trained: {error}"
            material.not_tested.append(Skipped(name="power", reason=reason))
            return None
        control = control.to(memory_format=torch.channels_last)
        found, _ = run_attacks(Remembered(control, task.numbers, loaded.classes), loaded.classes, task, names)
    material.control = {each.name: each for each in found}
    return control


def _invert(
    material: Material, case: ModelCase, loaded: Loaded, task: AttackTask, control: Classifier | None, trainer: Trainer
) -> None:
    """Test class inversion, or say why it is not tested."""
    if INVERSION not in case.attacks:
        material.not_tested.append(Skipped(name=INVERSION, reason="it was left out"))
        return
    if control is None:
        material.not_tested.append(Skipped(name=INVERSION, reason="needs the unprotected control"))
        return
    with timed(material, INVERSION):
        found = invert_classes(task, loaded, control, trainer, case.inversion)
    if isinstance(found, Skipped):
        material.not_tested.append(found)
    else:
        material.inversion = found


def _model_digest(given: ModelGiven) -> dict[str, str]:
    if not isinstance(given.source, Path):
        return {}
    if given.source.is_file():
        return {"model": file_digest(given.source)}
    digest = hashlib.sha256()
    for path in sorted(given.source.glob("*")):
        if path.is_file():
            digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return {"model": digest.hexdigest()}


def _shape(records: Records) -> tuple[int, int, int]:
    _, channels, height, width = records.images.shape
    return channels, height, width
