"""The tables of results in docs/, made from leaderboards/ only.

    python -m docs.tables            # writes the tables
    python -m docs.tables --check    # fails if a table differs from the boards and records

A table is between `<!-- table NAME -->` and `<!-- end -->`. It has a template in docs/templates and a function of the
same name (`TABLES`) that returns the template's values. The releases that a table lists are lines of rows.csv.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.errors import BenchError
from docs.tables import attacked, papers, results, trained
from docs.tables.boards import ROOT
from docs.tables.cells import FILTERS, cell

PLACE = re.compile(r"(<!-- table (\w+) -->\n)(?:(?!<!-- ).*\n)*(<!-- end -->)")
OF = {"cifar10": "cifar10-jpeg", "celeba_g": "celeba-g-subset", "celeba_h": "celeba-h-subset", "lfw": "lfw-crop"}
OF |= {"celeba": "celeba-id-subset", "dp_dfd": "dp-dfd", "fed_dpsd": "fed-dpsd"}
"""Boards and methods of tables, by their name on the pages where it is another one."""
TEMPLATES = Environment(
    loader=FileSystemLoader(ROOT / "docs" / "templates"), undefined=StrictUndefined, finalize=cell,
    trim_blocks=True, lstrip_blocks=True, autoescape=False,
)  # fmt: skip
"""Each value of a template is escaped as a cell by `finalize`."""
TEMPLATES.filters |= {each.__name__: each for each in FILTERS}
TABLES: dict[str, tuple[str, Callable[..., dict[str, object]]]] = {
    "methods": ("measured", partial(results.measured, "methods")),
    "baselines": ("measured", partial(results.measured, "baselines")),
    "inversion": ("inversion", partial(attacked.attacks_on_all, "inversion")),
    "membership": ("membership", partial(attacked.attacks_on_all, "membership")),
    "canaries": ("few", partial(attacked.few, split="canaries")),
    "members": ("few", partial(attacked.few, split="identity")),
    **{
        make.__name__: (make.__name__, make)
        for make in (
            attacked.best, attacked.coverage, attacked.examples, attacked.faces, attacked.few, attacked.released,
            attacked.remembered, attacked.retrieval, attacked.shown, papers.audited, papers.behind, papers.claims,
            papers.compared, papers.errors, papers.excluded, papers.found, papers.issues, papers.said, papers.seen,
            results.ablations, results.classifiers, results.federations, results.headlines, results.larger,
            results.noiseless, results.results, results.students, results.votes, trained.demo, trained.teachers,
        )
    },
}  # fmt: skip
"""First word of a table's name -> its template in docs/templates, and the function that makes its values. The rest of
the name is the function's argument."""
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def table(name: str) -> str:
    """Return a table by its name on the pages, such as few_digits. Raises BenchError for an unknown name."""
    kind, _, of = name.partition("_")
    if kind not in TABLES:
        raise BenchError(f"table {name}: no such table; expected a name that begins with {', '.join(sorted(TABLES))}")
    template, make = TABLES[kind]
    rows = make(OF.get(of, of)) if of else make()
    return TEMPLATES.get_template(f"{template}.j2").render(rows).strip("\n")


def rewritten(page: Path) -> str:
    """Return the text of a page with new tables."""
    return PLACE.sub(lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", page.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Write or check all pages; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page would change")
    given = parser.parse_args(arguments)
    try:
        pages = {page: rewritten(page) for page in PAGES}
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stale = {page: text for page, text in pages.items() if text != page.read_text(encoding="utf-8")}
    for page, text in stale.items():
        if given.check:
            message = "a table differs from the boards; run python -m docs.tables"
            print(f"{page.relative_to(ROOT)}: {message}", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
