"""The columns of a wide row (`bench.boards.wide`), in their order, for the report page.

Columns of measurements come from the table of metrics. A board omits the columns of plug-ins and of newer numbers if no
row has a value.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from bench.metrics.built_in import BUILT_IN
from bench.metrics.metric import Metric
from bench.metrics.table import metrics

Kind = Literal["text", "percent", "number", "epsilon", "seconds", "runs", "flags"]
ATTACK = ("attack",)


@dataclass(frozen=True)
class Column:
    """A column as it is displayed.

    Attributes:
        key: its name in the header of the CSV file.
        kind: how its values are formatted and sorted.
        core: shown before a reader selects all columns.
        within: columns whose values are kept apart when rows are sorted by this column.
        tip: its explanation.
        beside: shown together with another column or as a heading, not by itself.
        metric: the metric whose mean over seeds it shows; "" for none.
        deviation: it shows the standard deviation of that metric instead.
    """

    key: str
    label: str
    kind: Kind = "text"
    core: bool = False
    within: tuple[str, ...] = ()
    tip: str = ""
    beside: bool = False
    metric: str = ""
    deviation: bool = False


def of_metric(metric: Metric) -> list[Column]:
    """Return the columns of a metric: its mean, its deviation, and its mean on the undefended teacher."""
    if not metric.averaged:
        return []
    kind: Kind = "percent" if metric.kind == "share" else "number"
    within = () if metric.of == "classifier" else ATTACK
    # The accuracy's column is called a mean; the teacher's comes first, as the student is made from the teacher.
    name = "accuracy_mean" if metric.key == "accuracy" else metric.key
    found = [Column(name, metric.label, kind, metric.core, within, metric.explanation, metric=metric.key)]
    if metric.deviation:
        label = f"{metric.label}, deviation"
        found.append(
            Column(f"{metric.key}_std", label, kind, within=within, beside=True, metric=metric.key, deviation=True)
        )
    if metric.with_teacher:
        key, core = f"teacher_{metric.key}", metric.core and metric.of != "classifier"
        tip = "The same on the teacher, which nothing defends."
        found.append(Column(key, f"{metric.label}, teacher", kind, core, within, tip, metric=key))
    return found


def _of(metrics: Collection[Metric], classifier: bool) -> list[Column]:
    return [column for metric in metrics if (metric.of == "classifier") == classifier for column in of_metric(metric)]


_USUAL = [metric for metric in BUILT_IN if not metric.newer]
_OTHERS = [metric for metric in metrics().values() if metric not in _USUAL]
_CONTROLS = [
    Column(
        "random_auc", "AUC, random weights", "number", within=ATTACK, metric="random_auc",
        tip="The same attack on what knows nothing: a network, or of what is released a generator, of random weights.",
    ),
    Column(
        "memorising_auc", "AUC, memorising generator", "number", within=ATTACK, metric="memorising_auc",
        tip="The same attack on a generator that remembers some of the records, drawn from as the release is.",
    ),
]  # fmt: skip
ALL = (
    Column("tier", "tier", beside=True),
    Column("split", "split", beside=True),
    Column("method", "method", core=True),
    Column("variant", "variant", core=True, tip="The paper's algorithm as printed, made to learn (working), or ours."),
    Column("version", "version", tip="Of the method: raised when the same command gives other numbers."),
    Column("kind", "kind"),
    Column("setting", "setting", core=True, tip="What differs from the defaults of the variant and the tier."),
    Column("options", "options", beside=True, tip="The setting as data: group to option to value, as JSON."),
    Column("teacher", "teacher", core=True),
    Column("student", "student"),
    *_of(_USUAL, classifier=True),
    Column("epsilon_claimed", "ε claimed", "epsilon", True, ("claim_unit",), "By the paper's own theorem."),
    Column("claim_unit", "claimed per", beside=True),
    Column("epsilon_accounted", "ε accounted", "epsilon", True, ("unit",), "What can be proved from the ledger."),
    Column("unit", "accounted per", beside=True),
    Column("relation", "neighbours"),
    Column("delta", "δ", "number"),
    Column("epsilon_audited", "ε audited ≥", "epsilon", True, tip="A lower bound per record that an attack measured."),
    Column("audited_teacher", "on teacher ≥", "epsilon", True, tip="What the audit shows where nothing defends."),
    Column("audited_null", "null run ≥", "epsilon", True, tip="What it shows where there is nothing to find."),
    Column("audited_ceiling", "could show", "epsilon", True, tip="What it would show if every guess were right."),
    Column("information", "information ≤", "number", True, tip="Nats that all answers can carry about the data."),
    Column("attack", "attack", core=True),
    Column("attack_variant", "attack variant", core=True, tip="As `variant`, of the attack."),
    Column("access", "access", tip="What the attack sees of the student."),
    Column("power", "power", core=True, tip="Whether the attack works where nothing defends."),
    *_of(_USUAL, classifier=False),
    *_of(_OTHERS, classifier=False),
    *_CONTROLS,
    Column("seeds", "seeds", beside=True),
    Column("failed", "failed", "number"),
    Column("seconds", "time", "seconds", tip="Mean of the runs, all steps."),
    Column("device", "device"),
    Column("flags", "flags", "flags", True, tip="What must be known before a row is used."),
    Column("runs", "seeds", "runs", True, tip="A run each; follow the number."),
)
MEASURED = tuple(column for column in ALL if column.metric)
SORT = ["tier", "split", "method", "variant", "setting", "teacher", "student", "attack", "attack_variant", "delta"]
SORT += ["runs"]
WIDE = tuple(column.key for column in ALL)
"""The columns of a wide row."""
