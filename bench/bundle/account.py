"""`privacy.json`: the ledger, its accounted epsilon for every unit, the paper's claim, and warnings for the reader."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING, Any

from bench.boards.flags import UNTRUE_ACCOUNTS
from bench.boards.selection import MOST_DELTA
from bench.bundle.schema import FORMAT, LONGEST, Audited, Claimed, Method, Privacy, Promise, Proved, Use
from bench.errors import BenchError
from bench.escape import visible
from bench.privacy import Ledger, Relation, Unit, accountant
from bench.privacy.accountant import Accounted
from bench.privacy.budget import INFINITE
from bench.privacy.claims import dispute
from bench.privacy.one_run import refutes

if TYPE_CHECKING:
    from bench.bundle.finding import Found

WEAK = 20.0
"""An epsilon above this changes probabilities by a factor of more than 10^8: no meaningful protection."""


def account(found: Found) -> Privacy:
    """Build `privacy.json` of a run from its ledger and from named fields of its record.

    Raises:
        BenchError: the installed dp-accounting or accountant cannot read the ledger.
        ValidationError: from pydantic; a field has a value that a bundle cannot hold.
    """
    privacy, release = found.record.privacy, found.record.spec["release"]
    delta = release["budget"]["delta"]
    uses = [_use(item) for item in Ledger.from_json(privacy["events"]).to_json()]
    if not uses:
        raise BenchError(f"RUN {found.record.hash}: its ledger is empty, so that nothing may be said; run it again")
    ledger = ledger_of(uses)
    made = Privacy(
        format=FORMAT,
        method=Method(name=release["method"], version=release["version"]),
        tier=found.record.spec["tier"],
        noise=privacy["noise"],
        noise_version=privacy.get("noise_version", 1),
        unit=Unit(privacy["accounted"]["unit"]),
        delta=delta,
        accountant=accountant.VERSION,
        accounted={unit: proved(each) for unit, each in recompute(ledger, delta).items()},
        claimed=_claimed(privacy),
        audited=_audited(privacy.get("audited")),
        events=uses,
        warnings=[],
    )
    return made.model_copy(update={"warnings": warnings(made)})


def recompute(ledger: Ledger, delta: float) -> dict[Unit, Accounted]:
    """Compute the accounted epsilon of a ledger with the installed accountant, for each of its units."""
    units = sorted({entry.unit for entry in ledger.entries()})
    return {unit: accountant.account(ledger, unit, delta) for unit in units}


def proved(found: Accounted) -> Proved:
    """Convert an accounted epsilon to the bundle's type."""
    note = {"note": visible(found.note)[:LONGEST]} if found.note else {}
    return Proved(
        epsilon=INFINITE if math.isinf(found.epsilon) else found.epsilon,
        delta=found.delta,
        unit=found.unit,
        relation=found.relation,
        accountant=found.accountant,
        version=found.version,
        **note,
    )


def ledger_of(uses: list[Use]) -> Ledger:
    """Rebuild the ledger of a bundle. Raises BenchError for events that this version does not have."""
    return Ledger.from_json([use.to_json() for use in uses])


