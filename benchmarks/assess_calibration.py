"""Error rates of the verdict of `bench assess`: simulated score sets and real small trainings with known truth.

    python benchmarks/assess_calibration.py simulate --repeats 20
    python benchmarks/assess_calibration.py train --repeats 5

Simulated members have scores N(shift, 1), non-members N(0, 1). The shift of a Gaussian mechanism at (epsilon, 1e-5) is
its sensitivity over its deviation, the largest possible shift of its members' scores. A case leaks if its true AUC is
above 0.60 or its true positive rate at 1 % above 5 %, the limits of the policy `research`. Scores have no model, so
that the policy of the simulation does not require power.

Trainings are on 8 x 8 digits. A share of the labels is wrong in both sets, so that networks have something to
memorise. The tables are in Markdown; docs/assess.md has them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from bench.assess.assembly import Options, assemble
from bench.assess.from_scores import material_of_sides
from bench.assess.policy import Policy, read_policy
from bench.assess.schema import Assessment
from bench.assess.scores import Layout, ScoredRecords, score_outputs
from bench.errors import BenchError
from bench.progress import reporter

SIZES = (50, 200, 1000, 5000)
LARGE = 5000
"""Size of sets from which a third of the repetitions is made: they take seconds each."""
SHORT = {"release": "R", "do not release": "N", "cannot tell": "C"}
RESEARCH = read_policy("research")
Floats = np.ndarray


@dataclass(frozen=True)
class Case:
    """A simulated case: members' scores, and the change of the non-members."""

    name: str
    shift: float
    exposed: float = 1.0
    feature_shift: float = 0.0
    copied: float = 0.0

    @property
    def leaks(self) -> bool:
        """Whether its true numbers exceed the limits of `research`."""
        auc = self.exposed * float(ndtr(self.shift / math.sqrt(2))) + (1 - self.exposed) / 2
        tpr = self.exposed * float(norm.sf(ndtri(0.99) - self.shift)) + (1 - self.exposed) * 0.01
        return auc > RESEARCH.auc_max or tpr > RESEARCH.tpr_at_fpr_1pct_max


def mu_of(epsilon: float, delta: float = 1e-5) -> float:
    """Return sensitivity over deviation of the Gaussian mechanism with this privacy."""
    low, high = 0.0, 10.0
    for _ in range(60):
        mu = (low + high) / 2
        at = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        low, high = (mu, high) if at <= delta else (low, mu)
    return low


CASES = (
    Case("no leak", 0.0),
    Case("AUC 0.55, tolerated", 0.178),
    Case("AUC 0.605, just above", 0.377),
    Case("AUC 0.63", 0.469),
    Case("AUC 0.76", 1.0),
    Case("Gaussian mechanism, epsilon 1", mu_of(1)),
    Case("Gaussian mechanism, epsilon 3", mu_of(3)),
    Case("Gaussian mechanism, epsilon 8", mu_of(8)),
    Case("5 % of members exposed", 3.0, exposed=0.08),
    Case("no leak, 10 % copies", 0.0, copied=0.1),
    Case("AUC 0.76, 10 % copies", 1.0, copied=0.1),
    Case("no leak, shifted non-members", 0.0, feature_shift=1.0),
    Case("AUC 0.76, shifted non-members", 1.0, feature_shift=1.0),
)


def simulated(case: Case, n: int, seed: int) -> Assessment:
    """Assess one draw of a case with n members and n non-members."""
    rng = np.random.default_rng(seed)
    shifted = rng.normal(size=n) + case.shift * (rng.random(n) < case.exposed)
    inside = _side("members", shifted, rng, 0.0)
    outside = _side("others", rng.normal(size=n), rng, case.feature_shift)
    count = int(case.copied * n)
    if count:
        outside = outside.take(np.arange(n) >= count).joined([inside.take(np.arange(n) < count)])
    policy = Policy(**{**RESEARCH.model_dump(), "require": ("blind-baseline",)})
    return assemble(material_of_sides(inside, outside, seed), Options(policy, seed=seed))


