"""Time of `bench report` for many runs, size of its site, and time until its pages are shown.

    python benchmarks/report.py --runs 5000

The runs are the published records, copied with new seeds and budgets. The site is opened from the disk in a
headless Chromium; every page is timed from an empty tab until its content is laid out. The size of a page is the
number of bytes of the files that it loads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _timing import positive, run, spread, table

from bench import boards
from bench.errors import BenchError
from bench.report import Sources, render, write
from bench.report.files import slug
from bench.report.sources import gather
from bench.storage.records import Record

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "report"))
from browser import Browser, find  # noqa: E402  (the tests' driver of Chromium)

WATCH = """
window.shownAt = new Promise((done) => {
  const look = () => {
    const view = document.getElementById("view");
    if (view && view.querySelector("h1") && !view.hasAttribute("aria-busy")) {
      document.body.getBoundingClientRect();
      requestAnimationFrame(() => done(performance.now()));
    } else setTimeout(look, 5);
  };
  look();
});
"""
"""Script that runs before the page's own: milliseconds from navigation until the page is laid out."""


def many(known: Sequence[Record], number: int) -> list[Record]:
    """Return `number` records with the specs and numbers of known ones; three seeds per setting, and new budgets."""
    found = []
    for index in range(number):
        model = known[index // 3 % len(known)]
        spec = json.loads(json.dumps(model.spec))
        budget = round(1.0 + index // (3 * len(known)) + 0.001 * (index // 3 % len(known)), 3)
        for part in [spec["release"], *([spec["attack"]["target"]] if spec["attack"] else [])]:
            part["seed"], part["budget"]["epsilon"] = index % 3, budget
        # Evenly distributed over the first letters, like hashes
        found.append(replace(model, spec=spec, hash=f"{index * 0x9E3779B97F4A7C15 % 2**64:016x}"))
    return sorted(found, key=lambda record: record.hash)


def opened(site: Path, places: Sequence[str], repeats: int) -> list[list[str]]:
    """Return for each page the seconds until it is shown, and the bytes of data that it loaded."""
    if find() is None:
        raise BenchError("no Chromium to open the site with; install it (apt-get install chromium)")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        rows = []
        for place in places:
            times = []
            for _ in range(repeats):
                browser.open("about:blank")
                browser.open((site / "index.html").as_uri() + place)
                times.append(browser.ask("window.shownAt") / 1000)
            loaded = browser.ask("[...document.scripts].map(one => one.getAttribute('src'))")
            size = sum((site / name).stat().st_size for name in loaded) + (site / "index.html").stat().st_size
            rows.append([place or "front page", spread(times), f"{size / 1e3:,.0f}", f"{_elements(browser):,}"])
        assert browser.trouble == [], browser.trouble
        browser.close()
    return rows


def _elements(browser: Browser) -> int:
    return int(browser.ask("document.querySelectorAll('*').length"))


def main() -> None:
    """Make the site, open its pages, print both times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=positive, default=5000)
    parser.add_argument("--repeats", type=positive, default=5)
    given = parser.parse_args()
    published = gather(ROOT / "leaderboards", [])
    records = many(published.records, given.runs)
    sources = Sources(records, published.audits)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        files = render(sources)
        write(Path(folder), files)
        spent = time.perf_counter() - start
        size = sum(map(len, files.values())) / 1e6
        print(f"{len(records)} runs: made in {spent:.1f} s, {len(files)} files, {size:.1f} MB")
        largest = max(
            {boards.dataset(one) for one in records}, key=lambda name: len(files[f"data/board-{slug(name)}.js"])
        )
        places = ["", f"#board-{largest}", f"#charts-{largest}", f"#run-{records[0].hash}", "#choose", "#papers"]
        places += ["#table-dpsd-table-i", "#figure-dpsd-fig-9", "#method-dpsd"]
        places += [f"#compare-{records[0].hash}-{records[1].hash}"]
        print(table(["page", "seconds", "kB loaded", "elements"], opened(Path(folder), places, given.repeats)))


if __name__ == "__main__":
    run(main)
