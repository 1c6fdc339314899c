"""The report in a real browser, opened from the disk: boards, runs, images; colours, keyboard, a phone's width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find
from made import NASTY, png, record

from bench.papers.printed_numbers import read_row
from bench.report import Sources, command, render, write
from bench.storage.records import Record

PICK = "((select, value) => { select.value = value; select.dispatchEvent(new Event('change')); })"
pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium: apt-get install chromium")


def some_records() -> list[Record]:
    """Records for every corner of the page."""
    found = [record("dpsd", seed, 0.7 + seed / 100, attack="gmi", accounted=7639.0) for seed in (0, 1, 2)]
    found += [record("dpsd", 0, 0.6, budget=1.0, claim=1.0, accounted=800.0, options={"budget": {"epsilon": 1.0}})]
    found += [record("dgd", 0, 0.9, claim=9.5, claim_unit="example", accounted=None)]
    found += [record("pate", 0, 0.05, claim="none", accounted=2.5), record("failing", status="failed")]
    found += [record("weak", 0, 0.8, attack="gmi", status="inconclusive", success=0.3, accounted=12000.0)]
    found += [
        record("toy", 0, 0.99, tier="smoke", claim=0.1),
        record("bad", 0, 0.5, options={"method": {NASTY: 1}}, claim=100.0),
    ]
    found += [record("dpsd", 0, 0.4, dataset="npz-a:b/c d")]
    return sorted(found, key=lambda r: r.hash)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = some_records()
    pictures = {r.hash: {"synthetic": png()} for r in records if r.spec["release"]["method"] == "dgd"}
    row = {"paper": "dpsd", "table": "Table I", "dataset": "digits", "method": "dpsd", "kind": "generator", "note": ""}
    row |= {"unit_claimed": "data", "epsilon": "10", "delta": "1e-5", "metric": "accuracy", "value": "0.97"}
    row |= {"setting": "", "issue": ""}
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.papers.section.load", lambda: (read_row(row), read_row(row | {"epsilon": "9"})))
        write(folder, render(Sources(records, pictures=pictures)))
    return folder / "index.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser, site: Path) -> Iterator[Browser]:
    """The report, just loaded; the browser must have had nothing to complain of in the end."""
    browser.trouble.clear()
    browser.open("about:blank")
    browser.open(site.as_uri())
    browser.wait("typeof current !== 'undefined' && current === ''")
    yield browser
    assert browser.trouble == []


def go(page: Browser, place: str) -> None:
    page.ask(f"location.hash = {place!r}")
    page.wait(f"current === {place.removesuffix('#')!r}")


def column(page: Browser, key: str) -> list[list[str]]:
    """Return the cells of a board's column, a list for each group of rows, top to bottom."""
    script = """(key => {
    const at = [...document.querySelectorAll('thead button')].findIndex(b => b.dataset.column === key);
    return [...document.querySelectorAll('table.board tbody')].map(body =>
      [...body.querySelectorAll('tr:not(.group)')].map(row => row.cells[at].textContent)); })"""
    return page.ask(f"{script}({key!r})")


def groups(page: Browser) -> list[str]:
    return page.ask("[...document.querySelectorAll('tr.group')].map(row => row.textContent)")


def sort_by(page: Browser, key: str) -> str:
    """Click a head with the mouse; returns the order that the page then names to a screen reader."""
    page.click(f"[...document.querySelectorAll('thead button')].find(b => b.dataset.column === {key!r})")
    return page.ask("document.querySelector('th[aria-sort]').getAttribute('aria-sort')")


def numbers(cells: list[str]) -> list[float]:
    """The first number of each cell, ∞ included; empty cells are NaN-free negatives, so that they stand out."""
    found = [re.match(r"∞|[\d.,]+", cell) for cell in cells]
    return [-1.0 if m is None else float("inf") if m[0] == "∞" else float(m[0].replace(",", "")) for m in found]


def test_front_page_names_data_sets(page: Browser) -> None:
    text = page.ask("document.getElementById('view').innerText")
    assert "digits" in text and "npz-a:b/c d" in text and "no attack" in text
    assert page.ask("document.title").startswith("Private students")
    unit, line = page.ask("[...document.querySelectorAll('section tbody tr')].map(row => row.innerText)")[2:]
    assert unit.split(",")[0] == "per example"
    assert line.split("\t")[:3] == ["pate (printed)", "5.0 %", "2.5"], "no other small epsilon is proved"
    page.click("document.querySelector('section tbody a[href^=\"#run-\"]')")
    page.wait("current.startsWith('#run-')")
    assert "pate" in page.ask("document.querySelector('h1').innerText")


