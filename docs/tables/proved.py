"""Tables of what is claimed, proved, audited and possible."""

from __future__ import annotations

from collections import Counter

from bench.papers import information, printed_numbers
from bench.papers.results import read_results
from bench.papers.tables import read_tables
from docs.tables.boards import board, older, published, release
from docs.tables.cells import accounted, claimed, printed, sized, table, with_seeds
from docs.tables.lines import FINDINGS


def audited(name: str) -> str:
    """What audits of whole releases measured, beside what the releases promise for one private record."""
    rows, kinds = [], {}
    for row in sorted(board(name), key=lambda row: (not older(row), len(row["seeds"].split()))):
        if row["epsilon_audited"]:
            kinds[row["method"], row["variant"], sized(row)] = row
    for (method, variant, _), row in sorted(kinds.items()):
        found = [row[key] for key in ("epsilon_audited", "audited_teacher", "audited_null", "audited_ceiling")]
        rows.append([
            f"`{method}`" + (", older version" if older(row) else ""), variant, sized(row), claimed(row),
            accounted(row), *(f"{float(value):.2f}" for value in found),
        ])  # fmt: skip
    bounds = ["student, at least", "undefended teacher", "null run", "ceiling"]
    return table(["name", "variant", "options", "claimed", "accounted", *bounds], rows)


def excluded() -> str:
    """The printed accuracies that need more than the settings printed beside them let through; a sentence that repeats
    a table is left out."""
    rows = []
    for entry in printed_numbers.load():
        if information.exceeds(entry) and not entry.table.startswith("text"):
            rows.append([
                entry.source, entry.dataset, f"{entry.epsilon:g}", entry.ablation, entry.printed,
                f"{information.allowed(entry):.3f}", f"{information.least(entry):.1f}",
                f"{information.carried(entry):.2f}",
            ])  # fmt: skip
    heads = ["where", "data set", "epsilon", "ablation", "printed accuracy", "possible at most"]
    return table([*heads, "nats needed, at least", "nats carried, at most"], rows)


def found(finding: str) -> str:
    """What docs/findings.md sets side by side: print, and what was measured, claimed and proved here."""
    rows = []
    for line in FINDINGS[finding]:
        networks = {} if line.teacher is None else {"teacher": line.teacher}
        row = release("mnist", line.method, line.options, line.variant, **networks)
        if row is None:
            raise KeyError(f"{finding}: {line.label} is on no board")
        rows.append([line.label, printed(row), with_seeds(row), claimed(row), accounted(row)])
    heads = ["on MNIST", "the paper prints", "here", "claimed", "proved, per private record"]
    if not any(row[1] for row in rows):  # a figure whose points are not printed
        heads, rows = [heads[0], *heads[2:]], [[row[0], *row[2:]] for row in rows]
    return table(heads, rows)


def compared() -> str:
    """Of each table of the papers, and of their sentences: how many numbers have one of ours beside them."""
    lines: dict[str, list[int]] = {}
    codes: dict[str, Counter[str]] = {}
    for each in (found.to_json() for found in read_tables(read_results(published()), {})):
        name = each["table"] if each["table"].startswith("Table") else "sentences"
        key = f"`{each['paper']}` {name}"
        counts = [each["cells"], each["ours"], each["within"]]
        lines[key] = [sum(pair) for pair in zip(lines.get(key, [0, 0, 0]), counts, strict=True)]
        counting = [line["ours"] for line in each["lines"] if line["counts"]]
        codes.setdefault(key, Counter()).update(ours["reason"][0] for ours in counting if ours["reason"])
    lines["all"] = [sum(counts) for counts in zip(*lines.values(), strict=True)]
    codes["all"] = sum(codes.values(), Counter())
    heads = ["", "prints accuracies", "ours for", "within two points or better", "reasons of the others"]
    said = {key: ", ".join(f"`{code}` {n}" for code, n in each.most_common()) for key, each in codes.items()}
    return table(heads, [[key, *map(str, counts), said[key]] for key, counts in lines.items()])


def issues() -> str:
    """How many of the papers' printed numbers a contradiction touches, by paper."""
    entries = printed_numbers.load()
    papers = list(dict.fromkeys(entry.paper for entry in entries))
    slugs = sorted({slug for entry in entries for slug in entry.issues})
    counts = [[slug, *(sum(slug in e.issues for e in entries if e.paper == p) for p in papers)] for slug in slugs]
    touched = [sum(bool(entry.issues) for entry in entries if entry.paper == paper) for paper in papers]
    every = [sum(entry.paper == paper for entry in entries) for paper in papers]
    lines = [[f"`{slug}`", *(str(count or "") for count in of)] for slug, *of in counts]
    ends = [["touched by any", *map(str, touched)], ["all that are in the file", *map(str, every)]]
    return table(["issue", *(f"`{paper}`" for paper in papers)], [*lines, *ends])
