"""The numbers that the four papers print (`leaderboards/papers/reported.csv`), in the names of the bench."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench import registry
from bench.boards.board_cells import number
from bench.errors import BenchError
from bench.papers.ablations import DGD_PLUS

FILE = registry.ROOT / "leaderboards" / "papers" / "reported.csv"
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
UNNAMED = "unspecified"
"""The data set of a sentence that names none."""
TEACHERS = {
    "vggnet19-bn": "tv:vgg19_bn",
    "resnet50": "tv:resnet50",
    "wideresnet50": "tv:wide_resnet50_2",
    "mobilenet": "tv:mobilenet_v2",
    "shufflenet": "tv:shufflenet_v2_x1_0",
    "vit": "tv:vit_b_16",
} | {name: f"tv:{name}" for name in ("alexnet", "densenet161", "googlenet")}
"""A pretrained teacher of the papers to its network here."""

ISSUES = {
    "cell-inferred": "The printed number's column was found from another table, or by reading order.",
    "contradicts-table": "A sentence prints this number, and the paper's own table another.",
    "eps-not-from-formula": "The printed number is DGD's at epsilon 10 or 1; by the paper's own formula the queries "
    "that it prints give 11.9 and 1.31.",
    "eps-not-stated": "The paper claims privacy, and gives no epsilon for the printed number.",
    "protection-not-stated": "The printed number is of a network that was protected, and the paper does not say how.",
    "eps-uncertain": "The printed number belongs to one of two epsilons, and it is not known to which.",
    "exceeds-information": "The settings that the paper prints let less information through than its printed accuracy "
    "needs, whatever the algorithm: see docs/information.md.",
    "fits-no-table": "The printed number is of DPDFD's Table 5, which agrees with its Table 1 at no single epsilon.",
    "marks-lost": "The printed number is an ablation's whose marks are damaged in the text at hand: which ablation was "
    "read from the other papers.",
    "mode-not-stated": "The paper does not say whether the printed number of FedDPSD is of data or of label mode.",
    "named-differently": "The paper has two names for the printed number's method (LP-2ST and LP-MST, RGP and RDP).",
    "printed-twice": "DPDFD's Table 6 prints this number for both data sets.",
    "quoted-differently": "Another paper prints another number for the same data set, method and epsilon.",
    "same-numbers-other-dataset": "The other paper prints the same number for another data set: CIFAR10 and CIFAR100 "
    "in DP-DFD's Table II are CelebA-H and CelebA-G in DPSD's Table IV.",
    "same-numbers-other-method": "The same number is printed for another method, network or table, too.",
    "source-not-held": "DPSD's Table II prints this number as DPDFD's, whose main text has no such table.",
    "swapped-values": "The printed number is DGD's in DPSD's Table I, where MNIST at epsilon 1 and FMNIST at 10 "
    "changed places.",
    "unit-mixed": "The printed number protects labels, and stands in a table of methods that protect data.",
}
"""What is doubtful about a printed number, by the slug of docs/papers.md."""


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
        issues: contradictions that touch the number; docs/papers.md lists them.
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
def read_rows(path: Path = FILE) -> tuple[dict[str, str], ...]:
    """The rows of the file as text, with its columns.

    Raises:
        BenchError: no such file, or other columns than `COLUMNS`.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; the papers' numbers are part of the project's directory") from None
    except ValueError as error:  # pandas' errors, and text that is no UTF-8
        raise BenchError(f"{path}: not a CSV file: {error}; take it from the repository again") from None
    if tuple(frame.columns) != COLUMNS:
        raise BenchError(f"{path}: its columns are {', '.join(frame.columns)}; expected {', '.join(COLUMNS)}")
    return tuple({str(key): str(value) for key, value in row.items()} for row in frame.to_dict("records"))


@cache
def load(path: Path = FILE) -> tuple[Reported, ...]:
    """All printed numbers, in the file's order. Raises BenchError as `read_rows`."""
    return tuple(map(_read, read_rows(path)))


def _read(row: dict[str, str]) -> Reported:
    printed = dict(part.split("=", 1) for part in row["setting"].split(";") if part)
    several = row["dataset"] == "imagenet" and "teacher" in printed
    return Reported(
        paper=row["paper"],
        table=row["table"],
        dataset=row["dataset"],
        method=NAMES.get(row["method"], row["method"]),
        unit=row["unit_claimed"],
        epsilon=number(row["epsilon"]),
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
