"""What the four papers print (`leaderboards/reported.csv`), and which of it belongs beside a row of a board."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from bench import data, registry
from bench.config import STUDENT, TIERS
from bench.data.canaries import SPLIT as CANARIES
from bench.errors import BenchError
from bench.leaderboard.board_csv import read_board
from bench.leaderboard.flags import UNTRUE
from bench.storage.options import GROUPS, Changed

FILE = registry.ROOT / "leaderboards" / "reported.csv"
COLUMNS = (
    "paper", "table", "dataset", "method", "kind", "unit_claimed", "epsilon", "delta", "metric", "value", "setting",
    "note", "issue",
)  # fmt: skip
NAMES = {
    "teacher": "no-defence",
    "dpsgd": "dp-sgd",
    "tsadp": "ts-adp",
    "feddpsd": "fed-dpsd",
    "dpsd-t": "dpsd",
    "dgd-plus": "dgd",
}
"""Method in the papers' tables to method of the bench; every other name is the same."""
TEACHERS = {
    "vggnet19-bn": "tv:vgg19_bn",
    "resnet50": "tv:resnet50",
    "wideresnet50": "tv:wide_resnet50_2",
    "mobilenet": "tv:mobilenet_v2",
    "shufflenet": "tv:shufflenet_v2_x1_0",
    "vit": "tv:vit_b_16",
} | {name: f"tv:{name}" for name in ("alexnet", "densenet161", "googlenet")}
"""A pretrained teacher of the papers to its network here."""
OWN_PAPER = {"dgd": "dgd", "dp-dfd": "dp-dfd", "dpdfd": "dpdfd", "dpsd": "dpsd", "fed-dpsd": "dpsd"}
MODES = ("dpsd", "fed-dpsd")
"""Methods with a mode for data and one for labels; the papers' numbers of one are not compared with the other's."""
BY_SIGMA = ("dpdfd",)
"""Methods of which a table has no epsilon and several sigmas, the default one among them (DPDFD, Table 5)."""
DGD_PLUS = {"aggregation": "gaussian", "images": "private"}
"""The options that make DGD the paper's DGD+."""
TERMS = {"ce_weight": "CE", "ie_weight": "IE", "norm_weight": "NORM"}
TERMS_DP_DFD = {"ce_weight": "CE", "alpha": "IE", "beta": "NORM"}
"""The weight that switches a term of the generator's loss off, to the papers' name of the term."""
CLOSE = 3.5e-3
"""A claim is of a printed epsilon if it is less by at most this share: a search for noise meets a budget from below.
The nearest two that the papers print, 7.5 and 7.53, are 4e-3 apart."""
EXACT = 1e-9
"""What rounding may add to a number that is asked for exactly, as a share."""
ONE_OF_TWO = "eps-uncertain"
"""The issue of a number that belongs to one of a table's epsilons, of which one is not known."""

Row = Mapping[str, Any]
Exists = Callable[[str, str], bool]


@dataclass(frozen=True)
class Reported:
    """One printed number.

    Attributes:
        paper, table: where it stands; a table called "text ..." is a sentence.
        dataset, method: names of the bench.
        unit: "data", "label" or "none", as the paper has it.
        epsilon: None where the paper gives none.
        metric: "accuracy" or another.
        value: a fraction, for accuracies.
        printed: the value's digits.
        ablation: what sets the number apart from the method's main ones, such as "loss=IE+NORM"; "" for these.
        teacher: the teacher's network here, where the table is about several; else "".
        issues: contradictions that touch the number; docs/reported.md lists them.
    """

    paper: str
    table: str
    dataset: str
    method: str
    unit: str
    epsilon: float | None
    metric: str
    value: float
    printed: str
    ablation: str
    teacher: str
    note: str
    issues: tuple[str, ...]

    @property
    def source(self) -> str:
        """Paper and table, such as "dpsd Table I"."""
        return f"{self.paper} {self.table}"


