"""The committed boards and records, as the tables of docs/ look for rows in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import mean, stdev

from bench import boards, registry
from bench.boards import board_files
from bench.boards.board_cells import options
from bench.config import STUDENT
from bench.papers.matching import join
from bench.storage.options import Changed
from bench.storage.records import Record
from docs.tables.lines import filled

NETWORKS = ("tier", "teacher", "student")
"""Columns that tell apart releases of the same options."""
DRAWN = {"float32-noise", "account-mended"}
"""Flags of rows that are not of the same release, whatever else they share."""
TEACHERS = {"quick": "resnet18", "standard": "resnet18", "paper": "resnet34"}
"""What the tables' teachers are where nothing is said, by tier."""
ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, str]


@cache
def board(name: str, split: str = "iid") -> list[Row]:
    """The releases of a committed board and a split; reference images are none."""
    rows = [row for row in published() if (row["dataset"], row["split"]) == (name, split)]
    return [row for row in rows if row["kind"] != "reference"]


@cache
def published() -> list[Row]:
    """All rows of all committed boards, each with the published number next to it (`bench.papers.matching.join`)."""
    rows = board_files.boards(ROOT / "leaderboards")
    return [row | {name: "" if cell is None else str(cell) for name, cell in join(row).items()} for row in rows]


@cache
def records() -> dict[str, Record]:
    """Every committed record by its hash."""
    return {r.hash: r for r in boards.read((ROOT / "leaderboards" / "records").glob("*.json"))}


def names(kind: str, folder: str) -> list[str]:
    """What the registry has of a kind in a folder, by name."""
    return list(registry.entries(kind, folder))


def attacks(goal: str) -> list[str]:
    """The attacks with a goal, by name."""
    return [name for name in registry.entries("attack") if registry.load("attack", name).goal == goal]


def of(name: str, method: str, options: Changed | None, variant: str | None = None) -> list[Row]:
    """The rows of a board with a method, exactly these options of its own, and a variant, or any."""
    rows = [row for row in board(name) if row["method"] == method and variant in (None, row["variant"])]
    return [row for row in rows if own(row) == options]


def own(row: Row) -> Changed:
    """The options of a row but the attack's."""
    return filled(options(row["options"]) | {"attack": {}, "evaluator": {}})


def release(
    name: str,
    method: str,
    options: Changed | None,
    variant: str | None = None,
    attack: str = "",
    **networks: str,
) -> Row | None:
    """The usual row of a release and its other seeds; None if it was not run.

    Args:
        attack: of rows alike in all else that with this attack is taken; by default one without any, as where the
            boards are compared with print (`most_measured`).
        networks: of NETWORKS those that are asked for.

    Of several rows the first by: the default variant, the present version, a true account, the usual student, the usual
    teacher, most seeds, tier quick, the attack.
    """
    usual = registry.variants("method", method)[-1]

    def preference(row: Row) -> tuple[bool, bool, bool, bool, bool, int, bool, bool]:
        seeds, newest, true = len(row["seeds"].split()), not older(row), DRAWN.isdisjoint(row["flags"].split())
        student = row["student"] == STUDENT
        teacher = "teacher" in networks or row["teacher"] == TEACHERS.get(row["tier"])
        is_quick, is_asked = row["tier"] == "quick", row["attack"] == attack
        return row["variant"] == usual, newest, true, student, teacher, seeds, is_quick, is_asked

    rows = of(name, method, options, variant)
    found = [row for row in rows if all(row[key] == value for key, value in networks.items())]
    best = max(found, key=preference, default=None)
    if best is None:
        return None
    same = (*NETWORKS, "variant", "version", "split", "delta")
    others = [row for row in found if row is not best and all(row[key] == best[key] for key in same)]
    return _joined(best, others) if others else best


def _joined(best: Row, others: list[Row]) -> Row:
    """A row with the seeds of others of the same release that it lacks: what was attacked with some seeds alone."""
    runs = {records()[each].spec["release"]["seed"]: each for each in best["runs"].split()}
    for other in others:
        if DRAWN & set(other["flags"].split()) == DRAWN & set(best["flags"].split()):
            runs = {records()[each].spec["release"]["seed"]: each for each in other["runs"].split()} | runs
    if len(runs) == len(best["seeds"].split()):
        return best
    found = [records()[runs[seed]].metrics["accuracy"] for seed in sorted(runs)]
    if None in found:
        raise ValueError(f"a run of {best['runs']} has no accuracy; expected one of each seed")
    joined = {"accuracy_mean": f"{mean(found):.6f}", "accuracy_std": f"{stdev(found):.6f}"}
    joined |= {"seeds": " ".join(map(str, sorted(runs))), "runs": " ".join(runs[seed] for seed in sorted(runs))}
    return best | joined


def older(row: Row) -> bool:
    """Whether the method or the attack has changed since."""
    return "older-version" in row["flags"].split()


def marked(row: Row) -> str:
    """ ", older version" where the method has changed since, whatever became of the attack; else nothing."""
    today = registry.describe("method", row["method"], row["variant"]).facts["version"]
    made = min(records()[each].spec["release"]["version"] for each in row["runs"].split())
    return ", older version" if made < today else ""
