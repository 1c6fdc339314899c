"""Joint epsilon of several releases of the same private records, for an adversary who has all of them.

- Runs that differ only in their attack share one release, which counts once: it is one draw of the mechanism.
- Releases with seeded noise do not compose: two of one method and seed share their draws, so that their difference may
  reveal what the noise hides. Each has an epsilon against adversaries without the seed; together they have none.
- Ledgers are composed, not epsilons: by one accountant at one delta, even if the releases have different deltas.
- Only accounts with the same neighbour relation compose: an account for removed records does not cover replaced ones.
- Only accounts of the same unit compose, and of units `group` and `client` only those with the same groups: a patient's
  records are not a user's. Groups are the same if images, labels and groups are; a bundle does not say which it has.
- Versions, sizes and splits of a data set count as the same records: an upper bound if they share only some.
- A bundle does not say which records it is based on. Bundles of one data set count as based on the same records, and
  so do all bundles with a withheld data set. A bundle and the run that it was made from count as two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.boards.records import has_records, read_records
from bench.bundle import files
from bench.bundle.account import ledger_of
from bench.bundle.schema import PRIVACY, Failed
from bench.data.naming import size_in
from bench.errors import BenchError, NotFound
from bench.privacy import Ledger, Relation, Unit, accountant
from bench.privacy.accountant import Accounted
from bench.storage.records import RECORD, Record
from bench.storage.specs import Plain, digest

OF_RECORDS = (Unit.EXAMPLE, Unit.LABEL, Unit.CLIENT, Unit.GROUP)
"""Units that all releases share. Unit `query` is not composed: each synthetic image belongs to one release."""
SEEDED, UNCHARGED = "seeded noise", "not accounted per {}"
KNOWN_SEED = " (seeded noise: for those without the seed)"
DIVISION = ("clients", "partition", "alpha")
"""Options that divide the private records among clients, together with the seed."""
Scope = tuple[Unit, str]
"""A unit and the identifier of its grouping."""


@dataclass(frozen=True)
class Released:
    """The use of private data by one release.

    Attributes:
        name: displayed name: the release's method and hash, or the bundle's folder.
        draw: identifier of the release; records of runs that share a release have the same.
        data: name of the private data set.
        seeded: whether a seed determines the noise.
        delta: delta of the release's budget.
        ledger: ledger of the release.
        groupings: for a unit of several records, an identifier of the division of the records into such units.
    """

    name: str
    draw: str
    data: str
    seeded: bool
    delta: float
    ledger: Ledger
    groupings: Mapping[Unit, str] = field(default_factory=dict)

    @property
    def scopes(self) -> set[Scope]:
        """The units that the release is accounted for, each with its grouping; "" for a unit of one record."""
        return {(unit, self.groupings.get(unit, "")) for unit in OF_RECORDS if self.ledger.entries(unit)}


@dataclass(frozen=True)
class Composed:
    """The joint guarantee of releases of the same private records, for one unit and neighbour relation.

    Attributes:
        data: name of the private data set.
        proved: the accounted epsilon of the composition; None if this lists releases that cannot be composed.
        unit: the protected unit.
        of: names of the composed releases.
        left_out: {name of a release that cannot be composed: reason}.
        grouping: identifier of the groups or clients that the unit means; "" for other units.
    """

    data: str
    proved: Accounted | None
    unit: Unit
    of: tuple[str, ...]
    left_out: dict[str, str]
    grouping: str = ""


def of_record(record: Record) -> Released | None:
    """Return the release of a run, None if it failed; raise BenchError for a damaged ledger."""
    if record.status == "failed" or not record.privacy:
        return None
    release = record.spec["release"]
    name, hashed = release["teacher"]["data"]["dataset"], digest(release)
    return Released(
        f"{release['method']} {hashed[:8]}",
        hashed,
        name.removesuffix(f"-{size_in(name)}px"),
        release["noise"] != "os",
        release["budget"]["delta"],
        Ledger.from_json(record.privacy["events"]),
        _groupings(release),
    )


def _groupings(release: Plain) -> dict[Unit, str]:
    """Return identifiers of the groups and clients of a run's release, from its spec.

    The fingerprint of a data set covers its groups. Clients are drawn by the seed, and by options of the method.
    """
    data, options = release["teacher"]["data"], release["options"]
    clients = {name: options.get(name) for name in DIVISION} | {"data": data, "seed": release["seed"]}
    return {Unit.GROUP: data["fingerprint"], Unit.CLIENT: digest(clients)}


def of_bundle(folder: Path) -> Released:
    """Return the release in a bundle from its `privacy.json` and `model.json`; raise BenchError for invalid files."""
    try:
        privacy, model = files.read_privacy(folder), files.read_model(folder)
        ledger = ledger_of(privacy.events)
    except (BenchError, Failed, OSError) as error:
        raise BenchError(f"--releases {folder}: not a bundle ({error}); export it again") from None
    draw = str(folder.resolve())
    unknown = dict.fromkeys((Unit.GROUP, Unit.CLIENT), digest({"bundle": draw}))
    return Released(f"bundle {folder.name}", draw, model.data, privacy.noise != "os", privacy.delta, ledger, unknown)


def read(folder: Path) -> list[Released]:
    """Return the releases in a folder: of runs (an `--out`, `leaderboards/`, or one run) and of bundles.

    A bundle is the folder itself or directly below it.

    Raises:
        BenchError: no such folder, none in it, or a record or bundle that cannot be read.
    """
    if not folder.is_dir():
        raise NotFound(f"--releases {folder}: no such folder; give the --out of runs, a run's folder or a bundle")
    paths, bundles = record_files(folder), sorted(path.parent for path in _in_or_below(folder, PRIVACY))
    if not paths and not has_records(folder) and not bundles:
        raise NotFound(
            f"--releases {folder}: no record and no bundle in it; give the --out of runs, a run's folder or a bundle"
        )
    found = []
    try:
        for record in (*map(Record.read, paths), *read_records(folder)):
            found.append(of_record(record))
    except (BenchError, OSError, ValueError) as error:
        raise BenchError(f"--releases {folder}: {error}; remove it, or make the run again") from None
    return [release for release in [*found, *map(of_bundle, bundles)] if release is not None]


def record_files(folder: Path) -> list[Path]:
    """Return the records of runs in a folder, in the runs' own folders in it, and in its `records/`."""
    return sorted({*_in_or_below(folder, RECORD), *(folder / "records").glob(f"[!.]*/{RECORD}")})