@cache
def load(path: Path = FILE) -> tuple[Reported, ...]:
    """All printed numbers, in the file's order.

    Raises:
        BenchError: no such file, or other columns than `COLUMNS`.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; the papers' numbers are part of the project's directory") from None
    if tuple(frame.columns) != COLUMNS:
        raise BenchError(f"{path}: its columns are {', '.join(frame.columns)}; expected {', '.join(COLUMNS)}")
    return tuple(_read({str(key): str(value) for key, value in row.items()}) for row in frame.to_dict("records"))


def _read(row: dict[str, str]) -> Reported:
    printed = dict(part.split("=", 1) for part in row["setting"].split(";") if part)
    several = row["dataset"] == "imagenet" and "teacher" in printed
    return Reported(
        paper=row["paper"],
        table=row["table"],
        dataset=row["dataset"],
        method=NAMES.get(row["method"], row["method"]),
        unit=row["unit_claimed"],
        epsilon=_number(row["epsilon"]),
        metric=row["metric"],
        value=float(row["value"]),
        printed=row["value"],
        ablation=_printed_ablation(row["method"], row["epsilon"], printed),
        teacher=TEACHERS.get(printed["teacher"], printed["teacher"]) if several else "",
        note=row["note"],
        issues=tuple(row["issue"].split()),
    )


def _printed_ablation(method: str, epsilon: str, printed: dict[str, str]) -> str:
    """The ablation of a printed number, in the words of `ablation`."""
    found = []
    if method == "dgd-plus":
        found += [f"{name}={value}" for name, value in DGD_PLUS.items()]
    if method == "dpsd-t":
        found.append("discriminator=teacher")
    if printed.get("loss", "CE+IE+NORM") != "CE+IE+NORM":
        found.append(f"loss={printed['loss']}")
    if printed.get("access") == "private-data" and method in ("dpdfd", "dpsd"):
        found.append("data=private")
    if "sigma" in printed and not epsilon:
        found.append(f"sigma={float(printed['sigma']):g}")
    return " ".join(found)


@lru_cache
def options(cell: str) -> Changed:
    """The options in a board's column of that name, group to option to value. Raises BenchError for a damaged cell.

    >>> options('{"attack": {"steps": 3}, "method": {"mode": "label"}}')["method"]
    {'mode': 'label'}
    """
    none: Changed = {group: {} for group in GROUPS}
    try:
        return none | (json.loads(cell) if cell else {})
    except (ValueError, TypeError):
        raise BenchError(
            f"a board's cell of options is damaged: {cell[:60]!r}; expected a JSON object: rebuild the board with "
            "`bench leaderboard --publish`"
        ) from None


def ablation(method: str, given: Changed) -> str:
    """The papers' ablation that a board's row is, from its options; "" for the method itself.

    >>> ablation("dpsd", {"method": {"ie_weight": 0.0}, "budget": {"epsilon": 1.0}})
    'loss=CE+NORM'
    >>> ablation("dpdfd", {"method": {}, "budget": {"epsilon": None}})
    'sigma=100'
    """
    own, found = given.get("method", {}), []
    if method == "dgd":  # both together are DGD+ (Fig. 7); either alone is no table's
        found += [f"{name}={value}" for name, value in DGD_PLUS.items() if own.get(name) == value]
    if method == "dpsd" and own.get("discriminator") == "teacher":
        found.append("discriminator=teacher")
    terms = TERMS_DP_DFD if method == "dp-dfd" else TERMS if method in ("dpdfd", "dpsd") else {}
    kept = [term for option, term in terms.items() if own.get(option) != 0]
    if len(kept) < len(terms):
        found.append(f"loss={'+'.join(kept)}")
    if own.get("data") == "private":
        found.append("data=private")
    if given.get("budget", {}).get("epsilon", 10.0) is None:
        sigma = own["sigma"] if "sigma" in own else _usual_sigma(method) if method in BY_SIGMA else None
        found += [] if sigma is None else [f"sigma={sigma:g}"]
    return " ".join(found)


@cache
def _usual_sigma(method: str) -> float:
    """The noise where none is given and none is solved for."""
    (sigma,) = [each.default for each in registry.describe("method", method).options if each.name == "sigma"]
    return float(sigma)


def find(
    dataset: str,
    method: str,
    epsilon: float | None,
    given: Changed | None = None,
    teacher: str = "",
    split: str = "iid",
    unsure: bool = False,
) -> tuple[Reported, ...]:
    """The printed accuracies of a board's row, best source first.

    Same data set, same method, same claimed epsilon (compared as numbers; none and infinity match methods alone that
    promise nothing), same ablation, and for methods with two modes the same mode. The method's own paper comes first,
    tables before sentences, then the file's order.

    Args:
        dataset: a board's name.
        epsilon: claimed; None where nothing is.
        given: what differs from the defaults, group to option to value.
        teacher: network, which matters where a table compares teachers.
        split: only rows of all classes, of their own labels and of as many records have a printed counterpart.
        unsure: also those that may be for this epsilon, or for another one of their table.
    """
    if split.startswith("disjoint") or split in ("few", CANARIES):
        return ()
    given = given or {}
    label = method in MODES and given.get("method", {}).get("mode") == "label"
    return _printed(_paper_name(dataset), method, ablation(method, given), label, teacher, epsilon, unsure)


@cache
def _paper_name(dataset: str) -> str:
    """Data set of a board to data set of the papers; kept, as every row of a board asks."""
    return data.base_name(dataset)


@lru_cache
def _printed(
    dataset: str, method: str, ablation: str, label: bool, teacher: str, epsilon: float | None, unsure: bool
) -> tuple[Reported, ...]:
    return tuple(
        entry
        for entry in _accuracies().get((method, dataset, ablation), ())
        if (not entry.teacher or entry.teacher == teacher)
        and (method not in MODES or label == (entry.unit == "label"))
        and (_same_epsilon(entry, epsilon) or (unsure and epsilon is not None and _may_be(entry, epsilon)))
    )


def _of(row: Row, dataset: str = "", unsure: bool = False) -> tuple[Reported, ...]:
    """`find`, for a row with a board's columns; empty cells are None, NaN or ""."""
    return find(
        dataset or str(row.get("dataset") or ""),
        str(row["method"]),
        _number(row.get("epsilon_claimed")),
        options(str(_blank(row.get("options")))),
        str(row.get("teacher") or ""),
        str(row.get("split") or "iid"),
        unsure,
    )


