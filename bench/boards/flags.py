"""Flags: facts that a reader must know before using a row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bench.boards.installed import classes_of, installed_version
from bench.core.verdict import GUESSING, Success, exceeds, is_significant
from bench.metrics.levels import LEAST_AUC, is_strong_enough
from bench.privacy.budget import Relation, epsilon_from_json
from bench.privacy.claims import dispute
from bench.storage.records import Record

CHANCE_FACTOR = 1.5
LEARNT = 1 / 8
"""A student is at chance level below this multiple of the accuracy of always predicting the commonest class, or below
this share of the way from there to 1, whichever is smaller: for a class of 58 % of all images, 1.5 times are 87 %."""
UNTRUE = {
    "refuted": "refuted by an audit",
    "account-corrected": "the accounted epsilon of its version was wrong",
    "float32-noise": "its noise was drawn in float32, whose tails end: run it again",
}
"""Flags of an invalid accounted epsilon, and their wording."""
UNTRUE_ACCOUNTS = {("p3gm", 1), ("gs-wgan", 1)}
"""Versions in which removing a record changed the public draws of the others: given the seed, no account was valid."""


OLDER = "older-version"
PRETRAINED = "weights:"
"""Begin of the flag that names public pretrained weights."""


def flags(record: Record) -> list[str]:
    """Return the flags of a record: facts that a reader must know before using a row.

    - `claim!=accounted`: the claimed epsilon is not the accounted one of the same unit, at a delta no larger.
    - `other-unit`: the claim is for another unit than the row's account.
    - `disputed:REASON`: the claim's proof does not cover the algorithm, or a number contradicts the claim
      (`bench.privacy.claims.dispute`).
    - `public-data`: the method had public data, which no epsilon charges for: unlabelled images from the distribution
      of the private data, or a network with pretrained weights.
    - `weights:NETWORK@HASH`: that network, and the first 12 digits of the SHA-256 of its file.
    - `at-chance-level`: the student is at chance level (`nothing_below`).
    - `retrieval`: the attack on a data set of many classes recovers no more than public images show, or has no power.
    - `no-judge`: an attack on people whose images only the evaluator has judged, a network of this project.
    - `weak-judge`: an inversion judged only by an evaluator that is less accurate than the teacher.
    - `teacher-reference`: a membership attack compared a student with models that were not converted like the student.
    - `membership>accounted`: the scores indicate more than the accounted epsilon of one example; this is not a proof.
    - `seeded-noise`: the recorded seed determines the noise; the epsilon holds only for those without the seed.
    - `float32-noise`: the noise was drawn in float32, whose tails end, so the accounted epsilon is not exactly true.
    - `account-corrected`: the accounted epsilon of this version was wrong, and the next version fixes it.
    - `relation-corrected`: the account says `replace` but covers only the removal of a record, as one client was
      charged for the randomised responses of many.
    - `older-version`: the method or the attack has changed since, and the command would give other numbers today.
    """
    release, attack = record.spec["release"], record.spec["attack"]
    parts = [("method", release["method"], release)]
    parts += [("attack", attack["attack"], attack)] if attack else []
    is_older = any(part["version"] < installed_version(kind, name, part.get("variant")) for kind, name, part in parts)
    return ([OLDER] if is_older else []) + flags_of_record(record)


def flags_of_record(record: Record) -> list[str]:
    """Return `flags` without `older-version`, which depends on the installed versions."""
    public = record.spec["release"].get("public")
    source = pretrained_source(public)
    found = ["public-data"] if public else []
    found += [source.flag] if source else []
    found += _flags_of_claim(record)
    accuracy, commonest = record.metrics.get("accuracy"), share_of_commonest(record)
    if accuracy is not None and commonest is not None and accuracy < nothing_below(commonest):
        found.append("at-chance-level")
    found += _flags_of_attack(record)
    proved = record.privacy["accounted_units"]
    if all(math.isinf(epsilon_from_json(each["epsilon"])) for each in proved.values()):
        return found
    release = record.spec["release"]
    found += ["float32-noise"] if "noise_version" not in record.privacy else []
    if (release["method"], release["version"]) in UNTRUE_ACCOUNTS:
        found.append("account-corrected")
    if release["method"] == "fed-dpsd" and proved.get("example", {}).get("relation") == Relation.REPLACE_ONE:
        found.append("relation-corrected")
    return found + (["seeded-noise"] if release["noise"] == "seeded" else [])


@dataclass(frozen=True)
class PretrainedSource:
    """The public pretrained weights of a release: the timm network, and the SHA-256 of the file."""

    network: str
    sha256: str

    @property
    def flag(self) -> str:
        """The flag that names them."""
        return f"{PRETRAINED}{self.network}@{self.sha256[:12]}"


def pretrained_source(public: str | None) -> PretrainedSource | None:
    """Return the pretrained weights that a release's `public` names; None if it names images, or nothing.

    >>> pretrained_source("timm:resnet18#0123456789abcdef0123").flag
    'weights:resnet18@0123456789ab'
    """
    kind, _, rest = (public or "").partition(":")
    network, _, digest = rest.partition("#")
    return PretrainedSource(network, digest) if kind == "timm" and digest else None


def pretrained_flag(flags: Iterable[str]) -> str:
    """Return the flag among these that names pretrained weights; "" without one."""
    return next((flag for flag in flags if flag.startswith(PRETRAINED)), "")


def flags_of_row(versions: Iterable[bytes]) -> list[str]:
    """Return the flags of a row that depend on several of its records.

    `mixed-versions`: its runs were made with different versions of the libraries, so that its mean and its deviation
    do not depend only on seeds.

    Args:
        versions: the versions of the libraries of each run, as sorted JSON.
    """
    return ["mixed-versions"] if len(set(versions)) > 1 else []


def _flags_of_claim(record: Record) -> list[str]:
    claim, accounted = record.privacy["claimed"], record.privacy["accounted"]
    if claim is None:
        return []
    reason = dispute(record.privacy)
    found = [f"disputed:{reason}"] if reason else []
    if claim["unit"] != accounted["unit"]:
        found.append("other-unit")
    proved = record.privacy["accounted_units"].get(claim["unit"])
    if proved is None:
        return [*found, "claim!=accounted"]
    claimed, epsilon = epsilon_from_json(claim["epsilon"]), epsilon_from_json(proved["epsilon"])
    is_same = math.isclose(claimed, epsilon, rel_tol=1e-6)
    holds = is_same and (math.isinf(epsilon) or proved["delta"] <= claim["delta"])  # at infinity delta does not matter
    return found if holds else [*found, "claim!=accounted"]


def _flags_of_attack(record: Record) -> list[str]:
    metrics, found = record.metrics, []
    p = metrics.get("floor_p")  # None if there are too few classes for the test against retrieval
    if p is not None and not (is_significant(p) and standing(record) == "pass"):
        found.append("retrieval")
    if "judge_accuracy" in metrics and metrics["judge_accuracy"] is None:
        found.append("no-judge")
    # The lower end of the teacher's interval: its accuracy is measured on the test set
    evaluator, least = metrics.get("evaluator_accuracy"), metrics.get("teacher_accuracy.lo")
    is_only_judge = "attack_accuracy" in metrics and metrics.get("judge_accuracy") is None
    if is_only_judge and evaluator is not None and least is not None and evaluator < least:
        found.append("weak-judge")
    if "auc" in metrics:
        is_reference = record.spec["attack"]["options"].get("reference_kind") == "teacher"
        found += ["teacher-reference"] if is_reference else []
        proved, lower = record.privacy["accounted_units"].get("example"), metrics["membership_epsilon_lower"]
        if proved is not None and lower is not None and lower > epsilon_from_json(proved["epsilon"]):
            found.append("membership>accounted")
    return found


def nothing_below(commonest: float) -> float:
    """Return the accuracy below which a student is at chance level, if the commonest class has the share `commonest`.

    >>> [round(nothing_below(share), 3) for share in (0.1, 0.2, 0.581)]
    [0.15, 0.3, 0.633]
    """
    return min(CHANCE_FACTOR * commonest, commonest + LEARNT * (1 - commonest))


def share_of_commonest(record: Record) -> float | None:
    """Return the accuracy of always predicting the commonest class. For older records without this number, and students
    that are never right, it is 1 / classes, where the number of classes is known."""
    times, accuracy = (record.metrics.get(key) for key in ("times_chance", "accuracy"))
    if times and accuracy:
        return accuracy / times
    where = record.spec["release"]["teacher"]["data"]
    classes = classes_of(where["dataset"], where["split"])
    return 1 / classes if classes else None  # for some data sets the number is known only after reading


Standing = Literal["pass", "inconclusive", ""]


def standing(record: Record) -> Standing:
    """Return whether the attack of a record shows power by today's test; "" where none was scored.

    Tests have become stricter, but a record keeps its original verdict. Numbers that it does not have are left out. The
    tests are those of `bench.metrics.membership.membership_power`, `bench.metrics.power.power` and `inversion_stage`.
    """
    metrics = record.metrics
    if not {"attack_accuracy", "auc"} & set(metrics):
        return "inconclusive" if record.status == "inconclusive" else ""
    if record.status != "ok":
        return "inconclusive"
    if "auc" in metrics:
        unprotected = "memorising_" if "memorising_auc" in metrics else "teacher_"
        auc, low, random = (metrics.get(key) for key in (f"{unprotected}auc", f"{unprotected}auc.lo", "random_auc.lo"))
        gain = metrics.get("teacher_auc_gain.lo")
        has_power = not (
            exceeds(Success(gain)) is False
            or (auc is not None and auc < LEAST_AUC)
            or exceeds(Success(low), GUESSING) is False
            or exceeds(Success(random), GUESSING)
        )
    else:
        # Fewer than four classes have no p-value; the test against retrieval replaces the least recognised share
        p, of_classes = metrics.get("teacher_floor_p"), metrics.get("power_p_teacher", 0.0)
        has_power = of_classes is not None and (is_strong_enough(metrics) if p is None else is_significant(p))
    return "pass" if has_power else "inconclusive"
