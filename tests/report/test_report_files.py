"""The files of a report: writing, clean-up, and that no text from records becomes markup."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made import NASTY, parts_of, png, record, value_of

from bench.errors import BenchError
from bench.papers.printed_numbers import COLUMNS, read_row
from bench.report import Sources, render
from bench.report.files import plain_data, script, slug
from bench.report.files import write as save
from bench.report.site import build_content, parts


def test_write_refuses_a_folder_of_other_files(tmp_path: Path) -> None:
    mine = tmp_path / "site"
    save(mine, {"index.html": b"<title>dp-distill-bench report</title>", "web/a.js": b"1"})
    save(mine, {"index.html": b"<title>dp-distill-bench report</title> again"})
    assert (mine / "index.html").read_bytes().endswith(b"again")
    for name, content in (("index.html", b"my own page"), ("MANIFEST.json", b"{}")):
        theirs = tmp_path / name
        theirs.mkdir()
        (theirs / name).write_bytes(content)
        with pytest.raises(BenchError, match=name):
            save(theirs, {"index.html": b"new"})
        assert [path.name for path in theirs.iterdir()] == [name] and (theirs / name).read_bytes() == content


def test_interrupted_report_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"data/a.js": script("a", 1), "index.html": b"<title>dp-distill-bench report</title>"}
    write_bytes = Path.write_bytes

    def until_the_data(path: Path, content: bytes) -> int:
        if path.suffix == ".js":
            raise KeyboardInterrupt
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", until_the_data)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, files)
    monkeypatch.undo()
    save(tmp_path, files)
    assert (tmp_path / "data" / "a.js").read_bytes() == files["data/a.js"]


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_text_of_records_is_never_markup() -> None:
    bad = [
        record(NASTY, attack=NASTY, options={"method": {NASTY: NASTY}}, dataset=NASTY),
        record(options={"attack": {'"><script>': "alert(1)</script>"}}),
    ]
    reported = [dict.fromkeys(COLUMNS, "")]
    reported[0] |= {"paper": NASTY, "method": NASTY, "dataset": "digits", "unit_claimed": NASTY, "kind": NASTY}
    reported[0] |= {"epsilon": "1", "metric": "accuracy", "value": "0.5", "note": NASTY}
    found = parts_of(Sources(bad), [read_row(each) for each in reported])
    drawn = [value for part in found.values() if isinstance(part, dict) for value in marked(part)]
    assert "&lt;/script&gt;" in "".join(drawn), "it is shown, as text"
    for markup in drawn:
        names = [name for name, _ in Elements(markup).found]
        assert "script" not in names and "img" not in names
        assert not active(markup)
    assert found[f"runs-{bad[0].hash[:2]}"][bad[0].hash]["setting"] == f"{NASTY}={NASTY}"


def active(markup: str) -> list[str]:
    """Attributes that a page's policy would have to refuse."""
    return [key for _, pairs in Elements(markup).found for key in pairs if key.startswith("on") or key == "style"]


def marked(part: dict[str, Any]) -> list[str]:
    """Return the markup in a part: content that the page does not write as text."""
    return [part[key] for key in ("markup", "chart") if part.get(key)]


def test_page_loads_only_its_own_files() -> None:
    files = render(Sources([record()]))
    page = files["index.html"].decode()
    assert "default-src 'none'" in page
    named = [
        pairs.get("src") or pairs.get("href") for name, pairs in Elements(page).found if name in ("script", "link")
    ]
    assert named and all(name == "data:," or name in files for name in named)
    for name, content in files.items():
        if name.startswith("web/") or name == "index.html":
            assert not re.search(rb"https?://|//cdn|@import|url\(|fetch\(|eval\(", content), name
    assert not active(page)


@pytest.mark.parametrize("text", [NASTY, "it's \\ 'quoted' \\'", "\u2028\n\x00", "');alert(1)//", "</script>"])
def test_script_holds_any_text(text: str) -> None:
    content = script("a", {"__proto__": text, text: [1, None]})
    assert value_of(content) == plain_data({"__proto__": text, text: [1, None]})
    assert content.count(b"\n") == 1, "one line: no text ends its string"


def test_script_writes_infinity_as_text() -> None:
    assert value_of(script("a", {"epsilon": [math.inf, 1.5]})) == {"epsilon": ["inf", 1.5]}


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_script_refuses_other_numbers(number: float) -> None:
    with pytest.raises(ValueError):
        script("a", number)


def test_slugs_are_safe_and_differ() -> None:
    names = ["digits", "npz-a:b/c d", "npz-a b c d", "../../etc", "", "Digits", NASTY]
    slugs = [slug(name) for name in names]
    assert slugs[0] == "digits" and len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in slugs)


def test_write_removes_only_an_earlier_report(tmp_path: Path) -> None:
    page = b"<title>dp-distill-bench report</title>"
    save(tmp_path, {"index.html": page, "data/old.js": script("old", 1), f"pictures/{'a' * 16}.png": png()})
    (tmp_path / "data" / "mine.js").write_text("my own")
    (tmp_path / "pictures" / "holiday.png").write_bytes(png())
    save(tmp_path, {"index.html": b"new", "data/new.js": script("new", 1)})
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert left == {"index.html", "data/new.js", "data/mine.js", "pictures/holiday.png"}
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="file"):
        save(tmp_path / "file", {"index.html": b""})
    with pytest.raises(BenchError, match="site"):
        save(tmp_path / "file" / "site", {"index.html": b""})


def test_equal_pictures_are_stored_once() -> None:
    records = sorted((record(seed=seed) for seed in (0, 1)), key=lambda r: r.hash)
    shown, images = build_content(Sources(records, pictures={r.hash: {"synthetic": png()} for r in records}))
    found = parts(shown, {})
    assert list(images.values()) == [png()]
    assert [(one["kind"], one["key"]) for one in found["images-digits"]] == [("synthetic", next(iter(images)))] * 2


def test_run_is_in_one_shard_with_its_seeds() -> None:
    records = sorted((record(seed=seed) for seed in range(5)), key=lambda r: r.hash)
    found = parts(build_content(Sources(records))[0], {})
    shards = {name: part for name, part in found.items() if name.startswith("runs-")}
    assert found["index"]["shards"] == sorted(shards)
    assert sorted(name for part in shards.values() for name in part) == [r.hash for r in records]
    for name, part in shards.items():
        assert all(run.startswith(name.removeprefix("runs-")) for run in part)
        for run in part.values():
            assert [seed for seed, _ in run["seeds"]] == ["0", "1", "2", "3", "4"]


def test_index_does_not_grow_with_runs() -> None:
    one, many = ([record("dpsd", seed, options={"method": {"k": seed}}) for seed in range(n)] for n in (1, 60))
    sizes = [len(script("index", parts_of(Sources(sorted(of, key=lambda r: r.hash)))["index"])) for of in (one, many)]
    assert sizes[1] < sizes[0] + 60 * 20, "the names of the parts, and no more of any run"
