"""The whole site in a real browser: papers, figures, methods, choosing, comparing; every link, and two widths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, find
from made import parts_of, png, record

from bench import boards
from bench.boards.selection import Constraints, choose, least_epsilon
from bench.report import Sources, render, write
from bench.storage.records import Record

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium: apt-get install chromium")


def some_records() -> list[Record]:
    """Runs on MNIST with published numbers, with and without attack, with and without an accounted epsilon."""
    found = []
    for seed in (0, 1):
        for epsilon, accuracy in ((1.0, 0.6), (10.0, 0.841)):
            made = record(
                "dpsd", seed, accuracy, dataset="mnist", variant="working", budget=epsilon, claim=epsilon,
                accounted=7639.0, options={"budget": {"epsilon": epsilon}} if epsilon == 1 else {},
            )  # fmt: skip
            made.spec["release"]["options"] = {"mode": "data"}
            found.append(made)
    found += [record("dp-merf", seed, 0.7, dataset="mnist", accounted=9.0, claim_unit="example") for seed in (0, 1)]
    found += [record("dp-merf", 0, 0.7, dataset="mnist", accounted=9.0, claim_unit="example", attack="gmi")]
    found += [record("dp-sgd", 0, 0.93, dataset="mnist", accounted=0.999, claim=1.0, claim_unit="example")]
    found += [record("no-defence", 0, 0.99, dataset="mnist", accounted=None, claim="none")]
    found += [record("claims-much", 0, 0.98, dataset="mnist", accounted=5000.0, claim=0.1, claim_unit="example")]
    found += [record("on-digits", 0, 0.5, accounted=2.0), record("failing", dataset="mnist", status="failed")]
    for split, budget, accuracy in (("iid", 10.0, 0.9), ("few", 10.0, 0.8), ("iid", 1.0, 0.7), ("few", 1.0, 0.6)):
        changed = {"budget": {"epsilon": budget}} if budget == 1 else {}
        found += [
            record("rgp", 0, accuracy, dataset="mnist", accounted=None, split=split, budget=budget, options=changed)
        ]
    return sorted(found, key=lambda r: r.hash)


@pytest.fixture(scope="module")
def sources() -> Sources:
    records = some_records()
    pictures = {r.hash: {"synthetic": png()} for r in records if r.spec["release"]["method"] == "dpsd"}
    return Sources(records, pictures=pictures)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, sources: Sources) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write(folder, render(sources))
    return folder / "index.html"


@pytest.fixture(scope="module")
def index(sources: Sources) -> dict[str, Any]:
    return parts_of(sources, None)["index"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    made.open(site.as_uri())
    made.wait("typeof current !== 'undefined' && current === ''")
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """The report; the browser must have had nothing to complain of in the end."""
    browser.trouble.clear()
    go(browser, "#")
    yield browser
    assert browser.trouble == []


def go(page: Browser, place: str) -> None:
    page.ask(f"location.hash = {place!r}")
    page.wait(f"current === {place.removesuffix('#')!r} && !VIEW.hasAttribute('aria-busy')")


def words(page: Browser, finder: str = "#view") -> str:
    return page.ask(f"document.querySelector({finder!r}).innerText")


def places(index: dict[str, Any], sources: Sources) -> list[str]:
    """Every page; of runs two, and of methods without a run the first ones and the last."""
    runs = [r.hash for r in sources.records[:2]]
    found = ["#", "#choose", "#papers", "#methods", "#reported", "#compare", "#compare-" + "-".join(runs)]
    found += [f"#{kind}-{one['name']}" for one in index["datasets"] for kind in ("board", "charts", "images")]
    found += [f"#table-{one['slug']}" for one in index["papers"]["tables"]]
    found += [f"#figure-{one['slug']}" for one in index["papers"]["figures"]]
    idle = [one["name"] for one in index["methods"] if not one["runs"]]
    found += [f"#method-{one['name']}" for one in index["methods"] if one["runs"]]
    return found + [f"#method-{name}" for name in (*idle[:4], idle[-1])] + [f"#run-{run}" for run in runs]


HEALTH = """[document.documentElement.scrollWidth, document.querySelectorAll('main h1').length,
  [...document.querySelectorAll('main a[href]')].map(a => a.getAttribute('href')),
  [...document.querySelectorAll('main table')].filter(t => !t.querySelector('th[scope]')).length,
  [...document.querySelectorAll('main input, main select')].filter(i => !i.labels.length && !i.ariaLabel).length,
  VIEW.innerText]"""


@pytest.mark.thorough
@pytest.mark.parametrize("width", [390, 1400])
def test_every_page_fits_and_its_links_work(page: Browser, index: dict[str, Any], sources: Sources, width: int) -> None:
    page.resize(width, 900, mobile=width < 400)
    known = places(index, sources)
    reachable = {*known, *(f"#run-{r.hash}" for r in sources.records)}
    reachable |= {f"#method-{one['name']}" for one in index["methods"]}
    for place in known:
        go(page, place)
        wide, heads, links, bare, unlabelled, text = page.ask(HEALTH)
        assert wide <= width, f"{place} is {wide} wide"
        assert (heads, bare, unlabelled) == (1, 0, 0), f"{place}: heads, tables without heads, controls without labels"
        assert {link for link in links if not link.startswith("#compare-")} <= reachable, place
        assert "No such" not in text and "could not be shown" not in text, place
        for wrong in ("undefined", "NaN", "[object", "nan"):
            assert wrong not in text.split(), f"{place} says {wrong}"
    page.resize(1280, 900)


@pytest.mark.thorough
def test_unknown_address_shows_no_such_page(page: Browser) -> None:
    for place in ("#board-nothing", "#table-nothing", "#figure-nothing", "#constructor", "#%E0%A4%A"):
        go(page, place)
        assert words(page, "h1") == "No such page", place
    for place, said in (("#run-0123456789abcdef", "No such run"), ("#method-x", "No such method")):
        go(page, place)
        assert words(page, "h1") == said
    go(page, "#")
    assert words(page, "h1").startswith("Private students")


def test_table_cell_shows_counting_line_first(page: Browser) -> None:
    ours = "{ variant: 'working', tier: 'quick', dataset: 'a', run: 'b', accuracy: 0.5, difference: -0.1 }"
    line = f"{{ entry: 0, dataset: 'a', printed: 0.6, ours: {ours}, counts: false, label: 'ε 10' }}"
    script = f"""(line => {{ const cell = document.createElement('td');
      cell.append(...printedCell([line, {{ ...line, counts: true, label: 'ε 1' }}]).filter(Boolean));
      return [...cell.children].map(one => one.textContent); }})({line})"""
    assert page.ask(script) == ["60.00 %", "ε 1: 50.0 % −10.0", "ε 10: 50.0 % −10.0"]  # noqa: RUF001
    go(page, "#table-dp-dfd-table-i")
    assert "celeba-g\nε 1 or 10" in words(page, ".sheet thead")


def test_audit_table_distinguishes_audits(page: Browser) -> None:
    audit = """(dataset, apart) => ({ dataset, apart, method: 'dp-dfd (printed)', setting: '--epsilon 1', ceiling: 3,
      verdict: 'not refuted', powerful: true, reasons: ['one'], lines: [['student', 1, 2, 0, 0.5]] })"""
    heads = f"""(audit => [...auditTable('Audits', [audit('mnist', 'teacher=resnet34'), audit('digits', '')])
      .querySelectorAll('tr.group')].map(row => row.textContent))({audit})"""
    assert page.ask(heads) == [
        "digits: dp-dfd (printed) (--epsilon 1)",
        "mnist: dp-dfd (printed) (--epsilon 1, teacher=resnet34)",
    ]


def test_grid_leaves_out_empty_columns(page: Browser) -> None:
    script = """(table => [[...table.querySelectorAll('th[scope=col]')].map(h => [h.textContent, h.className]),
      table.querySelector('.group th').getAttribute('colspan')])
      (fullGrid('a', ['name', 'none', 'number'], ['head', ['x', '', 1], ['y', [], 0]], [2]))"""
    assert page.ask(script) == [[["name", ""], ["number", "number"]], "2"]
    go(page, "#table-dpsd-table-i")
    assert "printed settings allow" in words(page), "where the settings bound it the column stays"
    go(page, "#table-dpsd-table-iv")
    assert "printed settings allow" not in words(page)


def test_table_page_counts_and_points(page: Browser) -> None:
    go(page, "#table-dgd-text-iv-b-label-query")
    assert "1 accuracy; ours for none." in words(page) and "no data set named" in words(page, ".sheet")
    assert "planned" not in words(page), "what no number of the table is needs no word"
    assert page.ask("points(0.107)") == "+10.7"
    assert page.ask("where({ dataset: 'celeba-g', ours: { dataset: 'celeba-g-subset' } })") == ", on celeba-g-subset"


def test_issues_are_sentences_and_undrawn_figures_named(page: Browser) -> None:
    go(page, "#table-dp-dfd-table-iii")
    assert "Contradictions" not in words(page) and "Doubts about the printed numbers" in words(page)
    assert "marks are damaged in the text at hand" in words(page)
    go(page, "#papers")
    assert "Fig. 4 and Fig. 5 are left out: they show images" in words(page)


def test_method_page_names_claims_and_settings(page: Browser) -> None:
    go(page, "#method-dpsd")
    assert "is on the method's page" not in words(page)
    assert "variant working, mode=data; 4 runs" in words(page) or "variant working; 4 runs" in words(page)
    line = "{ name: 'a (b)', variant: 'b', setting: '', apart: 'teacher=x' }"
    assert page.ask(f"[nameOf({line}), settingOf({line})]") == ["a (b), teacher=x", "b, teacher=x"]


def test_board_groups_sort_tiers_by_size(page: Browser) -> None:
    tiers = "['smoke', 'quick', 'standard', 'paper'].map(tier => ({ tier, split: 'iid' }))"
    assert page.ask(f"grouped({tiers}, null, ['tier', 'split']).map(group => group.base[0])") == [
        *("paper", "standard", "quick", "smoke")
    ]


def test_phone_stacks_tables_with_sentences(page: Browser, sources: Sources) -> None:
    page.resize(390, 844, mobile=True)
    run = next(r.hash for r in sources.records if r.status == "ok")
    for place in ("#", "#papers", "#methods", f"#run-{run}"):
        go(page, place)
        wide = "[...document.querySelectorAll('.stack')].map(box => box.scrollWidth - box.clientWidth)"
        found = page.ask(wide)
        assert found and max(found) <= 0, place
        assert page.ask("getComputedStyle(document.querySelector('.box')).backgroundAttachment").startswith("local")
    epsilon = "document.querySelector('[aria-label=epsilon] tbody td:nth-of-type(2)')"
    assert page.ask(f"getComputedStyle({epsilon}, '::before').content").startswith('"δ')
    page.resize(1280, 900)


def test_verdict_is_under_its_column_header(page: Browser) -> None:
    script = """(table => { VIEW.append(table); const at = e => e.getBoundingClientRect().left;
      const text = document.createRange(); text.selectNodeContents(table.querySelector('td .ours'));
      const found = [at(text), at(table.querySelectorAll('th')[2])];
      table.remove(); return found; })(sentences(['as said', 'ours at chance'].map(verdict =>
        ({ text: 'it rises', dataset: 'mnist', verdict, numbers: '1', line: 'dpsd' }))))"""
    verdict, head = page.ask(script)
    assert verdict - head < 20, "as said, which is shorter than the other verdict, is not at the right"


def test_table_page_shows_difference_and_reason(page: Browser, sources: Sources) -> None:
    go(page, "#table-dpsd-table-i")
    cell = "[...document.querySelectorAll('.sheet tbody tr')].find(r => r.cells[0].textContent === 'dpsd').cells"
    heads = page.ask("[...document.querySelectorAll('.sheet thead th')].map(h => h.innerText.replace('\\n', ' '))")
    at = heads.index("mnist ε 10")
    assert page.ask(f"{cell}[{at}].innerText").split() == ["97.85", "%", "84.1", "%", "−13.8"]  # noqa: RUF001
    assert page.ask(f"{cell}[{at}].querySelector('a').className") == "ours far"
    assert page.ask(f"{cell}[{heads.index('fmnist ε 10')}].innerText").split("\n") == ["90.08 %", "not run"]
    assert page.ask("[...document.querySelectorAll('button.chip')].map(a => a.textContent)").count("information") == 2
    assert "docs/information.md" in words(page, "#reasons")
    page.click("document.querySelector('button.chip')")
    assert page.ask("document.activeElement.id") == "reasons"
    page.click(f"{cell}[{at}].querySelector('a')")
    page.wait("current.startsWith('#run-')")
    assert words(page, "h1").startswith("dpsd on mnist")


def test_figure_page_shows_printed_and_our_points(page: Browser) -> None:
    go(page, "#figure-dpsd-fig-9")
    mnist = "[...document.querySelectorAll('.panel')].find(p => p.textContent.startsWith('mnist'))"
    assert page.ask(f"{mnist}.querySelectorAll('a.point').length") == 2
    assert page.ask(f"{mnist}.querySelectorAll('g.point .hollow').length") == 4
    assert page.ask(f"{mnist}.querySelectorAll('.curve').length") == 2, "ours joined, and print joined"
    page.click(f"{mnist}.querySelector('.legend button')")
    assert page.ask(f"{mnist}.querySelectorAll('.point.dim').length") == 4
    others = "[...document.querySelectorAll('.panel')].filter(p => !p.textContent.startsWith('mnist'))"
    assert page.ask(f"{others}.every(p => !p.querySelector('.dim'))"), "one picture's legend is for that picture"
    page.click(f"{mnist}.querySelector('a.point:not(.dim)')")
    page.wait("current.startsWith('#run-')")
    go(page, "#figure-dpsd-fig-7")
    assert page.ask("document.querySelectorAll('main img').length") == 4


def test_method_page_has_all_sections(page: Browser) -> None:
    go(page, "#methods")
    page.click("document.querySelector('input')")
    page.type("merf")
    assert page.ask("[...document.querySelectorAll('tbody th')].map(t => t.textContent)") == ["dp-merf"]
    page.click("document.querySelector('tbody a')")
    page.wait("current === '#method-dp-merf'")
    text = words(page)
    for line in ("Its claims", "Theorem 1", "Measurements", "Attacks on it", "gmi (printed) 80.0 %", "Run it"):
        assert line in text
    assert "bench run --method dp-merf" in text and "DPSD, Table I" in text
    page.click("document.querySelector('main > * > details summary, #view > details summary')")
    assert "Differs from the paper" in words(page)


def test_method_page_groups_releases_by_split(page: Browser) -> None:
    """With alternating accuracies of two splits, each split has one heading above its rows."""
    go(page, "#method-rgp")
    rows = page.ask("[...document.querySelector('table').rows].slice(1).map(r => r.innerText)")
    told = [text.split("\t")[1].partition(" ")[0] if "\t" in text else text for text in rows]
    assert told == ["mnist, tier quick, split iid", "90.0", "70.0", "mnist, tier quick, split few", "80.0", "60.0"]


def of_the_page(page: Browser, unit: str, epsilon: float, accuracy: float) -> tuple[list[str], list[str], int]:
    script = f"""part('choose').then(lines => {{
      const found = chosen(lines, {{ unit: {unit!r}, epsilon: {epsilon}, accuracy: {accuracy}, dataset: '' }});
      const name = (place, one) => `${{place.join(' ')}} ${{one.name}}`;
      const least = found.taken.map(([place, of]) => name(place, leastEpsilon(of)));
      return [found.taken.flatMap(([place, of]) => of.map(one => name(place, one))), least, found.excluded.length];
    }})"""
    taken, least, excluded = page.ask(script)
    return taken, least, excluded


@pytest.mark.parametrize("unit", ["example", "label", "query"])
@pytest.mark.parametrize("epsilon", [0.5, 0.999, 9.0, 10_000.0])
@pytest.mark.parametrize("accuracy", [0.0, 0.7, 0.95])
def test_page_chooses_like_the_command(
    page: Browser, sources: Sources, unit: str, epsilon: float, accuracy: float
) -> None:
    built = [
        boards.build(record for record in sources.records if boards.dataset(record) == name)
        for name in ("mnist", "digits")
    ]
    wanted = choose(built, Constraints(unit, epsilon, accuracy))
    names = [" ".join([*place, one.name]) for place, found in wanted.taken.items() for one in found]
    least = [" ".join([*place, least_epsilon(found).name]) for place, found in wanted.taken.items()]
    assert of_the_page(page, unit, epsilon, accuracy) == (names, least, len(wanted.excluded))


def test_choose_page_ignores_claimed_epsilon(page: Browser) -> None:
    go(page, "#choose")
    slide = """((index, value) => { const s = document.querySelectorAll('input[type=range]')[index];
      s.value = value; s.dispatchEvent(new Event('input')); })"""
    page.ask(f"{slide}(0, 0.74)")
    page.ask(f"{slide}(1, 0.9)")
    told = page.ask("[...document.querySelectorAll('output')].map(o => o.value)")
    assert told == ["10", "90 %"]
    assert "Take dp-sgd" in words(page) and "claims-much" not in words(page)
    assert "not measured" in words(page) and "no audit" in words(page)
    page.click("document.querySelector('details summary')")
    reasons = page.ask("[...document.querySelectorAll('details tr')].map(r => r.innerText)")
    (much,) = [line for line in reasons if line.startswith("claims-much")]
    assert "claimed 0.1 per example, accounted 5,000" in much
    page.ask(f"{slide}(1, 1)")
    assert "Nothing on the boards" in words(page) and "most accurate within" in words(page)


def test_compare_page_shows_two_runs(page: Browser, sources: Sources) -> None:
    by = {(r.spec["release"]["method"], r.spec["release"]["seed"], r.spec["tier"]): r for r in sources.records}
    first, second = by["no-defence", 0, "quick"], by["dp-sgd", 0, "quick"]
    go(page, f"#compare-{first.hash}")
    assert page.ask("document.querySelectorAll('main table').length") == 0
    page.click("document.querySelectorAll('fieldset input')[1]")
    page.type("dp-sgd")
    options = page.ask("[...document.querySelectorAll('fieldset')[1].querySelectorAll('option')].map(o => o.value)")
    assert options == [second.hash]
    page.ask("(s => { s.value = s.options[0].value; s.dispatchEvent(new Event('change')); })"
             "(document.querySelectorAll('fieldset select')[1])")  # fmt: skip
    page.wait(f"current === '#compare-{first.hash}-{second.hash}'")
    lines = page.ask("[...document.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    told = {line[0]: line[1:] for line in lines}
    assert told["accuracy: student, released"] == ["99.0 % [94.0, 104.0]", "93.0 % [88.0, 98.0]", "−6.0 points", ""]  # noqa: RUF001
    assert told["accounted per example"] == ["∞", "0.999"] and told["release.method"] == ['"no-defence"', '"dp-sgd"']
    assert "cannot be ranked" not in words(page)
    same = page.ask("[...document.querySelectorAll('details tbody tr')].map(r => r.cells[0].textContent)")
    assert same == ["accuracy: teacher", "accuracy: evaluator, which judges reconstructions"]
    other = next(r for r in sources.records if r.spec["release"]["method"] == "on-digits")
    go(page, f"#compare-{first.hash}-{other.hash}")
    assert "These runs differ in data set" in words(page, ".warning")


def test_parts_are_loaded_on_demand(page: Browser, site: Path, sources: Sources) -> None:
    page.open("about:blank")
    page.open(site.as_uri())
    page.wait("typeof current !== 'undefined' && current === ''")
    assert page.ask("Object.keys(REPORT)") == ["index"]
    run = sources.records[0].hash
    go(page, f"#run-{run}")
    assert page.ask("Object.keys(REPORT)") == ["index", f"runs-{run[:2]}"]
