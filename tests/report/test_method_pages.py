"""Releases, the place of a method among others, and its page."""

from __future__ import annotations

import math
from dataclasses import replace

from made import built, parts_of, record

from bench import registry
from bench.boards.selection import Constraints, candidates, choose, objection
from bench.report import Sources, method_pages, releases


def test_release_line_lists_missing_measurements() -> None:
    (bare,) = releases.lines(built(record("a", accounted=3.0)))
    assert bare.missing == [
        "no attack that reconstructs records",
        "no attack that guesses members",
        "no audit",
        "no second seed",
        "nothing at the papers' size (this is tier quick)",
        "nothing on a GPU",
    ]
    attacked = [
        record("a", seed, accounted=3.0, attack="gmi", status=status) for seed, status in ((0, "ok"), (1, "ok"))
    ]
    (more,) = releases.lines(built(*attacked))
    assert more.missing[0] == "no attack that guesses members" and "no second seed" not in more.missing
    weak = [record("a", 0, accounted=3.0, attack="gmi", status="inconclusive")]
    assert releases.lines(built(*weak))[0].missing[0] == "no attack with proved power that reconstructs records"


def test_release_lines_match_choose_and_show_infinity() -> None:
    records = [record("a", 0, accounted=3.0, attack=name) for name in ("gmi", "ami")] + [record("b", accounted=None)]
    boards = built(*records)
    lines = releases.lines(boards)
    assert [(one.method, one.epsilon, len(one.attacks)) for one in lines] == [("a", 3.0, 2), ("b", math.inf, 0)]
    limits = Constraints("example", 10.0, 0.0)
    taken = [c.name for found in choose(boards, limits).taken.values() for c in found]
    assert taken == [lines[0].name]
    assert [bool(objection(c, limits)) for c in candidates(boards)] == [False, True]


def test_rankings_use_accounted_epsilon_per_unit() -> None:
    made = [("a", 0.9, 3.0), ("a", 0.7, 1.0), ("b", 0.8, 10.0), ("c", 0.99, 10.1), ("d", 0.95, None)]
    records = [
        record(name, accuracy=accuracy, accounted=epsilon, claim=0.1, options={"method": {"n": index}})
        for index, (name, accuracy, epsilon) in enumerate(made)
    ]
    for found, (_, _, epsilon) in zip(records, made, strict=True):
        found.spec["release"]["options"] = {"n": epsilon}
    lines = releases.lines(built(*records))
    told = {name: [(one.accuracy, one.rank, one.of) for one in method_pages.rankings(name, lines)] for name in "abcd"}
    assert told == {"a": [(0.9, 1, 2)], "b": [(0.8, 2, 2)], "c": [], "d": []}
    for without in (
        {"flags": ["refuted"]},
        {"flags": ["float32-noise"]},
        {"older": "made by version 1"},
        {"delta": 1e-3},
    ):
        assert method_pages.rankings("a", [replace(line, **without) for line in lines]) == []


def test_method_page_shows_source_and_measurements() -> None:
    run = record("dpsd", attack="gmi", claim_unit="query")
    run.privacy["claimed"]["disputed"] = "for-a-reason"
    sources = Sources([run, record("from-elsewhere")])
    pages = {page["name"]: page for name, page in parts_of(sources).items() if name.startswith("method-")}
    assert set(pages) == {*registry.entries("method"), "from-elsewhere"}
    page = pages["dpsd"]
    assert [one["variant"] for one in page["variants"]] == ["working", "printed"], "the one that is run comes first"
    assert page["variants"][0]["departures"] and not page["variants"][1]["departures"]
    (claim,) = page["claims"]
    assert (claim["source"], claim["unit"], claim["dispute"]) == ("Theorem 1", "query", "for-a-reason")
    assert (claim["explanation"], claim["by"], claim["runs"]) == ("for a reason", ["variant printed"], 1)
    assert [line["accuracy"] for line in page["releases"]] == [0.5] and page["folder"] == "methods"
    assert {"dpsd-table-i"} <= {table["slug"] for table in page["sections"]["papers"]}
    assert pages["from-elsewhere"]["variants"] == [] and pages["from-elsewhere"]["summary"] == "not installed here"
    assert (page["runs"], pages["from-elsewhere"]["runs"], pages["dp-merf"]["runs"]) == (1, 1, 0)


def test_claims_name_variants_and_options() -> None:
    runs = [record("dpsd", seed, variant=variant) for seed, variant in ((0, "printed"), (1, "working"), (2, "working"))]
    for run, mode in zip(runs, ("data", "data", "label"), strict=True):
        run.spec["release"]["options"] = {"mode": mode, "sigma": 2.0, "augment": True}
    runs[2].privacy["claimed"]["source"] = "Theorem 2"
    assert [(one.source, one.by, one.runs) for one in method_pages.claims(runs)] == [
        ("Theorem 1", ["variant printed", "variant working", "mode=data"], 2),
        ("Theorem 2", ["variant working", "mode=label"], 1),
    ]


def test_summary_says_as_printed_only_for_default_variant() -> None:
    assert method_pages.AS_PRINTED in registry.entries("method")["dpsd"].summary
    assert method_pages.summary("dpsd").endswith("of one teacher into a student.")


def test_releases_of_one_name_show_their_differences() -> None:
    runs = [record("dpsd", accounted=3.0) for _ in range(4)]
    runs[1].spec["release"]["teacher"]["arch"] = "resnet34"
    runs[2].spec["release"]["version"], runs[2].student = 0, "resnet10t"
    runs[3].spec["release"] |= {"options": {"mode": "label"}}
    runs[3].options = {"method": {"mode": "label"}}
    found = releases.lines([board for run in runs for board in built(run)])
    assert len({line.name for line in found}) == 2
    assert [line.apart for line in found] == [
        *("teacher=resnet18, student=datalens", "teacher=resnet34, student=datalens"),
        *("teacher=resnet18, student=resnet10t, version 0", ""),
    ]
    coarse, fine = record("dpsd", 0, accounted=3.0), record("dpsd", 0, accounted=3.0)
    coarse.privacy.pop("noise_version", None)
    fine.privacy["noise_version"] = 2
    found = releases.lines([*built(coarse), *built(fine)])
    assert [line.apart for line in found] == ["float32 noise", ""]
