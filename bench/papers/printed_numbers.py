"""Read the published numbers of the four papers (`leaderboards/papers/reported.csv`), with the bench's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench import registry
from bench.errors import BenchError
from bench.storage.records import Changed

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
"""A pretrained teacher of the papers to its network in the bench."""
WITH_DEFAULT_SIGMA = ("dpdfd",)
"""Methods with a table that has several sigmas and no epsilon, the default sigma among them (DPDFD, Table 5)."""
DGD_PLUS = {"aggregation": "gaussian", "images": "private"}
"""The options that make DGD the paper's DGD+ (Fig. 7 has both together)."""
TERMS = {"ce_weight": "CE", "ie_weight": "IE", "norm_weight": "NORM"}
TERMS_OF = {"dpdfd": TERMS, "dpsd": TERMS, "dp-dfd": {"ce_weight": "CE", "alpha": "IE", "beta": "NORM"}}
"""Method to its options that switch off a term of the generator's loss, each with the papers' name of the term."""
ISSUES = {
    "cell-inferred": "The printed number's column was found from another table, or by reading order.",
    "contradicts-table": "A sentence prints this number, and the paper's own table another.",
    "eps-not-from-formula": "The printed number is DGD's at epsilon 10 or 1; by the paper's own formula the queries "
    "that it prints give 11.9 and 1.31.",
    "eps-not-stated": "The paper claims privacy, and gives no epsilon for the printed number.",
    "protection-not-stated": "The printed number is of a network that was protected, and the paper does not say how.",
    "eps-uncertain": "The printed number belongs to one of two epsilons, and it is not known to which.",
    "exceeds-information": "The settings that the paper prints let less information through than its printed accuracy "
    "needs, for any algorithm: see docs/information.md.",
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
    "unit-mixed": "The printed number protects labels, and is in a table of methods that protect data.",
}
"""Doubts about a published number, by their names in the file (docs/papers.md)."""


@dataclass(frozen=True)
class PrintedNumber:
    """One published number.

    Attributes:
        paper, table: where it is printed; a table called "text ..." is a sentence.
        dataset, method: names of the bench; `named` is the paper's name of the method.
        kind: the paper's group of methods, such as "generator" or "ablation".
        unit: the unit that the paper protects: "data", "label" or "none".
        epsilon, delta: None where the paper gives none.
        metric: "accuracy" or another.
        value: a share in [0, 1] for accuracies; `printed` has its digits.
        setting: other facts that the paper states about the number, name and value.
        ablation: difference from the method's main numbers, such as "loss=IE+NORM"; "" for a main number.
        teacher: the teacher's network in the bench, where the table compares teachers; else "".
        issues: doubts about the number, keys of `ISSUES`.
    """

    paper: str
    table: str
    dataset: str
    method: str
    named: str
    kind: str
    unit: str
    epsilon: float | None
    delta: float | None
    metric: str
    value: float
    printed: str
    setting: tuple[tuple[str, str], ...]
    ablation: str
    teacher: str
    note: str
    issues: tuple[str, ...]

    @property
    def source(self) -> str:
        """Paper and table, such as "dpsd Table I"."""
        return f"{self.paper} {self.table}"

    def to_row(self) -> dict[str, str | float]:
        """Return the number as a row of the file: column to value, "" for an empty cell."""
        cells = (
            self.paper, self.table, self.dataset, self.named, self.kind, self.unit, self.epsilon, self.delta,
            self.metric, self.value, ";".join(f"{name}={value}" for name, value in self.setting), self.note,
            " ".join(self.issues),
        )  # fmt: skip
        return {name: "" if cell is None else cell for name, cell in zip(COLUMNS, cells, strict=True)}


