"""The columns of a board's page, in their order.

Columns of measurements come from the table of metrics. A page omits the columns of plug-ins and of newer numbers if no
row has a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.boards.tables import LOWER, LOWER_CEILING, LOWER_NULL
from bench.metrics.built_in import BUILT_IN
from bench.metrics.metric import Metric
from bench.metrics.table import metrics

Kind = Literal["text", "percent", "number", "epsilon", "seconds", "runs", "flags"]
Part = Literal["value", "deviation", "teacher", "untrained"]
ATTACK = ("attack",)


@dataclass(frozen=True)
class Column:
    """A column as it is displayed.

    Attributes:
        key: name of its cells in the page's data.
        kind: how its values are formatted and sorted.
        core: shown before a reader selects all columns.
        within: columns whose values are kept apart when rows are sorted by this column.
        tip: its explanation.
        companion: shown together with another column or as a heading, not by itself.
        metric: the metric that it shows, as in the table of attacks; "" for none.
        part: the column of the table of attacks: the mean over seeds, its standard deviation, the same number of the
            unprotected teacher, or of a network with random weights.
    """

    key: str
    label: str
    kind: Kind = "text"
    core: bool = False
    within: tuple[str, ...] = ()
    tip: str = ""
    companion: bool = False
    metric: str = ""
    part: Part = "value"


def columns_of(metric: Metric) -> list[Column]:
    """Return the columns of a metric: its mean, its deviation, and its mean on the unprotected teacher."""
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
            Column(f"{metric.key}_std", label, kind, within=within, companion=True, metric=metric.key, part="deviation")
        )
    if metric.with_teacher:
        key, core = f"teacher_{metric.key}", metric.core and metric.of != "classifier"
        tip = "The same number of the unprotected teacher."
        label = f"{metric.label}, teacher"
        found.append(Column(key, label, kind, core, within, tip, metric=metric.key, part="teacher"))
    return found


_FIRST = [metric for metric in BUILT_IN if not metric.newer]
_LAST = [metric for metric in metrics().values() if metric not in _FIRST]
ALL = (
    Column("tier", "tier", companion=True),
    Column("split", "split", companion=True),
    Column("method", "method", core=True),
    Column("variant", "variant", core=True, tip="The paper's algorithm as printed, made to learn (working), or ours."),
    Column("version", "version", tip="Of the method: raised when the same command gives other numbers."),
    Column("kind", "kind"),
    Column("setting", "setting", core=True, tip="Options that differ from the defaults of the variant and the tier."),
    Column("options", "options", companion=True, tip="The setting as data: group to option to value, as JSON."),
    Column("teacher", "teacher", core=True),
    Column("student", "student"),
    *[column for metric in _FIRST if metric.of == "classifier" for column in columns_of(metric)],
    Column("epsilon_claimed", "ε claimed", "epsilon", True, ("claim_unit",), "By the paper's own theorem."),
    Column("claim_unit", "claimed per", companion=True),
    Column("epsilon_accounted", "ε accounted", "epsilon", True, ("unit",), "Computed from the ledger."),
    Column("unit", "accounted per", companion=True),
    Column("relation", "neighbours"),
    Column("delta", "δ", "number"),
    Column(
        "epsilon_audited", "ε audited ≥", "epsilon", True, metric=LOWER,
        tip="A lower bound per record that an attack measured.",
    ),
    Column(
        "audited_teacher", "on teacher ≥", "epsilon", True, metric=LOWER, part="teacher",
        tip="The audit's bound on the unprotected teacher.",
    ),
    Column(
        "audited_null", "null run ≥", "epsilon", True, metric=LOWER_NULL,
        tip="The audit's bound on a teacher without canaries.",
    ),
    Column(
        "audited_ceiling", "could show", "epsilon", True, metric=LOWER_CEILING,
        tip="The audit's bound if every guess were right.",
    ),
    Column("information", "information ≤", "number", True, tip="Nats that all responses can carry about the data."),
    Column("attack", "attack", core=True),
    Column("attack_variant", "attack variant", core=True, tip="As `variant`, of the attack."),
    Column("access", "access", tip="The access of the attack to the student."),
    Column("power", "power", core=True, tip="Whether the attack works on the unprotected teacher."),
    *[column for metric in (*_FIRST, *_LAST) if metric.of != "classifier" for column in columns_of(metric)],
    Column(
        "random_auc", "AUC, random weights", "number", within=ATTACK, metric="auc", part="untrained",
        tip="The same attack on a network or a released generator with random weights.",
    ),
    Column(
        "memorising_auc", "AUC, memorising generator", "number", within=ATTACK, metric="memorising_auc",
        tip="The same attack on a generator that remembers some of the records, drawn from like the released one.",
    ),
    Column("seeds", "seeds", companion=True),
    Column("failed", "failed", "number"),
    Column("seconds", "time", "seconds", tip="Mean of the runs, all steps."),
    Column("device", "device"),
    Column("flags", "flags", "flags", True, tip="Facts to know before a row is used."),
    Column("runs", "seeds", "runs", True, tip="One run per seed; follow the number."),
)  # fmt: skip
