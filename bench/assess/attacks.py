"""Run the membership attacks of an assessment on one network: those on its outputs, and plug-ins of `attacks/`.

Plug-ins receive the same inputs as in a run: a `Target` with the access that they declare, and the attacker's
knowledge. Suspects are the members, and the non-members outside the attacker's own population.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import registry
from bench.api import AttackerKnowledge, Context, Reference, Target
from bench.api.context import Artifacts
from bench.assess.from_scores import attacks_on
from bench.assess.models import BATCH, query
from bench.assess.numbers import Scored
from bench.assess.records import Records
from bench.assess.remembered import Remembered
from bench.assess.schema import Skipped
from bench.assess.scores import Layout, ScoredRecords, score_outputs
from bench.assess.training import InMemory
from bench.data import to_float
from bench.errors import RunFailed
from bench.progress import track
from bench.seeds import derive

QUERIES = 600
"""Number of records of each set that the label-only attack scores, with 41 queries for each."""
READS = {"label": "predicted class", "scores": "all outputs", "weights": "all outputs and weights"}
CALIBRATED = "Watson et al., ICLR 2022, arXiv 2111.08440"
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AttackTask:
    """Inputs of attacks except the model.

    Attributes:
        members, others: the two sets, without copies.
        population: records of neither set that attacks learn from; None = the non-members in `reserved`.
        reserved: indices of the non-members that serve as the attacker's population if none is given.
        references: networks, each with (members + suspects,) bool: the records that it was trained on. Suspects are
            all non-members if `population` is given, else those that are not reserved.
        outside: networks that were trained on none of the records; used by the calibrated loss.
        numbers: the number of each record by its pixels, by which networks remember their outputs.
        seed: seed of the attacks.
        work: store of results of slow attacks, so that an interrupted assessment resumes.
    """

    members: Records
    others: Records
    population: Records | None
    reserved: Rows
    references: list[tuple[nn.Module, NDArray[np.bool_]]] = field(default_factory=list)
    outside: list[nn.Module] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    seed: int = 0
    work: Artifacts = field(default_factory=InMemory)

    @property
    def suspects(self) -> Rows:
        """Indices of the non-members that are suspects of attacks with a population or reference models."""
        keep = np.ones(len(self.others), bool)
        if self.population is not None:
            return np.flatnonzero(keep)
        keep[self.reserved] = False
        return np.flatnonzero(keep)


def reserve(others: int, least: int, seed: int) -> Rows:
    """Choose non-members for the attacker's population: a third, or half if only half is at least `least`. Sorted."""
    count = others // 3
    if count < least <= others // 2:
        count = least
    chosen = np.random.default_rng(derive(seed, "population")).permutation(others)[:count]
    return np.sort(chosen)


def run_attacks(
    module: nn.Module, classes: int, task: AttackTask, names: tuple[str, ...]
) -> tuple[list[Scored], list[Skipped]]:
    """Run attacks on one network.

    Args:
        names: names of attacks, from `bench.assess.policy.ATTACKS`.

    Returns:
        The scores of those that ran, and why others did not.
    """
    with track("query the model", len(task.members) + len(task.others)) as advance:
        inside, outside = (_side(module, each, classes, advance) for each in (task.members, task.others))
    scored = [each for each in attacks_on(inside, outside) if each.name in names]
    skipped: list[Skipped] = []
    if "calibrated-loss" in names:
        if task.outside or task.references:
            scored.append(_calibrated(inside, outside, task, classes))
        else:
            reason = "it needs reference models: --references N trains them, --references DIR names a folder"
            skipped.append(Skipped(name="calibrated-loss", reason=reason))
    for name in ("label-only", "quantile", "lira", "rmia"):
        if name not in names:
            continue
        try:
            found = _plugin(name, module, classes, task)
        except RunFailed as error:
            found = str(error)
        if isinstance(found, str):
            skipped.append(Skipped(name=name, reason=found))
        else:
            scored.append(found)
    return scored, skipped


def _side(module: nn.Module, records: Records, classes: int, advance: Callable[[int], object]) -> ScoredRecords:
    layout = Layout("logit", classes, True, records.groups is not None, ())
    logits = query(module, records.images, step=advance).double().numpy()
    empty = np.empty((len(records), 0))
    return score_outputs(records.path, "", layout, logits, records.labels.numpy(), records.groups, empty)


def confidences(module: nn.Module, records: Records, classes: int) -> ScoredRecords:
    """Query a network on one set, and return its outputs in the form that attacks read."""
    return _side(module, records, classes, lambda _: None)