def _side(name: str, scores: Floats, rng: np.random.Generator, feature_shift: float) -> ScoredRecords:
    """Return logits of two classes whose log odds of the true class are the scores plus a constant."""
    n = len(scores)
    labels = rng.integers(0, 2, n)
    logits = np.zeros((n, 2))
    logits[np.arange(n), labels] = scores + 2
    features = rng.normal(size=(n, 3)) - feature_shift * np.array([1.0, 0.5, 0.0])
    layout = Layout("logit", 2, True, False, ("age", "size", "site"))
    return score_outputs(name, "", layout, logits, labels, None, features)


class Quiet:
    """Discards progress and notices."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Ignore progress, as `bench.progress.Reporter`."""

    def notice(self, line: str) -> None:
        """Ignore a notice, as `bench.progress.Reporter`."""


def simulate(repeats: int, sizes: tuple[int, ...] = SIZES) -> list[str]:
    """Return the table of verdicts in percent, and the three error rates."""
    lines = ["| case | leaks | " + " | ".join(f"n = {n}" for n in sizes) + " |", "|---|---|" + "---|" * len(sizes)]
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in ("within", "leaks", "shifted")}
    for number, case in enumerate(CASES):
        cells = []
        for n in sizes:
            found = Counter(
                SHORT[simulated(case, n, 1000 * number + 100_000 * n + seed).verdict.decision]
                for seed in range(repeats if n < LARGE else max(1, repeats // 3))
            )
            kind = "shifted" if case.feature_shift else "leaks" if case.leaks else "within"
            totals[kind] += found
            cells.append(_percent(found))
        lines.append(f"| {case.name} | {'yes' if case.leaks else 'no'} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return [*lines, "", *_rates(totals)]


def _percent(found: Counter[str]) -> str:
    total = sum(found.values())
    return ", ".join(f"{name} {100 * found[name] / total:.0f}" for name in "RNC" if found[name])


def _rates(totals: dict[str, Counter[str]]) -> list[str]:
    within, leaks, shifted = (totals[kind] for kind in ("within", "leaks", "shifted"))
    return [
        f"- false `do not release`: {within['N']} of {sum(within.values())} cases within the policy",
        f"- false `release`: {leaks['R']} of {sum(leaks.values())} leaking cases",
        f"- shifted sets called `cannot tell`: {shifted['C']} of {sum(shifted.values())}",
    ]


@dataclass(frozen=True)
class Training:
    """A real training: members, passes (0 = DP-SGD at `epsilon`), share of wrong labels, change of the non-members."""

    name: str
    kind: str
    members: int
    epochs: int = 40
    wrong: float = 0.2
    epsilon: float = 0.0
    classes: int = 10
    change: str = ""


TRAININGS = (
    Training("2 passes, no overfit", "within", 500, epochs=2, wrong=0.0),
    Training("40 passes, a fifth mislabelled", "leaks", 500),
    Training("40 passes, 100 members", "leaks", 100),
    Training("40 passes, 2 classes", "leaks", 300, classes=2),
    Training("40 passes, 100 classes", "leaks", 500, classes=100),
    Training("DP-SGD, epsilon 1", "within", 500, epsilon=1),
    Training("DP-SGD, epsilon 3", "within", 500, epsilon=3),
    Training("DP-SGD, epsilon 8", "within", 500, epsilon=8),
    Training("shifted non-members", "shifted", 500, change="darker"),
    Training("a tenth of the non-members are members", "leaks", 500, change="copied"),
)


def train(repeats: int, epochs_of_control: str = "dense-cnn") -> list[str]:
    """Return the table of verdicts on real trainings."""
    lines = ["| training | kind | verdicts in % | accuracy on members, others | seconds |", "|---|---|---|---|---|"]
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in ("within", "leaks", "shifted")}
    for case in TRAININGS:
        start, found, shares = time.perf_counter(), Counter[str](), []
        for seed in range(repeats):
            try:
                made = _assessed(case, seed, epochs_of_control)
            except BenchError as error:
                found["refused" if "chance level" in str(error) else "error"] += 1
                continue
            found[SHORT[made.verdict.decision]] += 1
            if made.accuracy is not None:
                shares.append((made.accuracy.members.value, made.accuracy.others.value))
        totals[case.kind] += found
        seconds = (time.perf_counter() - start) / repeats
        total = sum(found.values())
        verdicts = ", ".join(f"{name} {100 * count / total:.0f}" for name, count in sorted(found.items()))
        mean = np.mean(shares, 0) if shares else np.array([np.nan, np.nan])
        lines.append(f"| {case.name} | {case.kind} | {verdicts} | {mean[0]:.2f}, {mean[1]:.2f} | {seconds:.0f} |")
        print(lines[-1], flush=True)
    return [*lines, "", *_rates(totals)]


def _assessed(case: Training, seed: int, control: str) -> Assessment:
    import torch
    from sklearn.datasets import load_digits

    import bench

    digits = load_digits()
    rng = np.random.default_rng(seed)
    images = np.clip(digits.images * 16, 0, 255).astype(np.uint8)
    labels = digits.target.copy()
    if case.classes == 2:
        labels = labels % 2
    elif case.classes == 100:
        labels = labels + 10 * rng.integers(0, 10, len(labels))
    wrong = rng.random(len(labels)) < case.wrong
    labels[wrong] = rng.integers(0, case.classes, int(wrong.sum()))
    order = rng.permutation(len(labels))
    inside, outside = order[: case.members], order[case.members :]
    others, other_labels = images[outside], labels[outside]
    if case.change == "darker":
        others = (others * 0.8).astype(np.uint8)
    if case.change == "copied":
        count = len(outside) // 10
        others[:count], other_labels[:count] = images[inside[:count]], labels[inside[:count]]
    model = _trained(case, torch.from_numpy(images[inside])[:, None], torch.from_numpy(labels[inside]), seed)
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"{name}.npz") for name in ("members", "others")]
        np.savez(paths[0], images=images[inside], labels=labels[inside])
        np.savez(paths[1], images=others, labels=other_labels)
        attacks = ("loss", "modified-entropy", "gap")
        return bench.assess(model, *paths, classes=case.classes, attacks=attacks, seed=seed, control=control)


