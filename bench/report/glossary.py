"""Explanations for readers: the meaning of flags, units and statuses."""

from __future__ import annotations

from bench.core.epsilon import PROTECTED

FLAGS = {
    "claim!=accounted": "The claimed epsilon differs from the accounted one of the same unit. Read the accounted one.",
    "other-unit": "The claim is for another unit than the accounted epsilon of this row; the two cannot be compared.",
    "refuted": "An audit measured more leakage than an epsilon for one private record allows. That epsilon is false.",
    "teacher-reference": "The membership attack compared the student with models that were not converted as it was; "
    "an attacker who converts his own could do better.",
    "at-chance-level": "The student is at chance level: less than 1.5 times as accurate as always predicting the "
    "commonest class or, with few classes, at most an eighth of the way from there to 1. An attack that fails on it "
    "shows no protection.",
    "retrieval": "The attack shows people no better than public images that the same target prefers, or its power "
    "is not shown: the attack shows no leak.",
    "no-judge": "Classes are people, and the independent judge of faces was not installed. Success and the gain over "
    "public images are judged by this project's own evaluator, which was trained on the same images.",
    "weak-judge": "The evaluator of the reconstructions is less accurate than the teacher, so that success may be "
    "understated: take another network with --evaluator, or train it for longer with --evaluator.epochs.",
    "membership>accounted": "The attack's scores indicate more leakage than the accounted epsilon of one record "
    "allows. This is not a proof.",
    "float32-noise": "The noise was drawn in float32, whose tails end at 5.8 deviations: the accounted epsilon is not "
    "exactly valid. Run it again.",
    "seeded-noise": "The noise follows from the recorded seed, so that the run can be repeated: the accounted epsilon "
    "holds for an adversary who does not have the seed. A release that must protect someone needs --noise os.",
    "older-version": "The method or the attack has changed since this run: the same command would give other numbers "
    "today.",
    "account-corrected": "The accounted epsilon of this version was wrong: removing a record changed the public draws "
    "of the others. The next version is correct; run it again.",
    "relation-corrected": "The run's account names replacing a record, but it holds only for removing one: it charges "
    "the responses of one client, and a replaced record can change those of two.",
    "mixed-versions": "The row's runs were made with different versions of the libraries, so that its mean and its "
    "deviation do not depend only on seeds.",
    "public-data": "The method had public data: unlabelled images of the private data's own distribution, or a network "
    "with pretrained weights. No epsilon charges for them, and a method without them has a harder task.",
    "reported-differs": "The papers print different accuracies for this setting; the one shown is the first source's.",
}
DISPUTES = {
    "answers-are-the-records": "its randomised response may return the private records themselves, which no finite "
    "epsilon allows",
    "answers-give-the-label-away": "its response reveals the teacher's label, which no finite epsilon allows",
    "baseline-not-charged": "the generator learns from the unprotected teacher, and that is not charged",
    "below-an-audits-bound": "an audit measured more than the claim allows",
    "below-an-exact-account": "the mechanisms in the ledger cost exactly the accounted epsilon, which is larger than "
    "the claim",
    "lemma-without-its-conditions": "its lemma needs a sigma of at least 1 and a rate below 1 / (16 sigma), and a step "
    "here does not meet both",
    "noise-taken-without-its-bound": "it assumes noise of deviation s where the algorithm adds s times the bound B, so "
    "that the epsilon shrinks with B although the release does not depend on B",
    "per-image-composition": "a step releases the gradients of a whole batch, and the proof covers a single image",
    "private-images-not-charged": "the private images in the queries are not charged",
    "two-samples-for-one": "the two noisy sums of a step share one sample of the records, and the account assumes two",
}
"""The gap or error in the proof of a claim, by `Claim.disputed`."""
KINDS = {
    "disputed": "The proof of the paper's claim does not cover what the algorithm does: {}.",
    "weights": "The released network began from public pretrained weights: {} (start of the SHA-256).",
    "reported": "There is a doubt about the printed number: issue {}, see docs/papers.md.",
}
"""Flags that end in a reason; `DISPUTES` explains some of the reasons."""
UNITS = PROTECTED
"""The protected data, by unit."""
VARIANTS = {
    "printed": "the algorithm as its paper prints it",
    "working": "a variant that learns: every change from the paper is on the method's page",
    "own": "an algorithm of this project, in no paper",
}
STATUSES = {
    "ok": "finished",
    "inconclusive": "the attack did not prove its power, so that its failure shows nothing",
    "skipped": "the attack does not apply",
    "failed": "the run failed",
}
TIERS = {
    "paper": "the papers' settings",
    "standard": "about an hour on two CPU cores, for methods with such sizes; else as quick",
    "quick": "minutes on two CPU cores",
    "smoke": "a few steps, for tests: the numbers mean nothing",
}


def flag(name: str) -> str:
    """Return the meaning of a board's flag, as a sentence. Raises KeyError for a flag without one."""
    kind, _, reason = name.partition(":")
    if not reason:
        return FLAGS[name]
    return KINDS[kind].format(dispute(reason) if kind == "disputed" else reason)


def dispute(reason: str) -> str:
    """Return the fault of a claim's proof in words; without an explanation, the words of the slug.

    >>> dispute("for-a-reason"), dispute("")
    ('for a reason', '')
    """
    return DISPUTES.get(reason, reason.replace("-", " "))