def test_board_sorts_numbers_within_tiers_and_units(page: Browser) -> None:
    go(page, "#board-digits")
    assert groups(page)[0].startswith("tier quick") and "mean nothing" in groups(page)[1]
    assert sort_by(page, "accuracy_mean") == "ascending"
    quick, smoke = (numbers(cells) for cells in column(page, "accuracy_mean"))
    assert quick == [5.0, 50.0, 60.0, 71.0, 80.0, 90.0, -1.0] and smoke == [99.0]
    assert sort_by(page, "accuracy_mean") == "descending"
    assert numbers(column(page, "accuracy_mean")[0]) == [90.0, 80.0, 71.0, 60.0, 50.0, 5.0, -1.0]
    assert sort_by(page, "epsilon_accounted") == "ascending"
    assert [numbers(cells) for cells in column(page, "epsilon_accounted")] == [
        [2.5, 800.0, 7639.0, 12000.0, float("inf"), float("inf")],
        [-1.0],
        [float("inf")],
    ]
    sort_by(page, "epsilon_claimed")
    assert [name.split(" · ")[1] for name in groups(page) if "per " in name] == [
        "per example",
        "per query",
        "per query",
    ]
    assert [numbers(cells) for cells in column(page, "epsilon_claimed")][:2] == [[9.5], [1.0, 10.0, 10.0, 100.0]]


