"""The game of an end-to-end audit: canaries, their scores, and the verdict.

Canaries are mislabelled images. A fair coin for each decides whether the teacher is trained on it, and the coins are
guessed from the scores of the canaries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import data, teachers
from bench.core.privacy import AccountedRecord, ClaimRecord
from bench.core.records import Verdict
from bench.errors import BenchError
from bench.pipeline.job import Job
from bench.pipeline.material import kept_in
from bench.privacy import Unit
from bench.privacy.one_run import CONFIDENCE, ceiling, comparable, refutes
from bench.seeds import derive

Score = Literal["loss", "rmia"]
SCORES: tuple[Score, ...] = ("loss", "rmia")
RMIA_A = 0.3


@dataclass(frozen=True)
class CanaryGame:
    """The settings of the audit's game, in addition to those of a run.

    Attributes:
        canaries: m, the number of canaries; each is inserted by an independent fair coin.
        guesses: r of 1 to m, half on the highest scores, half on the lowest; None: m // 2.
        score: "loss", minus the loss at the canary's label; or "rmia", its probability relative to a reference model.
        overfit: train the teachers longer and without augmentation or decay, so that they memorise.
        confidence: confidence of the lower bound on epsilon.
    """

    canaries: int = 200
    guesses: int | None = None
    score: Score = "loss"
    overfit: bool = False
    confidence: float = CONFIDENCE

    @property
    def guess_count(self) -> int:
        """The number of guesses."""
        return self.canaries // 2 if self.guesses is None else self.guesses


@dataclass(frozen=True)
class Canaries:
    """m canaries: images uint8 (m, c, h, w), wrong labels (m,), and the coins (m,), true = in the training data."""

    images: Tensor
    labels: Tensor
    coins: Tensor

    def inserted(self, private: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the private part with the canaries whose coin is true."""
        images, labels = private
        return torch.cat([images, self.images[self.coins]]), torch.cat([labels, self.labels[self.coins]])


def check(job: Job, game: CanaryGame) -> None:
    """Raise BenchError, before anything is trained, if this game cannot be played."""
    s = job.settings
    if s.teacher_weights is not None:
        raise BenchError("--teacher-weights: an audit trains its own teacher, with canaries; leave it out")
    if s.budget.unit == Unit.GROUP:
        raise BenchError("--unit group: canaries are single records; use --unit example, or `bench audit mechanism`")
    if s.split != "iid":
        raise BenchError(f"--split {s.split}: canaries are images of the attacker's part of split iid; use --split iid")
    if not 2 <= game.canaries <= len(job.material.aux):
        raise BenchError(
            f"--canaries {game.canaries}: data set '{job.material.data.name}' has {len(job.material.aux)} images "
            f"outside the private part; give 2 to {len(job.material.aux)}"
        )
    if not 1 <= game.guess_count <= game.canaries:
        raise BenchError(f"--guesses {game.guess_count}: expected 1 to the number of canaries, {game.canaries}")
    if not 0 < game.confidence < 1:
        raise BenchError(f"--confidence {game.confidence}: expected a number between 0 and 1, such as 0.95")
    if game.score not in SCORES:
        raise BenchError(f"--score {game.score}: expected {' or '.join(SCORES)}")
    if ceiling(game.guess_count, game.canaries, s.budget.delta, game.confidence) <= 0:
        raise BenchError(
            f"{game.guess_count} guesses on {game.canaries} canaries at delta {s.budget.delta:g}: the bound is 0 even "
            "if all are right; give more --canaries or --guesses, or a smaller --delta"
        )


def draw(job: Job, game: CanaryGame, seed: int) -> Canaries:
    """Draw the canaries: the first of the attacker's images in the order of split iid's hash, and this seed's coins.

    Raises:
        BenchError: the private part has no record of a class that the attacker's part has.
    """
    s = job.settings
    images = data.load(s.dataset, s.data_root, False, s.skip_broken, kept_in(s.out), s.reading)
    if images.classes != job.material.data.classes:
        raise BenchError(f"data set '{images.name}': a class has no private image under split iid; give more images")
    aux = data.split(images, "iid").aux.tolist()
    order = sorted(aux, key=lambda index: hashlib.sha256(f"{images.name}:{index}".encode()).digest())
    chosen = torch.tensor(order[: game.canaries])
    label_rng = torch.Generator().manual_seed(derive("audit-labels", images.name))
    shifts = torch.randint(1, images.classes, (len(order),), generator=label_rng)[: game.canaries]
    coin_rng = torch.Generator().manual_seed(derive(seed, "audit-coins"))
    coins = torch.rand(game.canaries, generator=coin_rng) < 0.5
    return Canaries(images.train_images[chosen], (images.train_labels[chosen] + shifts) % images.classes, coins)


def log_probability(network: nn.Module, canaries: Canaries, device: torch.device) -> NDArray[np.float64]:
    """Return the (m,) log-probabilities of the canaries' labels under the network: minus their losses."""
    logits = teachers.predict(network, canaries.images, device).double()
    return logits.log_softmax(1).gather(1, canaries.labels[:, None]).squeeze(1).numpy()


def scores(target: NDArray[np.float64], reference: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return (m,) membership scores from the log-probabilities of the target and of a reference without canaries.

    Without a reference the score is the target's log-probability; with one it is that of RMIA.

    RMIA (Zarifzadeh, Liu, Shokri, ICML 2024), offline with one reference: R(x) = p(x | target) / p(x) with p(x) = ((1 +
    a) p(x | reference) + 1 - a) / 2, a = 0.3. Its score is the share of population images z with R(x) > gamma R(z). The
    score depends on x only through R(x) and rises with it; guesses use only ranks, so R(x) itself is returned.
    """
    if reference is None:
        return target
    return target - np.log(((1 + RMIA_A) * np.exp(reference) + 1 - RMIA_A) / 2)


def verdict(
    bound: float, delta: float, claimed: ClaimRecord | None, accounted: AccountedRecord | None
) -> tuple[Verdict, list[str]]:
    """Compare a release's numbers with the bound: the verdict, and a sentence for each number.

    The audit adds or removes one private example. A bound above a claim per query does therefore not refute that
    claim: for such a claim, only the accounted number per example is compared with the bound.

    Args:
        bound: the student's empirical lower bound on epsilon, per example.
        delta: the delta at which the bound holds.
        claimed: the claim of the release.
        accounted: the accounted epsilon of the release per example; None if its ledger has no such unit.
    """
    numbers: dict[str, ClaimRecord | AccountedRecord | None] = {"claimed": claimed, "accounted": accounted}
    reasons, refuted = [], False
    for name, number in numbers.items():
        plain = None if number is None else number.to_plain()
        obstacle = comparable(plain, delta)
        if number is None or obstacle is not None:
            reasons.append(f"{name}: not comparable, {obstacle}; the bound {bound:.3g} is per example")
        elif refutes(bound, delta, plain):
            refuted = True
            reasons.append(f"{name}: REFUTED, the bound {bound:.3g} is above {number.epsilon:.4g} per example")
        else:
            reasons.append(f"{name}: not refuted, the bound {bound:.3g} is at most {number.epsilon:.4g} per example")
    return "refuted" if refuted else "not refuted", reasons