def _trained(case: Training, images, labels, seed: int) -> Callable:  # type: ignore[no-untyped-def, type-arg]
    import torch

    from bench import nets
    from bench.teachers.recipes.standard import Recipe
    from bench.teachers.training import fit

    torch.manual_seed(seed)
    if not case.epsilon:
        model = nets.build("dense-cnn", (1, 8, 8), case.classes)
        recipe = Recipe(epochs=case.epochs, batch=32, shift=0, weight_decay=0.0)
        fit(model, images, labels, recipe, torch.device("cpu"), seed)
        return model
    return _private(case, images, labels)


def _private(case: Training, images, labels) -> Callable:  # type: ignore[no-untyped-def, type-arg]
    """Train by DP-SGD with Opacus: a network of two layers, 20 passes."""
    import warnings

    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, case.classes))
    loader = DataLoader(TensorDataset(images.float() / 255, labels), batch_size=64)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.5)
    private, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=body, optimizer=optimizer, data_loader=loader, target_epsilon=case.epsilon, target_delta=1e-5, epochs=20,
        max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(20):
        for x, y in loader:
            optimizer.zero_grad()
            if len(x):
                nn.functional.cross_entropy(private(x), y).backward()
                optimizer.step()
    return body.eval()


def main() -> None:
    """Print the chosen table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("simulate", "train"))
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    reporter.set(Quiet())
    start = time.perf_counter()
    lines = simulate(given.repeats) if given.part == "simulate" else train(given.repeats)
    print("\n".join(lines))
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