def test_keyboard_sorts_and_keeps_focus(page: Browser) -> None:
    go(page, "#board-digits")
    page.ask("document.querySelector('thead button[data-column=method]').focus()")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13)
    assert page.ask("document.activeElement.dataset.column") == "method"
    assert page.ask("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"


def test_board_filters_rows(page: Browser) -> None:
    go(page, "#board-digits")
    page.click("document.getElementById('words')")
    page.type("GMI dp")
    assert column(page, "method") == [["dpsd"]]
    assert page.ask("document.getElementById('count').textContent").startswith("1 of 8 rows")
    go(page, "#")
    go(page, "#board-digits")
    assert page.ask("document.getElementById('words').value") == "GMI dp"
    pick = """((label, value) => { const select = [...document.querySelectorAll('.controls label')].find(
      one => one.firstChild.textContent === label).querySelector('select');
      select.value = value; select.dispatchEvent(new Event('change')); })"""
    page.ask("(i => { i.value = ''; i.dispatchEvent(new Event('input')); })(document.getElementById('words'))")
    page.ask(f"{pick}('claimed per', 'example')")
    assert column(page, "method") == [["dgd"]]
    page.ask(f"{pick}('claimed per', '')")
    page.ask(f"{pick}('tier', 'smoke')")
    assert column(page, "method") == [["toy"]]


def test_data_set_picker_opens_another_board(page: Browser) -> None:
    go(page, "#board-digits")
    page.ask(
        "(s => { s.value = 'npz-a:b/c d'; s.dispatchEvent(new Event('change')); })(document.getElementById('dataset'))"
    )
    page.wait("document.querySelector('h1').textContent === 'npz-a:b/c d: board'")
    assert column(page, "method") == [["dpsd"]]


def test_board_row_links_to_its_run(page: Browser) -> None:
    go(page, "#board-digits")
    wanted = next(r for r in some_records() if r.spec["attack"] and r.spec["release"]["seed"] == 1)
    page.click(f"document.querySelector('td a[href=\"#run-{wanted.hash}\"]')")
    page.wait(f"current === '#run-{wanted.hash}'")
    text = page.ask("document.getElementById('view').innerText")
    for told in ("dpsd on digits, seed 1", "Theorem 1", "7,639", "35.7", "Gaussian(noise_multiplier 2)", "71.00 %"):
        assert told in text
    assert "[66.0, 76.0]" in text and "claim!=accounted" in text and "cpu (2 threads)" in text
    assert page.ask("document.getElementById('command').textContent") == command(wanted)
    assert page.ask("JSON.parse([...document.querySelectorAll('details pre')][0].textContent)") == wanted.spec
    page.ask("history.back()")
    page.wait("current === '#board-digits'")


def by_method(name: str) -> str:
    return next(r.hash for r in some_records() if r.spec["release"]["method"] == name)


def test_run_page_marks_smoke_failed_and_unknown_runs(page: Browser) -> None:
    go(page, f"#run-{by_method('toy')}")
    assert "numbers mean nothing" in page.ask("document.querySelector('.smoke').textContent")
    assert "Not known: the ledger does not speak of private records." in page.ask("VIEW.innerText")
    go(page, f"#run-{by_method('failing')}")
    assert "a reason" in page.ask("document.querySelector('.bad').textContent")
    go(page, f"#run-{by_method('weak')}")
    assert "did not prove its power" in page.ask("document.querySelector('.warning').textContent")
    go(page, "#run-nothing")
    assert page.ask("document.querySelector('h1').textContent") == "No such run"


def test_run_name_shows_distinguishing_fields(page: Browser) -> None:
    made = "runName(['hash', 'digits', 'dpsd (working)', 'beta=0.1', 'quick', 0, '', 0.5, 'teacher=resnet34'])"
    assert page.ask(made) == "digits · dpsd (working) · seed 0 · beta=0.1 · teacher=resnet34 · quick · 50.0 %"


def test_page_draws_pictures(page: Browser) -> None:
    for place in ("#images-digits", f"#run-{by_method('dgd')}"):
        go(page, place)
        page.wait("document.querySelector('img').complete")
        page.wait("document.querySelector('img').naturalWidth > 0")
        assert page.ask("document.querySelector('img').naturalWidth") == 4
        assert page.ask("document.querySelector('img').alt").startswith("synthetic")


def test_chart_points_link_to_runs_and_legend_highlights(page: Browser) -> None:
    go(page, "#charts-digits")
    titles = page.ask("[...document.querySelectorAll('.charts figcaption strong')].map(t => t.textContent)")
    assert "claimed by the paper, per query" in titles and "accounted: what can be proved, per example" in titles
    assert "gmi" in titles and "as printed, per data" in titles
    page.click("document.querySelector('.charts .legend button')")
    assert page.ask("document.querySelectorAll('.panel .point.dim').length") > 0
    page.click("[...document.querySelectorAll('.charts a.point')].find(a => !a.matches('.dim'))")
    page.wait("location.hash.startsWith('#run-') && current.startsWith('#run-')")


def test_page_shows_record_text_as_text(page: Browser) -> None:
    go(page, f"#run-{by_method('bad')}")
    assert NASTY in page.ask("document.querySelector('dl').innerText")
    assert page.ask("document.querySelectorAll('main img, main script').length") == 0
    go(page, "#board-digits")
    assert page.ask("document.querySelectorAll('main img').length") == 0


def test_reported_numbers_sort_within_a_unit(page: Browser) -> None:
    go(page, "#reported")
    page.click("document.querySelector('thead button[data-column=epsilon]')")
    assert groups(page) == ["per data"]
    assert page.ask("[...document.querySelectorAll('tbody tr:not(.group)')].map(r => r.cells[6].textContent)") == [
        *("9", "10")
    ]


def test_phone_shows_accuracy_and_epsilon_of_best_releases(page: Browser) -> None:
    page.resize(390, 844, mobile=True)
    go(page, "#")
    best = "document.querySelector('section tbody a[href^=\\'#run-\\']')"
    page.ask(f"{best}.textContent = 'dpsd teachers=40 epsilon=8.0 account=accounted'")
    cells = f"[...{best}.closest('table').querySelectorAll('tbody tr:not(.group)')].map(row => row.cells[2])"
    edges = page.ask(f"{cells}.map(cell => cell.getBoundingClientRect().right)")
    assert edges and max(edges) <= 390
    page.resize(1280, 900)


def brightness(page: Browser, property_: str) -> float:
    colour: Any = page.ask(f"getComputedStyle(document.body).{property_}.match(/[0-9]+/g).map(Number)")
    return sum(colour[:3]) / 3


def is_dark(page: Browser) -> bool:
    back, text = brightness(page, "backgroundColor"), brightness(page, "color")
    assert (back > 200 > 100 > text) or (back < 60 < 180 < text)
    return back < text


def test_theme_follows_system_and_switch(page: Browser) -> None:
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    assert not is_dark(page)
    page.call("Emulation.setEmulatedMedia", features=[scheme])
    assert is_dark(page)
    page.ask(f"{PICK}(document.getElementById('theme'), 'light')")
    assert not is_dark(page)
    page.call("Emulation.setEmulatedMedia", features=[scheme | {"value": "light"}])
    page.ask(f"{PICK}(document.getElementById('theme'), 'dark')")
    assert is_dark(page)
    page.ask(f"{PICK}(document.getElementById('theme'), '')")
    assert not is_dark(page)


def test_theme_choice_is_kept(page: Browser, site: Path) -> None:
    page.ask(f"{PICK}(document.getElementById('theme'), 'dark')")
    page.open("about:blank")
    page.open(site.as_uri())
    page.wait("typeof current !== 'undefined' && current === ''")
    assert is_dark(page) and page.ask("document.getElementById('theme').value") == "dark"
    page.ask(f"{PICK}(document.getElementById('theme'), '')")


def test_long_board_shows_first_rows_until_button(page: Browser) -> None:
    go(page, "#board-digits")
    page.ask("""(rows => { for (let i = 0; i < 300; i++) rows.push({ ...rows[0], method: `m${i}` }); })(
      REPORT['board-digits'].rows)""")
    go(page, "#")
    go(page, "#board-digits")
    assert page.ask("document.querySelectorAll('.board tbody tr:not(.group)').length") == 100
    page.click("[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('show all 308'))")
    assert page.ask("document.querySelectorAll('.board tbody tr:not(.group)').length") == 308


def test_missing_part_is_reported(page: Browser, site: Path) -> None:
    lost = site.parent / "data" / "choose.js"
    kept = lost.read_bytes()
    lost.unlink()
    go(page, "#choose")
    assert "data/choose.js could not be loaded" in page.ask("document.querySelector('.bad').textContent")
    assert len(page.trouble) == 1 and "ERR_FILE_NOT_FOUND" in page.trouble.pop()
    lost.write_bytes(kept)
    go(page, "#")
    go(page, "#choose")
    assert page.ask("document.querySelector('h1').textContent") == "What should I release?"