def _use(item: dict[str, Any]) -> Use:
    narrowed = {"relation": Relation(item["relation"])} if "relation" in item else {}
    why = visible(item["why"])[: LONGEST // 2]
    return Use(event=item["event"], count=item["count"], unit=Unit(item["unit"]), why=why, **narrowed)


def _claimed(privacy: dict[str, Any]) -> Claimed | None:
    claim = privacy["claimed"]
    if claim is None:
        return None
    return Claimed(
        epsilon=claim["epsilon"],
        delta=claim["delta"],
        unit=Unit(claim["unit"]),
        source=visible(claim["source"])[: LONGEST // 2],
        disputed=dispute(privacy),
    )


def _audited(audit: dict[str, Any] | None) -> Audited | None:
    if audit is None:
        return None
    return Audited(**{name: audit[name] for name in Audited.model_fields} | {"unit": Unit(audit["unit"])})


def warnings(privacy: Privacy) -> list[str]:
    """Return warnings for readers of a bundle, most important first; computed from the other fields."""
    said = alarms(privacy) + _of_claim(privacy) + _of_proof(privacy)
    if privacy.tier == "smoke":
        said.append("The network was made at tier smoke, whose settings are for tests: it is of no use.")
    return [
        *said,
        "The epsilons are of this release alone: every other one that was made of the same records adds to them.",
        "Hyper-parameters were chosen outside the account: by people who had seen results. No epsilon covers that.",
    ]


def alarms(privacy: Privacy) -> list[str]:
    """Return the warnings that void the guarantee for private records; they come first, on the card too."""
    return _of_version(privacy) + _of_noise(privacy) + _of_audit(privacy) + _of_records(privacy)


def _of_version(privacy: Privacy) -> list[str]:
    """Return warnings about accounts that later versions of a method have fixed."""
    method, record = privacy.method, privacy.accounted.get(Unit.EXAMPLE)
    if (method.name, method.version) in UNTRUE_ACCOUNTS:
        return ["The account of this version of the method was not true; the next one's is. Run it again."]
    if method.name == "fed-dpsd" and record is not None and record.relation == Relation.REPLACE_ONE:
        return [
            "The epsilon of a private record holds for a record that is left out, not for one that is replaced, as it "
            "says: one client alone was charged for the responses of two. Run it again."
        ]
    return []


def _of_noise(privacy: Privacy) -> list[str]:
    old = "The noise was drawn in float32, whose tails end at 5.8 deviations: the epsilon is not quite true."
    found = [old] if privacy.noise_version < 2 else []
    if privacy.noise != "seeded":
        return found
    return [
        *found,
        "The noise was drawn from a seed (`--noise seeded`): every epsilon below holds only for an adversary who does "
        "not know the seed. The seed is not in this bundle, but seeds are small numbers, easily tried one by one. A "
        "release that is to protect someone needs `--noise os`.",
    ]


def _of_audit(privacy: Privacy) -> list[str]:
    audit = privacy.audited
    if audit is None:
        return []
    record = privacy.accounted.get(audit.unit)
    if not refutes(audit.epsilon_lower, audit.delta, None if record is None else record.to_json()):
        return []
    return [f"An audit refutes the accounted epsilon: it shows at least {audit.epsilon_lower:.4g}."]


def _of_records(privacy: Privacy) -> list[str]:
    finite = _finite(privacy)
    if not finite:
        return ["Nothing is proved: no finite epsilon holds for any unit. Treat the network as if it were the data."]
    record = finite.get(Unit.EXAMPLE)
    if record is None:
        units = " and per ".join(finite)
        return [
            f"For a private record nothing is proved: the finite epsilon is per {units} only, and protects no record."
        ]
    if record.value > WEAK:
        return [f"An epsilon of {shown(record)} for a private record is finite and promises next to nothing."]
    return []


def _of_proof(privacy: Privacy) -> list[str]:
    said, finite = [], _finite(privacy)
    if privacy.delta > MOST_DELTA:
        said.append(f"Delta is {privacy.delta:g}: with that chance nothing is promised. 1e-5 is usual.")
    if Unit.QUERY in finite:
        said.append("An epsilon per query covers the answer to one synthetic image; it does not protect records.")
    record = finite.get(Unit.EXAMPLE)
    if record is not None and record.relation == Relation.ADD_OR_REMOVE_ONE:
        said.append("The number of private records is taken as public: neighbours differ in one record left out or in.")
    if privacy.audited is not None:
        said.append(
            "The audit's numbers were measured on another network of the same settings, with canaries in its data; "
            "what that network took from the private data is in no account here. A small lower bound proves nothing."
        )
    return said


def _finite(privacy: Privacy) -> dict[Unit, Proved]:
    return {unit: found for unit, found in sorted(privacy.accounted.items()) if math.isfinite(found.value)}


def _of_claim(privacy: Privacy) -> list[str]:
    claim = privacy.claimed
    if claim is None:
        return []
    said = []
    if claim.disputed:
        said.append(f"The claimed epsilon is disputed: {claim.disputed.replace('-', ' ')}.")
    record = privacy.accounted.get(claim.unit)
    if record is None or not _at_most(record, claim):
        what = "not accounted at all" if record is None else f"accounted at {shown(record)}"
        said.append(f"The claimed epsilon, {shown(claim)} per {claim.unit}, is not what is proved: it is {what}.")
    return said


def _at_most(found: Proved, claim: Claimed) -> bool:
    """Whether the accounted epsilon meets the claim: an epsilon no larger, to a millionth, at a delta no larger."""
    as_small = found.value <= claim.value * (1 + 1e-6)
    return as_small and (math.isinf(claim.value) or found.delta <= claim.delta)


def shown(found: Promise) -> str:
    """Format an epsilon with four digits, rounded up, since a guarantee must not shrink when displayed.

    >>> epsilons = (9.8521, 8.000000000001, 0.98104, 40959.2, "inf")
    >>> [shown(Promise(epsilon=epsilon, delta=0.0, unit=Unit.EXAMPLE)) for epsilon in epsilons]
    ['9.853', '8', '0.9811', '40,960', 'infinite']
    """
    epsilon = found.value
    if math.isinf(epsilon):
        return "infinite"
    near = Context(prec=9).create_decimal_from_float(epsilon)
    if near >= 10_000:
        return f"{near.to_integral_value(ROUND_CEILING):,}"
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).plus(near)):.4g}"
