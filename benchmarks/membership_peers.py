"""LiRA and RMIA compared with LeakPro and Privacy Meter: scores and numbers from the same outputs of the same models.

    python benchmarks/membership_peers.py --leakpro FOLDER --privacy-meter FOLDER

A folder holds the source of the other tool; without it the tool's rows are left out. The package `leakpro` of PyPI is
another, empty one. The attacks of LeakPro import `optuna`, `ts2vec` and `colorlog`.

The target and 8 or 64 reference models are each trained on half of 7,000 records, a fifth of which have random labels;
1,000 other records are the population of RMIA. All tools receive the float32 logits of these models, and compute
scores, AUC and true positive rates with their own code. The script fails if our numbers differ from the definition: the
AUC is the share of pairs in which the member has the higher score, ties one half. The true positive rate (TPR) at a
false positive rate (FPR) f is the largest share of members at or above a threshold that at most a share f of the
non-members reach.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from _timing import run, table
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench import registry
from bench.api import AttackerKnowledge, Context, Reference, Target
from bench.assess.attacks import Artifacts
from bench.errors import BenchError
from bench.metrics.membership.auc import area
from bench.metrics.membership.rates import rate_at
from bench.pipeline.challenge import halves
from bench.progress import track

Floats = NDArray[np.float64]
SUSPECTS, POPULATION, CLASSES, SIZE = 7000, 1000, 10, 20
EPOCHS, BATCH = 30, 100
GAMMA, A = 1.0, 0.3
LIMITS = (0.1, 0.01, 0.001)
HEADS = ["attack", "scores by", "numbers by", "AUC", *(f"TPR at {limit:.1%}" for limit in LIMITS), "score difference"]


@dataclass(frozen=True)
class Outputs:
    """The outputs of all models. Records are first the members, then the other suspects, then the population.

    Attributes:
        target: (records, classes) float32 logits.
        references: (models, records, classes) float32 logits.
        labels: (records,) int64.
        trained_on: (models, SUSPECTS) bool.
    """

    target: Tensor
    references: Tensor
    labels: Tensor
    trained_on: Tensor


@dataclass(frozen=True)
class Numbers:
    """AUC, and the true positive rate at each of `LIMITS`."""

    auc: float
    rates: tuple[float, ...]

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        return [f"{self.auc:.6f}", *(f"{100 * rate:.2f} %" for rate in self.rates)]


@dataclass(frozen=True)
class Found:
    """The scores of the suspects by another tool, and the numbers that it computes from them."""

    scores: Floats
    numbers: Numbers


class LookUp(nn.Module):
    """A network that returns the known logits of records; its inputs are the numbers of the records."""

    logits: Tensor

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.register_buffer("logits", logits)

    def forward(self, numbers: Tensor) -> Tensor:
        """Map (n, 1, 1, 1) numbers to (n, classes) logits."""
        return self.logits[numbers.flatten().long()]


def make_outputs(references: int) -> Outputs:
    """Train the target and the reference models on noisy blobs, and query them on all records."""
    rng = torch.Generator().manual_seed(0)
    count = SUSPECTS + POPULATION
    labels = torch.randint(CLASSES, (count,), generator=rng)
    records = torch.randn(CLASSES, SIZE, generator=rng)[labels] + torch.randn(count, SIZE, generator=rng)
    is_wrong = torch.rand(count, generator=rng) < 0.2
    labels[is_wrong] = torch.randint(CLASSES, (int(is_wrong.sum()),), generator=rng)
    trained_on = halves(references, SUSPECTS)
    is_member = torch.arange(SUSPECTS) < SUSPECTS // 2
    logits = [
        train(records[:SUSPECTS][mask], labels[:SUSPECTS][mask], seed)(records).detach()
        for seed, mask in enumerate([is_member, *trained_on])
    ]
    return Outputs(logits[0], torch.stack(logits[1:]), labels, trained_on)


def train(records: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """Train a network of one hidden layer until it fits most of the wrong labels."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(SIZE, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(records)).split(BATCH):
            loss = nn.functional.cross_entropy(model(records[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def score_ours(name: str, outputs: Outputs, **options: Any) -> Floats:
    """Run an attack of this project; return the (SUSPECTS,) scores."""
    attack = registry.load("attack", name)(references=len(outputs.references), **options)
    shape = (1, 1, 1)
    numbers = torch.arange(len(outputs.labels)).float().reshape(-1, *shape)
    models = [Target(LookUp(each), "scores", shape, CLASSES) for each in outputs.references]
    knowledge = AttackerKnowledge(
        numbers[:SUSPECTS],
        outputs.labels[:SUSPECTS],
        lambda: (numbers[SUSPECTS:], outputs.labels[SUSPECTS:]),
        lambda _count, _kind: list(map(Reference, models, outputs.trained_on)),
    )
    target = Target(LookUp(outputs.target), "scores", shape, CLASSES)
    scores = attack.infer(target, knowledge, Context(torch.device("cpu"), 0, track, Artifacts())).scores
    return np.asarray(scores.double())


def measure_ours(scores: Floats) -> Numbers:
    """Compute the numbers with this project's code. Raises BenchError if they differ from the definition."""
    members, others = np.sort(scores[: SUSPECTS // 2]), np.sort(scores[SUSPECTS // 2 :])
    found = Numbers(area(members, others, 0.95)[0], tuple(rate_at(members, others, f, 0.95).tpr for f in LIMITS))
    expected = measure_by_definition(members, others)
    if not np.allclose([found.auc, *found.rates], [expected.auc, *expected.rates], rtol=0, atol=1e-12):
        raise BenchError(f"our numbers {found} differ from the definition, {expected}")
    return found


def measure_by_definition(members: Floats, others: Floats) -> Numbers:
    """Count all pairs, and try every score as the threshold."""
    wins = sum(int((score > others).sum()) * 2 + int((score == others).sum()) for score in members)
    thresholds = [*np.unique(np.concatenate([members, others])), np.inf]
    reached = np.array([[(members >= t).mean(), (others >= t).mean()] for t in thresholds])
    rates = tuple(float(reached[reached[:, 1] <= limit, 0].max()) for limit in LIMITS)
    return Numbers(wins / (2 * len(members) * len(others)), rates)


class KnownModels:
    """Stands for LeakPro's handler of shadow models, which would train them: returns the known logits."""

    attack_cache_folder_path = ""
    target_model_hash = ""

    def __init__(self, outputs: Outputs, wrap: Callable[[nn.Module], Any]) -> None:
        self.outputs, self.wrap = outputs, wrap

    def create_shadow_models(self, num_models: int, **_: object) -> list[int]:
        """Return the numbers of the models."""
        return list(range(num_models))

    def get_shadow_models(self, numbers: list[int]) -> tuple[list[Any], list[int]]:
        """Return the models and their numbers."""
        return [self.wrap(LookUp(self.outputs.references[number])) for number in numbers], numbers

    def load_logits(self, name: str | None = None, indx: int | None = None) -> NDArray[np.float32]:
        """Return the (SUSPECTS, classes) logits of a shadow model, or of the target."""
        logits = self.outputs.target if indx is None else self.outputs.references[indx]
        return logits[:SUSPECTS].numpy()

    def get_in_indices_mask(self, numbers: list[int], suspects: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (suspects, models) bool: the records that each model was trained on."""
        return self.outputs.trained_on[numbers][:, suspects].numpy().T


def handler_of(outputs: Outputs) -> SimpleNamespace:
    """Return what LeakPro's attacks read of a user's handler: records are their numbers."""
    numbers = torch.arange(len(outputs.labels)).float()

    def get_dataloader(chosen: NDArray[np.int64], **_: object) -> DataLoader[Any]:
        records = TensorDataset(numbers[chosen], outputs.labels[chosen])
        records.targets = outputs.labels[chosen]  # type: ignore[attr-defined]
        return DataLoader(records, batch_size=1000)

    return SimpleNamespace(
        population=numbers,
        population_size=len(numbers),
        train_indices=np.arange(SUSPECTS // 2),
        test_indices=np.arange(SUSPECTS // 2, SUSPECTS),
        target_model=LookUp(outputs.target),
        get_criterion=nn.CrossEntropyLoss,
        get_labels=lambda chosen: outputs.labels[chosen].numpy(),
        get_dataloader=get_dataloader,
    )


def import_leakpro(folder: Path, name: str) -> ModuleType:
    """Import a module of LeakPro without its `__init__`, which imports attacks on text and what they need."""
    package = ModuleType("leakpro")
    package.__path__ = [str(folder / "leakpro")]
    sys.modules.setdefault("leakpro", package)
    try:
        return importlib.import_module(f"leakpro.{name}")
    except ImportError as error:
        raise BenchError(
            f"--leakpro {folder}: {error}; give a folder with LeakPro, and install what it needs"
        ) from error


def score_leakpro(
    folder: Path, name: str, outputs: Outputs, population: NDArray[np.int64] | None = None, **options: Any
) -> Found:
    """Run an attack of LeakPro, and compute the numbers with its code.

    Args:
        name: "lira" or "rmia".
        population: numbers of the records that RMIA compares with; None = its own random choice among all records.
    """
    module = import_leakpro(folder, f"attacks.mia_attacks.{name}")
    extractor = import_leakpro(folder, "signals.signal_extractor")
    logging.disable(logging.INFO)
    known = KnownModels(outputs, lambda network: extractor.PytorchModel(network, nn.CrossEntropyLoss()))
    with mock.patch.object(module, "ShadowModelHandler", lambda: known):
        cls = {"lira": "AttackLiRA", "rmia": "AttackRMIA"}[name]
        attack = getattr(module, cls)(handler_of(outputs), {"num_shadow_models": len(outputs.references), **options})
        if population is not None:
            attack.sample_indices_from_population = lambda **_: population
        np.random.seed(0)
        attack.prepare_attack()
        result = attack.run_attack()
    scores = np.concatenate([attack.in_member_signals, attack.out_member_signals]).ravel()
    rates = tuple(float(result.fixed_fpr_table[f"TPR@{100 * limit:g}%FPR"]) for limit in LIMITS)
    return Found(scores, Numbers(float(result.roc_auc), rates))


def score_privacy_meter(folder: Path, outputs: Outputs, averages_all: bool) -> Floats:
    """Run RMIA of Privacy Meter on the probabilities of the true classes.

    Args:
        averages_all: average a population record over all reference models. The published code takes the half with the
            largest probabilities.
    """
    path = folder / "modules" / "mia" / "attacks" / "rmia.py"
    spec = importlib.util.spec_from_file_location("privacy_meter_rmia", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BenchError(f"--privacy-meter {folder}: no file {path}; give a folder with Privacy Meter")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    published = module.get_out_ref_signals

    def take_all_of_population(signals: Floats, trained_on: NDArray[np.bool_], count: int, a: float) -> Floats:
        return np.asarray(published(signals, trained_on, count if trained_on.any() else signals.shape[1], a))

    if averages_all:
        module.get_out_ref_signals = take_all_of_population
    every = torch.cat([outputs.target[None], outputs.references]).softmax(-1).double()
    true_class = every[:, torch.arange(len(outputs.labels)), outputs.labels].numpy()
    suspects, population = true_class[:, :SUSPECTS], true_class[:, SUSPECTS:]
    return np.asarray(
        module.run_rmia(suspects[0], suspects[1:].T, outputs.trained_on.numpy().T, population[0], population[1:].T, A)
    )


def rows_of_lira(outputs: Outputs, leakpro: Path | None) -> Iterator[list[str]]:
    """Yield rows of LiRA online and offline, with one variance for all records and with one for each.

    `carlini` of LeakPro is one for all below 64 models, and one for each from there on. Its `fixed` is one for each.
    """
    count = len(outputs.references)
    settings = {"fixed": "carlini", "per-example": "fixed"} if count < 64 else {"per-example": "carlini"}
    for mode in ("online", "offline"):
        for variance, theirs_is in settings.items():
            name = f"LiRA {mode}, {count} models, variance {variance}"
            ours = score_ours("lira", outputs, mode=mode, variance=variance, views="none")
            yield [name, "this project", "this project", *measure_ours(ours).cells(), ""]
            if leakpro is not None:
                theirs = score_leakpro(leakpro, "lira", outputs, online=mode == "online", var_calculation=theirs_is)
                apart = theirs.scores - (ours if mode == "online" else norm.logcdf(ours))
                yield from rows_of(f"LeakPro, {theirs_is}", name, theirs, apart)


def rows_of_rmia(outputs: Outputs, leakpro: Path | None, privacy_meter: Path | None) -> Iterator[list[str]]:
    """Yield rows of RMIA online and offline on the same population, and of LeakPro with its own choice of one."""
    count = len(outputs.references)
    population = np.arange(SUSPECTS, SUSPECTS + POPULATION)
    for mode in ("online", "offline"):
        name = f"RMIA {mode}, {count} models"
        options = {"mode": mode, "gamma": GAMMA} | ({"tune": False, "a": A} if mode == "offline" else {})
        ours = score_ours("rmia", outputs, **options)
        yield [name, "this project", "this project", *measure_ours(ours).cells(), ""]
        if leakpro is not None:
            same = {"online": mode == "online", "temperature": 1.0, "gamma": GAMMA, "offline_a": A}
            theirs = score_leakpro(leakpro, "rmia", outputs, population, z_data_sample_fraction=1.0, **same)
            yield from rows_of("LeakPro", name, theirs, theirs.scores - ours)
            theirs = score_leakpro(leakpro, "rmia", outputs, **same)
            yield from rows_of("LeakPro, own population", name, theirs, theirs.scores - ours)
        if privacy_meter is not None and mode == "offline":
            for scored_by, averages_all in (("all models", True), ("as published", False)):
                scores = score_privacy_meter(privacy_meter, outputs, averages_all)
                apart = f"{np.abs(scores - ours).max():.1e}"
                by = f"Privacy Meter, {scored_by}"
                yield [name, by, "this project", *measure_ours(scores).cells(), apart]


def rows_of(tool: str, name: str, found: Found, apart: Floats) -> Iterator[list[str]]:
    """Yield the numbers of a tool's scores by our code and by its own; the largest difference of the scores to ours."""
    largest = f"{np.abs(apart).max():.1e}"
    yield [name, tool, "this project", *measure_ours(found.scores).cells(), largest]
    yield [name, tool, "LeakPro", *found.numbers.cells(), ""]


def main() -> None:
    """Train the models, score, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leakpro", type=Path, help="folder with the source of LeakPro")
    parser.add_argument("--privacy-meter", type=Path, help="folder with the source of Privacy Meter")
    parser.add_argument(
        "--references", type=int, action="append", help="number of reference models (default: 8 and 64)"
    )
    given = parser.parse_args()
    found: list[list[str]] = []
    for count in given.references or (8, 64):
        outputs = make_outputs(count)
        found += rows_of_lira(outputs, given.leakpro)
        found += rows_of_rmia(outputs, given.leakpro, given.privacy_meter)
    print(table(HEADS, found))


if __name__ == "__main__":
    run(main)