@cache
def load(path: Path = FILE) -> tuple[PrintedNumber, ...]:
    """Read all published numbers, in the file's order.

    Raises:
        BenchError: no such file, no CSV file, or other columns than `COLUMNS`.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}; the papers' numbers are part of the project's directory") from None
    except ValueError as error:  # pandas' errors, and text that is not UTF-8
        raise BenchError(f"{path}: not a CSV file: {error}; take it from the repository again") from None
    if tuple(frame.columns) != COLUMNS:
        raise BenchError(f"{path}: its columns are {', '.join(frame.columns)}; expected {', '.join(COLUMNS)}")
    return tuple(read_row({str(key): str(cell) for key, cell in row.items()}) for row in frame.to_dict("records"))


def read_row(row: Mapping[str, str]) -> PrintedNumber:
    """Return the number in a row of the file, which has all `COLUMNS`."""
    paper, table, dataset, named, kind, unit, epsilon, delta, metric, value, pairs, note, issues = (
        row[column] for column in COLUMNS
    )
    setting = dict(part.split("=", 1) for part in pairs.split(";") if part)
    teacher = setting.get("teacher", "") if dataset == "imagenet" else ""
    ablation = [f"{name}={value}" for name, value in DGD_PLUS.items()] if named == "dgd-plus" else []
    if named == "dpsd-t":
        ablation.append("discriminator=teacher")
    if setting.get("loss", "CE+IE+NORM") != "CE+IE+NORM":
        ablation.append(f"loss={setting['loss']}")
    if setting.get("access") == "private-data" and named in ("dpdfd", "dpsd"):
        ablation.append("data=private")
    if "sigma" in setting and not epsilon:
        ablation.append(f"sigma={float(setting['sigma']):g}")
    return PrintedNumber(
        paper=paper,
        table=table,
        dataset=dataset,
        method=NAMES.get(named, named),
        named=named,
        kind=kind,
        unit=unit,
        epsilon=float(epsilon) if epsilon else None,
        delta=float(delta) if delta else None,
        metric=metric,
        value=float(value),
        printed=value,
        setting=tuple(setting.items()),
        ablation=" ".join(ablation),
        teacher=TEACHERS.get(teacher, teacher),
        note=note,
        issues=tuple(issues.split()),
    )


def ablation(method: str, given: Changed) -> str:
    """Return the papers' ablation that the options of a run make; "" for the method itself.

    >>> ablation("dpsd", {"method": {"ie_weight": 0.0}, "budget": {"epsilon": 1.0}})
    'loss=CE+NORM'
    >>> ablation("dpdfd", {"method": {}, "budget": {"epsilon": None}})
    'sigma=100'
    """
    own, found = given.get("method", {}), []
    if method == "dgd":
        found += [f"{name}={value}" for name, value in DGD_PLUS.items() if own.get(name) == value]
    if method == "dpsd" and own.get("discriminator") == "teacher":
        found.append("discriminator=teacher")
    terms = TERMS_OF.get(method, {})
    kept = [term for option, term in terms.items() if own.get(option) != 0]
    if len(kept) < len(terms):
        found.append(f"loss={'+'.join(kept)}")
    if own.get("data") == "private":
        found.append("data=private")
    if given.get("budget", {}).get("epsilon", 10.0) is None:
        sigma = own.get("sigma")
        if sigma is None and method in WITH_DEFAULT_SIGMA:
            options = registry.describe("method", method).options
            sigma = next(float(option.default) for option in options if option.name == "sigma")
        found += [] if sigma is None else [f"sigma={sigma:g}"]
    return " ".join(found)


def papers() -> dict[str, list[str]]:
    """Return the tables and sentences that print accuracies, by paper, in the file's order."""
    found: dict[str, list[str]] = {}
    for entry in load():
        if entry.metric == "accuracy" and entry.table not in found.setdefault(entry.paper, []):
            found[entry.paper].append(entry.table)
    return found


def table(paper: str, name: str) -> list[PrintedNumber]:
    """Return the accuracies of a table, in its order; upper and lower case are the same.

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
def epsilons_of_table(entry: PrintedNumber) -> tuple[float, ...]:
    """Return the epsilons that a number's table has for the same data set and unit, ascending.

    >>> (one,) = (e for e in load() if (e.paper, e.dataset, e.method) == ("dp-dfd", "celeba-g", "dp-merf"))
    >>> one.epsilon, epsilons_of_table(one)
    (None, (1.0, 10.0))
    """
    where = (entry.paper, entry.table, entry.dataset, entry.unit)
    known = {each.epsilon for each in load() if (each.paper, each.table, each.dataset, each.unit) == where}
    return tuple(sorted(each for each in known if each is not None))
