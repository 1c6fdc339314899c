"""Build `privacy.json`: the ledger, its accounted epsilon for every unit, the paper's claim, and warnings for users.

`bench verify` compares the warnings with those that follow from the other fields, so their wording must not change
within one version of the bundle format.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.boards.flags import UNTRUE_ACCOUNTS
from bench.boards.selection import MOST_DELTA
from bench.bundle.schema import (
    FORMAT,
    LONGEST,
    AccountedEpsilon,
    AuditedEpsilon,
    ClaimedEpsilon,
    LedgerEntry,
    Method,
    Privacy,
)
from bench.core.epsilon import epsilon_to_json
from bench.errors import BenchError
from bench.escape import visible
from bench.privacy import Ledger, Relation, Unit, accountant
from bench.privacy.accountant import Accounted
from bench.privacy.claims import dispute
from bench.privacy.ledger import event_to_json
from bench.privacy.one_run import refutes

if TYPE_CHECKING:  # the command line reads this module without torch
    from bench.storage.records import Record

WEAK = 20.0
"""An epsilon above this changes probabilities by a factor of more than 10^8: no meaningful protection."""


def account(record: Record) -> Privacy:
    """Build `privacy.json` of a run from its ledger and from named fields of its record.

    Raises:
        BenchError: the installed dp-accounting or accountant cannot read the ledger.
        ValidationError: from pydantic; a field has a value that a bundle cannot hold.
    """
    privacy, release = record.privacy, record.spec["release"]
    delta = release["budget"]["delta"]
    entries = published_ledger(Ledger.from_json(privacy["events"]))
    if not entries:
        raise BenchError(f"RUN {record.hash}: its ledger is empty, so that it has no epsilon; run it again")
    claimed = audited = None
    if (claim := privacy["claimed"]) is not None:
        claimed = ClaimedEpsilon(
            epsilon=claim["epsilon"],
            delta=claim["delta"],
            unit=Unit(claim["unit"]),
            source=visible(claim["source"])[: LONGEST // 2],
            disputed=dispute(privacy),
        )
    if (audit := privacy.get("audited")) is not None:
        fields = {name: audit[name] for name in AuditedEpsilon.model_fields}
        audited = AuditedEpsilon(**fields | {"unit": Unit(audit["unit"])})
    made = Privacy(
        format=FORMAT,
        method=Method(name=release["method"], version=release["version"]),
        tier=record.spec["tier"],
        noise=privacy["noise"],
        noise_version=privacy.get("noise_version", 1),
        unit=Unit(privacy["accounted"]["unit"]),
        delta=delta,
        accountant=accountant.VERSION,
        accounted={unit: published(each) for unit, each in recompute(ledger_of(entries), delta).items()},
        claimed=claimed,
        audited=audited,
        events=entries,
        warnings=[],
    )
    return made.model_copy(update={"warnings": warnings(made)})


def recompute(ledger: Ledger, delta: float) -> dict[Unit, Accounted]:
    """Compute the accounted epsilon of a ledger with the installed accountant, for each of its units."""
    units = sorted({entry.unit for entry in ledger.entries()})
    return {unit: accountant.account(ledger, unit, delta) for unit in units}


def published(accounted: Accounted) -> AccountedEpsilon:
    """Convert an accounted epsilon to its type in a bundle."""
    note = {"note": visible(accounted.note)[:LONGEST]} if accounted.note else {}
    plain = {
        "epsilon": epsilon_to_json(accounted.epsilon),
        "delta": accounted.delta,
        "unit": accounted.unit,
        "relation": accounted.relation,
        "accountant": accounted.accountant,
        "version": accounted.version,
    }
    return AccountedEpsilon.model_validate(plain | note)


def published_ledger(ledger: Ledger) -> list[LedgerEntry]:
    """Convert the entries of a ledger to their type in a bundle; a relation is stored only if it is restricted."""
    entries = []
    for entry in ledger.entries():
        why = visible(entry.why)[: LONGEST // 2]
        relation = {"relation": entry.relation} if entry.relation else {}
        event = event_to_json(entry.event)
        entries.append(LedgerEntry(event=event, count=entry.count, unit=entry.unit, why=why, **relation))
    return entries


def ledger_of(entries: list[LedgerEntry]) -> Ledger:
    """Rebuild the ledger of a bundle; raise BenchError for events that this version does not have."""
    return Ledger.from_json([entry.to_json() for entry in entries])


def warnings(privacy: Privacy) -> list[str]:
    """Return warnings for readers of a bundle, most important first; computed from the other fields."""
    found, finite = alarms(privacy), _finite(privacy)
    claim = privacy.claimed
    if claim is not None and claim.disputed:
        found.append(f"The claimed epsilon is disputed: {claim.disputed.replace('-', ' ')}.")
    if claim is not None:
        record = privacy.accounted.get(claim.unit)
        is_met = record is not None and record.epsilon <= claim.epsilon * (1 + 1e-6)
        if record is None or not (is_met and (math.isinf(claim.epsilon) or record.delta <= claim.delta)):
            what = "not accounted at all" if record is None else f"accounted at {record.displayed}"
            claimed = f"The claimed epsilon, {claim.displayed} per {claim.unit}"
            found.append(f"{claimed}, is not what is proved: it is {what}.")
    if privacy.delta > MOST_DELTA:
        found.append(f"Delta is {privacy.delta:g}: with that chance nothing is promised. 1e-5 is usual.")
    if Unit.QUERY in finite:
        found.append("An epsilon per query covers the answer to one synthetic image; it does not protect records.")
    if Unit.EXAMPLE in finite and finite[Unit.EXAMPLE].relation == Relation.ADD_OR_REMOVE_ONE:
        found.append(
            "The number of private records is taken as public: neighbours differ in one record left out or in."
        )
    if Unit.GROUP in finite:
        found.append(
            "The number of groups of private records is taken as public: neighbours differ in all records of one group "
            "left out or in. Groups, such as patients, are those that the author named."
        )
    if privacy.audited is not None:
        found.append(
            "The audit's numbers were measured on another network of the same settings, with canaries in its data; "
            "what that network took from the private data is in no account here. A small lower bound proves nothing."
        )
    if privacy.tier == "smoke":
        found.append("The network was made at tier smoke, whose settings are for tests: it is of no use.")
    return [
        *found,
        "The epsilons are of this release alone: every other one that was made of the same records adds to them.",
        "Hyper-parameters were chosen outside the account: by people who had seen results. No epsilon covers that.",
    ]


def alarms(privacy: Privacy) -> list[str]:
    """Return the warnings about facts that void or weaken the guarantee for private records; they are shown first."""
    found, finite = [], _finite(privacy)
    of_records = finite.get(Unit.EXAMPLE) or finite.get(Unit.GROUP)
    method, record, audit = privacy.method, privacy.accounted.get(Unit.EXAMPLE), privacy.audited
    if (method.name, method.version) in UNTRUE_ACCOUNTS:
        found.append("The account of this version of the method was not true; the next one's is. Run it again.")
    elif method.name == "fed-dpsd" and record is not None and record.relation == Relation.REPLACE_ONE:
        found.append(
            "The epsilon of a private record holds for a record that is left out, not for one that is replaced, as it "
            "says: one client alone was charged for the responses of two. Run it again."
        )
    if privacy.noise_version < 2:
        found.append(
            "The noise was drawn in float32, whose tails end at 5.8 deviations: the epsilon is not quite true."
        )
    if privacy.noise == "seeded":
        found.append(
            "The noise was drawn from a seed (`--noise seeded`): every epsilon below holds only for an adversary who "
            "does not know the seed. The seed is not in this bundle, but seeds are small numbers, easily tried one by "
            "one. A release that is to protect someone needs `--noise os`."
        )
    if audit is not None:
        audited = privacy.accounted.get(audit.unit)
        if refutes(audit.epsilon_lower, audit.delta, None if audited is None else audited.to_json()):
            found.append(f"An audit refutes the accounted epsilon: it shows at least {audit.epsilon_lower:.4g}.")
    if not finite:
        found.append(
            "Nothing is proved: no finite epsilon holds for any unit. Treat the network as if it were the data."
        )
    elif of_records is None:
        units = " and per ".join(finite)
        found.append(
            f"For a private record nothing is proved: the finite epsilon is per {units} only, and protects no record."
        )
    elif of_records.epsilon > WEAK:
        who = "a private record" if of_records.unit == Unit.EXAMPLE else "a group of private records"
        found.append(f"An epsilon of {of_records.displayed} for {who} is finite and promises next to nothing.")
    return found


def _finite(privacy: Privacy) -> dict[Unit, AccountedEpsilon]:
    return {unit: each for unit, each in sorted(privacy.accounted.items()) if math.isfinite(each.epsilon)}
