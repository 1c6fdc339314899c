"""Questions of EDPB Opinion 28/2024 and NIST SP 800-226, and the part of an assessment that answers each.

The questions are paraphrased. The answers are technical evidence, not legal advice.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.assess.schema import Assessment

DISCLAIMER = "This is technical evidence, not legal advice. It does not state that a model is anonymous."


class Answered(NamedTuple):
    """A question of a document, and the answer."""

    document: str
    question: str
    answer: str


def answers(found: Assessment) -> list[Answered]:
    """Answer the questions as far as this assessment can, else "not tested"."""
    names = ", ".join(attack.name for attack in found.attacks)
    untested = "; ".join(f"{each.name} ({each.reason})" for each in found.not_tested) or "nothing of the list"
    powers = [attack.has_power for attack in found.attacks]
    power = (
        "unknown: no control" if all(each is None for each in powers) else f"{sum(map(bool, powers))} of {len(powers)}"
    )
    claim = "no claim was given" if found.claim is None else found.claim.sentence
    unit = {"record": "one record", "group": "one group of records (patient, user or device)"}[found.unit]
    edpb, nist = "EDPB 28/2024", "NIST SP 800-226"
    return [
        Answered(edpb, "Can membership in the training data be inferred from queries?", f"tested by {names}"),
        Answered(edpb, "Can classes of the training data be reconstructed (model inversion)?", _inversion(found)),
        Answered(edpb, "Are the tests themselves effective?", f"attacks with power on an unprotected copy: {power}"),
        Answered(edpb, "What was not tested, such as extraction, inversion or regurgitation?", untested),
        Answered(
            edpb,
            "Number and quality of the tests",
            f"{found.members} members, {found.others} non-members, "
            f"{len(found.attacks)} attacks, limits corrected by {found.levels.correction}",
        ),
        Answered(
            edpb, "Selection and minimisation of the data; choices of the training", "not known to this assessment"
        ),
        Answered(nist, "What is the unit of privacy?", f"assessed for {unit}"),
        Answered(nist, "What are epsilon and delta, and does the claim hold against tests?", claim),
        Answered(
            nist,
            "Who sees what (trust model)?",
            "the attacker queries the model and sees " + ", ".join(sorted({attack.reads for attack in found.attacks})),
        ),
        Answered(
            nist, "Is the implementation sound; are tuning and statistics accounted?", "not known to this assessment"
        ),
    ]


def _inversion(found: Assessment) -> str:
    inversion = found.inversion
    if inversion is None:
        return "not tested"
    if not inversion.has_power:
        return "tested; the attack cannot tell here"
    return f"tested: gain over {inversion.baseline} {inversion.gain.value:.3f}, upper limit {inversion.gain.high:.3f}"
