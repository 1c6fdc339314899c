"""Explanations for readers: the meaning of flags, units and statuses."""

from __future__ import annotations

from bench.core.epsilon import PROTECTED

FLAGS = {
    "claim!=accounted": "The paper's epsilon is not what can be proved for the same unit. Read the accounted number.",
    "other-unit": "The claim is for another unit than the accounted epsilon of this row; the two cannot be compared.",
    "refuted": "An audit measured more leakage than a promise for one private record allows. That promise is false.",
    "teacher-reference": "The membership attack compared the student with models that were not converted as it was; "
    "an attacker who converts his own could do better.",
    "knows-nothing": "The student is hardly more accurate than naming the commonest class for everything: less than "
    "1.5 times, or, of few classes, an eighth of the way to perfect. That an attack finds nothing in it is no "
    "protection.",
    "retrieval": "The attack shows people no better than public images that the same target prefers, or its power "
    "is not shown: nothing private was seen to leave.",
    "no-judge": "Classes are people, and the independent judge of faces was not installed: success, and the gain over "
    "public images, are by this project's own evaluator, which the same training images taught.",
    "weak-judge": "The evaluator that says whether a reconstruction shows its class knows the classes less well than "
    "the teacher, so that success may be understated: take another network, by --evaluator, or train it for longer, by "
    "--evaluator.epochs.",
    "membership>accounted": "The attack's scores point at more leakage than the accounted epsilon of one record "
    "allows. That is an indication, not a proof.",
    "float32-noise": "The noise was drawn in float32, whose tails end at 5.8 deviations: the accounted epsilon is not "
    "quite true. Run it again.",
    "seeded-noise": "The noise follows from the recorded seed, so that the run can be repeated: the accounted epsilon "
    "holds for an adversary who does not have the seed. A release that is to protect someone needs --noise os.",
    "older-version": "The method or the attack has changed since this run: the same command would give other numbers "
    "today.",
    "account-corrected": "The accounted epsilon of this version was wrong: leaving out a record changed the public "
    "draws of the others. The next version is correct; run it again.",
    "relation-corrected": "The run's account says that it holds for replacing a record. It charges the responses of "
    "one client only, but replacing a record can change those of two clients: it holds only for leaving out a record.",
    "mixed-versions": "The row's runs were made with different versions of the libraries, so that its mean and its "
    "deviation are not over seeds alone.",
    "public-data": "The method had unlabelled public images of the private data's own distribution. No epsilon charges "
    "for them, and a row without them had a harder task.",
    "reported-differs": "The papers print different accuracies for this setting; the one shown is the first source's.",
}
DISPUTES = {
    "answers-are-the-records": "what its randomised response may answer is the private records themselves, which no "
    "finite epsilon allows",
    "answers-give-the-label-away": "what is answered tells the teacher's label, which no finite epsilon allows",
    "baseline-not-charged": "the generator learns from the unprotected teacher, and that is not charged",
    "below-an-audits-bound": "an audit measured more than the claim allows",
    "below-an-exact-account": "what the ledger says was done costs exactly the accounted epsilon, which is larger than "
    "the claim",
    "lemma-without-its-conditions": "its lemma wants a sigma of at least 1 and a rate below 1 / (16 sigma), and a step "
    "here does not meet both",
    "noise-taken-without-its-bound": "it takes noise of deviation s where the algorithm adds s times the bound B, so "
    "that the epsilon shrinks with B, which makes no difference to what is released",
    "per-image-composition": "a step releases the gradients of a whole batch, and the proof is of each image by itself",
    "private-images-not-charged": "the private images that are asked about are not charged",
    "two-samples-for-one": "the two noisy sums of a step see one sample of the records, and the account gives each a "
    "sample of its own",
}
"""The gap or error in the proof of a claim, by `Claim.disputed`."""
KINDS = {
    "disputed": "The proof of the paper's claim does not cover what the algorithm does: {}.",
    "reported": "There is a doubt about the printed number: issue {}, see docs/papers.md.",
}
"""Flags that end in a reason; `DISPUTES` explains some of the reasons."""
UNITS = PROTECTED
"""The protected data, by unit."""
VARIANTS = {
    "printed": "the algorithm as its paper prints it",
    "working": "a variant that learns: every departure from what is printed is on the method's page",
    "own": "an algorithm of this project, which no paper prints",
}
STATUSES = {
    "ok": "finished",
    "inconclusive": "the attack did not prove its power, so nothing follows from its failure",
    "skipped": "the attack does not apply",
    "failed": "the run failed",
}
TIERS = {
    "paper": "the papers' settings",
    "standard": "about an hour on two CPU cores, where a method has sizes for it; else those of quick",
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