@cache
def _accuracies() -> dict[tuple[str, str, str], tuple[Reported, ...]]:
    """Printed accuracies by method, data set and ablation, best source first."""
    found: dict[tuple[str, str, str], list[Reported]] = defaultdict(list)
    for entry in load():
        if entry.metric == "accuracy":
            found[entry.method, entry.dataset, entry.ablation].append(entry)
    return {key: tuple(sorted(entries, key=_rank)) for key, entries in found.items()}


def _rank(entry: Reported) -> tuple[bool, bool]:
    """The method's own paper first, tables before sentences."""
    return entry.paper != OWN_PAPER.get(entry.method, ""), entry.table.startswith("text")


def _same_epsilon(entry: Reported, claimed: float | None) -> bool:
    if entry.unit == "none":
        return claimed is None or math.isinf(claimed)
    if entry.epsilon is None:
        return "sigma=" in entry.ablation
    return _are_close(entry.epsilon, claimed)


def _may_be(entry: Reported, claimed: float) -> bool:
    """Whether a number whose row is not known may stand in the one of this epsilon."""
    return ONE_OF_TWO in entry.issues and any(_are_close(each, claimed) for each in beside(entry))


@cache
def beside(entry: Reported) -> tuple[float, ...]:
    """The epsilons that a number's table has for the same data set and unit, ascending.

    >>> (one,) = (e for e in load() if (e.paper, e.dataset, e.method) == ("dp-dfd", "celeba-g", "dp-merf"))
    >>> one.epsilon, beside(one)
    (None, (1.0, 10.0))
    """
    known = (
        each.epsilon
        for each in load()
        if (each.paper, each.table, each.dataset, each.unit) == (entry.paper, entry.table, entry.dataset, entry.unit)
    )
    return tuple(sorted({each for each in known if each is not None}))