def _calibrated(inside: ScoredRecords, outside: ScoredRecords, task: AttackTask, classes: int) -> Scored:
    """Score each record by its confidence minus the mean confidence of networks that were not trained on it.

    The mean corrects for the difficulty of the record.
    """
    rows = _rows("calibrated-loss", task) if task.references else None
    chosen = (task.members, task.others) if rows is None else (task.members.take(rows[0]), task.others.take(rows[1]))
    count = len(chosen[0])
    models = task.references or [(model, np.zeros(count + len(chosen[1]), bool)) for model in task.outside]
    known = [np.concatenate([confidences(model, each, classes).confidence for each in chosen]) for model, _ in models]
    untrained = ~np.stack([trained for _, trained in models])
    means = np.where(untrained, np.stack(known), 0).sum(0) / np.maximum(untrained.sum(0), 1)
    own = (inside.confidence, outside.confidence)
    if rows is not None:
        own = (own[0][rows[0]], own[1][rows[1]])
    note = f"{len(models)} reference models"
    return Scored("calibrated-loss", CALIBRATED, "loss", own[0] - means[:count], own[1] - means[count:], note, rows)


def _plugin(name: str, module: nn.Module, classes: int, task: AttackTask) -> Scored | str:
    """Return the scores of a plug-in, or the reason why it cannot run."""
    attack, problem = _attack(name, task)
    if attack is None:
        return problem
    rows = _rows(name, task)
    chosen = task.members.take(rows[0]), task.others.take(rows[1])
    population = task.population or task.others.take(task.reserved)
    shape = _shape(task.members)
    reason = attack.skip_reason(shape, classes, len(population))
    if reason is not None:
        return str(reason)
    images = torch.cat([to_float(each.images) for each in chosen])
    labels = torch.cat([each.labels for each in chosen])
    context = Context(torch.device("cpu"), derive(task.seed, name), track, InMemory())

    def references(count: int, _kind: Literal["teacher", "student"]) -> list[Reference]:
        return [
            Reference(Target(model, attack.access, shape, classes), torch.from_numpy(trained))
            for model, trained in task.references[:count]
        ]

    def load_population() -> tuple[Tensor, Tensor]:
        return to_float(population.images), population.labels

    def infer() -> dict[str, Tensor]:
        knowledge = AttackerKnowledge(images, labels, load_population, references)
        result = attack.infer(Target(module, attack.access, shape, classes), knowledge, context)
        return {"scores": result.scores.double()}

    networks = [module, *(model for model, _ in task.references)]
    inputs = [images, labels, population.images, population.labels]
    inputs += [torch.from_numpy(trained) for _, trained in task.references]
    settings = [attack.version, attack, classes, task.seed]
    found = finished(task.work, name, settings, networks, inputs, infer)["scores"].numpy()
    count = len(rows[0])
    note = "" if len(rows[0]) == len(task.members) else f"on {count} members and {len(rows[1])} non-members"
    if task.references and name in ("lira", "rmia"):
        note = f"{len(task.references)} reference models" + (f", {note}" if note else "")
    return Scored(name, attack.reference, READS[attack.access], found[:count], found[count:], note, rows)


def finished(
    work: Artifacts,
    name: str,
    settings: list[object],
    networks: list[nn.Module],
    inputs: list[Tensor],
    make: Callable[[], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Return the result of an attack, from the store if it was made for the same settings, weights and records.

    The store computes a damaged result again and says so. Results on a network without weights that torch knows, such
    as a plain function, are not kept.
    """
    if not all(any(True for _ in network.parameters()) for network in networks):
        return make()
    digest = hashlib.sha256(repr(settings).encode())
    for network in (each.body if isinstance(each, Remembered) else each for each in networks):
        digest.update(repr(network).encode())
        inputs = [*inputs, *network.state_dict().values()]
    for tensor in inputs:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return work.get(name, {"inputs": digest.hexdigest()}, make)


def _attack(name: str, task: AttackTask) -> tuple[Any, str]:
    """Return the plug-in with its options, or None and the reason why it cannot run."""
    cls = registry.load("attack", name)
    if name not in ("lira", "rmia"):
        return cls(batch=BATCH), ""
    count = len(task.references)
    if count < 4 or count % 2:
        return None, "it needs reference models: --references N trains them, --references DIR names a folder"
    if name == "lira":
        mode = "online" if count >= 16 else "offline"
        return cls(references=count, mode=mode, variance="fixed", views="none", batch=BATCH), ""
    return cls(references=count, score="ratio", batch=BATCH), ""


def _rows(name: str, task: AttackTask) -> tuple[Rows, Rows]:
    """Return the indices of the members and non-members that an attack scores."""
    members = np.arange(len(task.members))
    if name == "label-only":
        rng = np.random.default_rng(derive(task.seed, "label-only", "sample"))
        return (
            np.sort(rng.permutation(len(task.members))[:QUERIES]),
            np.sort(rng.permutation(len(task.others))[:QUERIES]),
        )
    return members, task.suspects


def _shape(records: Records) -> tuple[int, int, int]:
    _, channels, height, width = records.images.shape
    return channels, height, width