def _in_or_below(folder: Path, name: str) -> list[Path]:
    return [path for path in [folder / name, *folder.glob(f"[!.]*/{name}")] if path.is_file()]


def compose(releases: Iterable[Released], delta: float | None = None) -> list[Composed]:
    """Compose each data set's releases, for every unit and grouping that any of them is accounted for.

    Args:
        delta: delta of the composed epsilons; None = the smallest delta of the data set's releases.
    """
    return [
        composed for data, found in _by_data(releases).items() for composed in _compose_data_set(data, found, delta)
    ]


def find_separate(releases: Iterable[Released]) -> dict[str, list[Scope]]:
    """Return the units and groupings of each data set whose epsilons are not added.

    These are all of them if the releases share none, so that no joint epsilon exists; otherwise those of a unit with
    several groupings, such as clients that two releases divide differently.
    """
    found = {}
    for data, of_data in _by_data(releases).items():
        charged = [scopes for release in of_data if (scopes := release.scopes)]
        if not charged:
            continue
        every, shared = sorted(set.union(*charged)), set.intersection(*charged)
        groupings = Counter(unit for unit, _ in every)
        if separate := [scope for scope in every if not shared or groupings[scope[0]] > 1]:
            found[data] = separate
    return found


def _by_data(releases: Iterable[Released]) -> dict[str, list[Released]]:
    """Return the releases of each data set, sorted by its name; records of runs that share a release count once."""
    by_data: dict[str, dict[str, Released]] = defaultdict(dict)
    for release in releases:
        by_data[release.data].setdefault(release.draw, release)
    return {data: list(by_data[data].values()) for data in sorted(by_data)}


def _compose_data_set(data: str, releases: Sequence[Released], delta: float | None) -> list[Composed]:
    """Compose the releases of one data set; `delta` as in `compose`."""
    at = min(release.delta for release in releases) if delta is None else delta
    found = []
    scopes = set.union(*(release.scopes for release in releases))
    for unit, grouping in sorted(scopes, key=lambda scope: (OF_RECORDS.index(scope[0]), scope[1])):
        by_relation: dict[Relation, list[Released]] = defaultdict(list)
        left_out = {}
        for release in releases:
            if release.ledger.entries(unit) and (unit, grouping) not in release.scopes:
                continue  # it is composed with the releases of its grouping
            if not release.ledger.entries(unit):
                left_out[release.name] = UNCHARGED.format(unit)
            elif release.seeded and len(releases) > 1:
                left_out[release.name] = SEEDED
            elif not (proved := accountant.account(release.ledger, unit, at)).finite:
                left_out[release.name] = proved.note or "infinite"
            else:
                by_relation[proved.relation].append(release)
        for _, same in sorted(by_relation.items()):
            entries = [entry for release in same for entry in release.ledger.to_json()]
            proved = accountant.account(Ledger.from_json(entries), unit, at)
            names = tuple(release.name + KNOWN_SEED * release.seeded for release in same)
            found.append(Composed(data, proved, unit, names, {}, grouping))
        if left_out:
            found.append(Composed(data, None, unit, (), left_out, grouping))
    return found