def disagree(entries: Iterable[Reported]) -> bool:
    """Whether two printed numbers differ by a unit of the coarser one's last digit, or more."""
    known = list(entries)
    return any(
        abs(a.value - b.value) > 10.0 ** -min(_places(a), _places(b)) - 1e-9 for a in known for b in known if a is not b
    )


def join(row: Row, dataset: str = "") -> dict[str, Any]:
    """What the papers print, as columns for a board's row.

    Args:
        row: of a board, with its columns; empty cells are None, NaN or "".
        dataset: the board's name; default: the row's own "dataset".

    Returns:
        reported_accuracy, reported_source and reported_difference (ours less theirs), None where nothing matches, and
        flags: the row's own with `reported:ISSUE` for every contradiction that touches the number, and
        `reported-differs` where sources of the same rank disagree.
    """
    found = _of(row, dataset)
    flags = set(str(_blank(row.get("flags"))).split())
    if not found:
        return {
            "reported_accuracy": None, "reported_source": None, "reported_difference": None,
            "flags": " ".join(sorted(flags)),
        }  # fmt: skip
    first = found[0]
    flags |= flags_of(found)
    return {
        "reported_accuracy": first.value,
        "reported_source": first.source,
        "reported_difference": difference(_number(row.get("accuracy_mean")), first),
        "flags": " ".join(sorted(flags)),
    }


@lru_cache
def flags_of(found: tuple[Reported, ...]) -> frozenset[str]:
    """The flags of the first of the numbers that `find` gave."""
    first = found[0]
    ranked = [entry for entry in found if entry.paper == first.paper] if first.paper == _own(first) else found
    return frozenset(f"reported:{issue}" for issue in first.issues) | (
        {"reported-differs"} if disagree(ranked) else set()
    )


def difference(ours: float | None, entry: Reported) -> float | None:
    """Our accuracy less the printed one."""
    return None if ours is None else round(ours - entry.value, 6)


@dataclass(frozen=True)
class Line:
    """A printed accuracy and the board's row beside it; `row` is None where there is none, and `state` says why."""

    entry: Reported
    row: Row | None
    state: str
    flags: str

    @property
    def difference(self) -> float | None:
        """Ours less theirs."""
        return None if self.row is None else difference(_number(self.row["accuracy_mean"]), self.entry)


def papers() -> dict[str, list[str]]:
    """Paper to the tables (and sentences) of it that print accuracies, in the file's order."""
    found: dict[str, list[str]] = {}
    for entry in load():
        if entry.metric == "accuracy" and entry.table not in found.setdefault(entry.paper, []):
            found[entry.paper].append(entry.table)
    return found


def table(paper: str, name: str) -> list[Reported]:
    """The accuracies of a table, in its order; upper and lower case are the same.

    Raises:
        BenchError: an unknown paper or table, with the known ones.
    """
    known = papers()
    if paper.lower() not in known:
        raise BenchError(f"no paper called '{paper}'; known: {', '.join(known)}")
    tables = known[paper.lower()]
    same = [each for each in tables if each.lower() == name.strip().lower()]
    if not same:
        raise BenchError(f"no table '{name}' in {paper.lower()}; known: {', '.join(tables)}")
    chosen = (paper.lower(), same[0])
    return [entry for entry in load() if entry.metric == "accuracy" and (entry.paper, entry.table) == chosen]


