"""The tables of results in docs/, from leaderboards/ and from nothing else.

    python -m docs.tables            # writes them again
    python -m docs.tables --check    # fails if one of them is not what the boards and records say

A table stands between `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs.tables.attacked import examples, faces, few, floors, inversion, membership, released, remembered, shown
from docs.tables.boards import ROOT
from docs.tables.demo import demo
from docs.tables.errors import errors
from docs.tables.federations import federations
from docs.tables.lines import FINDINGS
from docs.tables.proved import audited, compared, excluded, found, issues
from docs.tables.results import ablations, classifiers, headlines, larger, measured, noiseless, results, students, votes
from docs.tables.said import said
from docs.tables.seen import seen
from docs.tables.teachers import teachers

PLACE = re.compile(r"(<!-- table (\w+) -->\n)(?:(?!<!-- ).*\n)*(<!-- end -->)")
COLOUR = {"cifar10": "cifar10-jpeg", "celeba_g": "celeba-g-subset", "celeba_h": "celeba-h-subset"}
"""Tables of data sets in colour: their names on the pages, and the boards'."""
FEDERATED = {"mnist": "mnist", "fmnist": "fmnist", "cifar10": "cifar10-jpeg"}
TABLES: dict[str, Callable[[], str]] = {
    **{f"results_{name}": partial(results, name) for name in ("digits", "mnist")},
    **{f"methods_{name}": partial(measured, "methods", name) for name in ("digits", "mnist", "fmnist")},
    **{f"methods_{name}": partial(measured, "methods", board) for name, board in COLOUR.items()},
    **{f"baselines_{name}": partial(measured, "baselines", name) for name in ("digits", "mnist", "fmnist")},
    **{f"baselines_{name}": partial(measured, "baselines", board) for name, board in COLOUR.items()},
    **{f"inversion_{name}": partial(inversion, name) for name in ("digits", "mnist")},
    "noiseless_mnist": partial(noiseless, "baselines", "mnist"),
    "membership_digits": partial(membership, "digits"),
    **{f"audited_{name}": partial(audited, name) for name in ("digits", "mnist")},
    **{f"few_{name}": partial(few, name) for name in ("digits", "mnist", "fmnist")},
    "remembered_cifar10": partial(remembered, "cifar10-jpeg"),
    "excluded": excluded,
    "headlines": partial(headlines, "mnist"),
    "larger": larger,
    **{f"found_{name}": partial(found, name) for name in FINDINGS},
    **{f"canaries_{name}": partial(few, name, "canaries") for name in ("digits", "mnist")},
    "found_members": partial(few, "fmnist"),
    "members_lfw": partial(few, "lfw-crop", "identity"),
    "shown": shown,
    "examples": examples,
    "votes": votes,
    "compared": compared,
    "issues": issues,
    "demo": demo,
    "errors": errors,
    "floors_digits": partial(floors, "digits"),
    "faces_lfw": partial(faces, "lfw-crop"),
    "faces_celeba": partial(faces, "celeba-id-subset"),
    "released_digits": partial(released, "digits"),
    "classifiers": classifiers,
    "students": students,
    "teachers": teachers,
    "seen": seen,
    "said": said,
    **{f"federations_{name}": partial(federations, board) for name, board in FEDERATED.items()},
    "ablations_dpsd": partial(ablations, "dpsd"),
    "ablations_dp_dfd": partial(ablations, "dp-dfd"),
    "ablations_dgd": partial(ablations, "dgd"),
    "ablations_dpdfd": partial(ablations, "dpdfd"),
    "ablations_fed_dpsd": partial(ablations, "fed-dpsd"),
}
DATA_PAGES = (
    "results",
    "methods",
    "baselines",
    "attacks",
    "audits",
    "information",
    "findings",
    "true-epsilon",
    "data",
    "papers",
    "errors",
    "tutorial",
)
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in DATA_PAGES))


def rewritten(page: Path) -> str:
    """A page with its tables made again."""
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Write or check all pages. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page would change")
    given = parser.parse_args(arguments)
    stale = [page for page in PAGES if rewritten(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        if given.check:
            print(
                f"{page.relative_to(ROOT)}: a table is not what the boards say; python -m docs.tables", file=sys.stderr
            )
        else:
            page.write_text(rewritten(page), encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