def compare(entries: Iterable[Reported], rows: Iterable[Row], exists: Exists) -> list[Line]:
    """Each printed accuracy with our row of it, one for each variant that was run; alone if there is none.

    Beside a number that belongs to one of two epsilons, not known which, stands a row of each.

    Of several rows of a variant one of the largest tier is taken, then the one with the fewest options other than the
    defaults, then one of today's version, then one whose account is true, then one of the usual student, then the one
    with the most seeds; accuracy has no say.

    Args:
        rows: of boards, with "dataset" in each.
        exists: whether the bench has (method, data set).
    """
    done = [(row, _of(row, unsure=True)) for row in rows if _number(row.get("accuracy_mean")) is not None]
    lines = []
    for entry in entries:
        found: dict[tuple[str | float, ...], Row] = {}
        for row in sorted((row for row, printed in done if entry in printed), key=_plainness):
            claimed = _number(row.get("epsilon_claimed"))
            # A number of one epsilon has one row of a variant; one that may be for two has one of each
            which = [each for each in beside(entry) if ONE_OF_TWO in entry.issues and _are_close(each, claimed)]
            found.setdefault((str(row["variant"]), *which), row)
        absent = "not run" if exists(entry.method, entry.dataset) else "planned"
        lines += [_line(entry, found[name], "") for name in sorted(found, key=str)] or [_line(entry, None, absent)]
    return lines


def _are_close(epsilon: float, claimed: float | None) -> bool:
    if claimed is None:
        return False
    return math.isclose(epsilon, claimed, rel_tol=CLOSE) and claimed <= epsilon * (1 + EXACT)


def of_tier(rows: Iterable[Row], tier: str | None = None) -> list[Row]:
    """Rows of one tier; unasked, of all but tier smoke, whose numbers say nothing."""
    return [row for row in rows if row["tier"] == tier or (tier is None and row["tier"] != TIERS[0])]


def _line(entry: Reported, row: Row | None, state: str) -> Line:
    own = str(_blank(row.get("flags"))).split() if row is not None else []
    flags = {*own, *(f"reported:{issue}" for issue in entry.issues)}
    return Line(entry, row, state, " ".join(sorted(flags)))


def _plainness(row: Row) -> tuple[Any, ...]:
    given = options(str(_blank(row.get("options"))))
    number = sum(len(given[group]) for group in GROUPS if group != "attack")
    flags = set(str(_blank(row.get("flags"))).split())
    other = row.get("student") != STUDENT
    return (
        -TIERS.index(row["tier"]), number, "older-version" in flags, not flags.isdisjoint(UNTRUE), other,
        *most_measured(row),
    )  # fmt: skip


def most_measured(row: Row) -> tuple[int, bool, str, str]:
    """Of rows of one release, which differ in the attack alone, the smallest stands for it: that with most seeds that
    have a number, then one without an attack."""
    seeds = len(str(_blank(row.get("seeds"))).split()) - int(_number(row.get("failed")) or 0)
    return -seeds, bool(_blank(row.get("attack"))), str(row.get("options")), str(row.get("runs"))


def boards_folder(given: Path | None) -> Path:
    """The folder of boards that is meant: the one given, else `leaderboards` here, else that of the installation."""
    here = Path("leaderboards")
    return given or (here if here.is_dir() else FILE.parent)


def boards(folder: Path) -> list[dict[str, str]]:
    """The rows of all boards in a folder, as text, each with its "dataset".

    Raises:
        BenchError: no such folder, no board in it, or a file in it that is no board.
    """
    found = [path for path in sorted(folder.glob("*.csv")) if path.name != FILE.name]
    if not found:
        inside = folder / "leaderboards"
        nearest = (
            f"give {inside}" if inside.is_dir() else "run from the project's directory, or give a folder of boards"
        )
        raise BenchError(f"no board in {folder}; {nearest}")
    return [row for path in found for row in read_board(path)]


def _own(entry: Reported) -> str:
    return OWN_PAPER.get(entry.method, "")


def _places(entry: Reported) -> int:
    return len(entry.printed.partition(".")[2])


def _blank(value: Any) -> Any:
    return "" if value is None or value != value else value


def _number(value: Any) -> float | None:
    """A cell as a number; None where it is empty."""
    return None if _blank(value) == "" else float(value)
