"""The content of the report, without a browser: flags, recommendations, runs, sources."""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from made import png, record, value_of

from bench import boards as board_files
from bench import cli, registry
from bench.boards.flags import flags_of_row
from bench.cli import report as report_command
from bench.errors import BenchError
from bench.privacy.claims import BELOW_ACCOUNT, BELOW_AUDIT, DEFECTS, NO_EPSILON
from bench.report import Sources, boards, gather, glossary, render, runs
from bench.report.columns import ALL
from bench.report.files import script
from bench.report.site import build_content, parts
from bench.storage.records import Audit, Record

SCORED = ("student", "teacher", "null")


def test_every_flag_is_explained() -> None:
    texts = [board_files.flags.__doc__ or "", flags_of_row.__doc__ or ""]
    documented = set(re.findall(r"`([^`]+)`:", " ".join(texts))) | {"refuted"}
    assert "mixed-versions" in documented
    assert len(documented) >= 6
    for flag in documented:
        assert glossary.flag(flag).endswith(".")
    assert "noise too small" in glossary.flag("disputed:noise-too-small")
    assert "issue dgd-1," in glossary.flag("reported:dgd-1") and glossary.flag("reported-differs")
    with pytest.raises(KeyError):
        glossary.flag("unheard-of")


def test_every_dispute_is_explained() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (registry.ROOT / "baselines").rglob("*.py"))
    known = {*DEFECTS.values(), NO_EPSILON, BELOW_ACCOUNT, BELOW_AUDIT, *re.findall(r'DISPUTED = "([a-z-]+)"', sources)}
    assert len(known) > 6 and known <= set(glossary.DISPUTES)


def test_attack_without_queries_is_not_counted() -> None:
    runs = [record("a", accounted=3.0, attack=name) for name in ("gmi", "random-guess")]
    runs[1].metrics["queries"] = 0
    (digits,) = parts(build_content(Sources(sorted(runs, key=lambda r: r.hash)))[0], {})["index"]["datasets"]
    assert digits["attacks"] == ["gmi"] and [one["attacks"] for one in digits["best"]] == [1]


def test_index_orders_tiers_by_size() -> None:
    index = value_of(script("index", parts(build_content(Sources([record()]))[0], {})["index"]))
    assert index["order"]["tiers"] == ["paper", "standard", "quick", "smoke"]
    assert index["order"]["units"][0] == "example"


def test_columns_have_labels_and_known_groups() -> None:
    assert all(column.label for column in ALL)
    assert {key for column in ALL for key in column.within} <= {column.key for column in ALL}
    shown = boards.columns(boards.rows(board_files.build([record(attack="gmi")])))
    assert shown[:2] == ["method", "variant"] and "attack_variant" in shown and "claim_unit" not in shown


def test_infinite_epsilon_is_not_an_empty_cell() -> None:
    records = [record(accounted=None), record("failing", status="failed"), record("none", claim="none")]
    found = boards.rows(board_files.build(records))
    rows = {row["method"]: row for row in found}
    assert rows["dpsd"]["epsilon_accounted"] == math.inf and rows["dpsd"]["epsilon_claimed"] == 10.0
    assert "epsilon_accounted" not in rows["failing"] and "epsilon_claimed" not in rows["none"]
    assert rows["failing"]["runs"] and rows["failing"]["seeds"] == ["0"]


def test_highlights_use_accounted_epsilon_and_power() -> None:
    records = [record("a", seed, 0.7, accounted=3.0, attack="gmi", success=0.4) for seed in (0, 1)]
    records += [record("a", 0, 0.7, accounted=3.0, attack="ami", success=0.6)]
    records += [record("a", 0, 0.7, accounted=3.0, attack="vmi", success=0.99, status="inconclusive")]
    records += [
        record("a", 0, 0.7, accounted=3.0, attack=name, auc=auc) for name, auc in (("lira", 0.6), ("rmia", 0.5))
    ]
    records += [record("d", 0, 0.6, accounted=9.0, attack="rmia", auc=0.9, status="inconclusive")]
    records += [record("b", 0, 0.9, accounted=10.5, claim=0.1), record("c", 0, 0.95, accounted=None, claim=0.1)]
    records += [record(name, 0, accuracy, accounted=9.0) for name, accuracy in (("d", 0.6), ("e", 0.8), ("f", 0.1))]
    (digits,) = parts(build_content(Sources(sorted(records, key=lambda r: r.hash)))[0], {})["index"]["datasets"]
    assert [(one["method"], one["unit"], one["accuracy"]) for one in digits["best"]] == [
        ("e", "example", 0.8),
        ("a", "example", 0.7),
        ("d", "example", 0.6),
    ]
    assert [(one["attack"], one["success"], one["seeds"]) for one in digits["best"]][:2] == [
        (None, None, 1),
        ("ami", 0.6, 2),
    ]
    assert [(one["membership"], one["attacks"]) for one in digits["best"]] == [
        (None, 0),
        (["lira", 0.6, 0.7], 5),
        (None, 1),
    ]


def test_flags_of_results_are_explained() -> None:
    shown, _ = build_content(Sources([record()]))
    (run,) = shown.boards[0].runs
    flagged = replace(shown.boards[0], runs=[replace(run, flags="other-unit reported-differs reported:x-1")])
    found = parts(replace(shown, boards=[flagged], results=board_files.results(flagged)), {})["index"]
    assert {"reported-differs", "reported:x-1", "other-unit"} <= set(found["flags"])


def test_run_page_has_all_numbers() -> None:
    found = record(attack="gmi", accounted=7639.0)
    found.metrics |= {
        "reference_held_out_attack_accuracy": 0.95,
        "brand_new_metric": 1.5,
        "teacher_brand_new_metric": 2,
    }
    page = runs.page(found, [])
    assert [line[0] for line in page.utility] == [
        *("teacher", "student, released", "evaluator, which judges reconstructions")
    ]
    assert page.measures.targets == ["student", "teacher", "random net", "unseen images"]
    rows = {label: cells for label, _, _, cells in page.measures.rows}
    tips = {label: tip for label, _, tip, _ in page.measures.rows}
    assert tips["attack accuracy"] != "" and tips["brand_new_metric"] == ""
    assert ("queries", 1000) in page.others and (page.variant, page.attack_variant) == ("printed", "printed")
    assert [cell and cell[0] for cell in rows["attack accuracy"]] == [0.8, 0.9, 0.1, 0.95]
    assert [cell and cell[0] for cell in rows["brand_new_metric"]] == [1.5, 2, None, None]
    assert [(line.what, line.epsilon, line.unit) for line in page.epsilons] == [
        *(("claimed", 10.0, "query"), ("accounted", 7639.0, "example"), ("accounted", 35.7, "query"))
    ]
    assert page.ledger == [("query", "votes", "Gaussian(noise_multiplier 2)", 7)]
    assert page.flags == ["claim!=accounted", "disputed:below-an-exact-account", "other-unit"]
    assert page.information.nats is None and page.information.why, "the made-up ledger has only queries"
    found.privacy["information"] = {"nats": 2.56, "why": "gradients", "classes": 10}
    bound = runs.page(found, []).information
    assert (bound.nats, bound.why, bound.most) == (2.56, "gradients", pytest.approx(0.5965, abs=1e-4))
    assert page.spec["attack"]["target"] == "release"
    assert runs.page(record(status="failed"), []).epsilons == []


def test_nested_events_are_formatted() -> None:
    inner = {"name": "SelfComposedDpEvent", "event": {"name": "GaussianDpEvent", "noise_multiplier": 1.5}, "count": 3}
    assert runs.format_event(inner) == "SelfComposed(Gaussian(noise_multiplier 1.5), count 3)"
    many = {"name": "ComposedDpEvent", "events": [inner["event"], {"name": "NonPrivateDpEvent"}]}
    assert runs.format_event(many) == "Composed([Gaussian(noise_multiplier 1.5), NonPrivate])"


def write(folder: Path, found: Record, **files: bytes) -> None:
    place = folder / "records" / found.hash
    place.mkdir(parents=True)
    for name, data in files.items():
        found.artifacts[name] = f"{name}.png"
        (place / f"{name}.png").write_bytes(data)
    (place / "record.json").write_text(found.to_json())


def test_gather_prefers_published_records(tmp_path: Path) -> None:
    board, mine = tmp_path / "boards", tmp_path / "runs"
    (board / "records").mkdir(parents=True)
    for accuracy, seed in ((0.5, 0), (0.6, 1)):
        (board / "records" / f"{seed}.json").write_text(record(seed=seed, accuracy=accuracy).to_json())
    same, other, third = record(seed=0, accuracy=0.5), record(seed=1, accuracy=0.7), record(seed=2)
    same.metrics["newer_metric"] = 1.0
    write(mine, same, synthetic=png())
    write(mine, other, synthetic=png())
    third.artifacts["outside"] = "../../secret.png"
    (tmp_path / "secret.png").write_bytes(png())
    write(mine, third, reconstructions=b"<svg onload=alert(1)>")
    found = gather(board, [mine])
    assert sorted(r.metrics["accuracy"] for r in found.records) == [0.5, 0.5, 0.6]
    assert {name: list(kept) for name, kept in found.pictures.items()} == {same.hash: ["synthetic"]}
    assert len(found.remarks) == 3 and any("../../secret.png" in line for line in found.remarks)


def test_gather_leaves_out_damaged_runs_with_a_remark(tmp_path: Path) -> None:
    write(tmp_path, record(seed=0))
    write(tmp_path, record(seed=1))
    cut = tmp_path / "records" / record(seed=1).hash / "record.json"
    cut.write_text(cut.read_text()[:200])
    (tmp_path / "audits" / "0123").mkdir(parents=True)
    (tmp_path / "audits" / "0123" / "audit.json").write_text("{}")
    found = gather(None, [tmp_path])
    assert [r.hash for r in found.records] == [record(seed=0).hash] and not found.audits
    assert [str(cut) in found.remarks[0], "0123" in found.remarks[1]] == [True, True]
    (tmp_path / "records" / record(seed=0).hash / "record.json").write_text("")
    with pytest.raises(BenchError, match=record(seed=0).hash):
        gather(None, [tmp_path])


def test_gather_refuses_missing_sources(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    nowhere = tmp_path / "nowhere"
    for folder, given, option in ((tmp_path, [], "--runs"), (nowhere, [], "--boards"), (None, [tmp_path], "--runs")):
        with pytest.raises(BenchError, match=option):
            gather(folder, given)
    (tmp_path / "records" / "a.json").write_text("{}")
    with pytest.raises(BenchError, match=r"a\.json"):
        gather(tmp_path, [])
    (tmp_path / "records" / "a.json").write_text(record().to_json())
    with pytest.raises(BenchError, match="mnist"):
        gather(tmp_path, [], "mnist")


def test_report_command_writes_same_bytes_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs", record(dataset="mnist"))
    write(tmp_path / "runs", record(), synthetic=png())
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    line = ["--boards", str(tmp_path / "runs"), "--runs", str(tmp_path / "runs"), "--dataset", "digits", "--out"]
    sites = []
    for name in ("a", "b"):
        assert report_command.execute(parser.parse_args([*line, str(tmp_path / name)])) == 0
        sites.append({p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")})
    assert sites[0] == sites[1]
    names = {path.as_posix() for path in sites[0]}
    assert {"index.html", "web/routes.js", "data/index.js", "data/board-digits.js"} <= names
    assert not [name for name in names if "mnist" in name], "the other data set is not there"
    assert [name for name in names if name.startswith("pictures/")]
    assert "1 runs" in capsys.readouterr().out


def test_report_does_not_depend_on_record_order() -> None:
    records = [record(method, seed) for method in ("dpsd", "dgd") for seed in (0, 1, 2)]
    assert render(Sources(sorted(records, key=lambda r: r.hash))) == render(
        Sources(sorted(reversed(records), key=lambda r: r.hash))
    )


def test_choices_of_runs_are_distinguishable() -> None:
    records = [record(version=1), record(version=2), record(version=2, split="few")]
    records += [record("dgd"), record("dgd", 1), record("failing", status="failed")]
    listed = parts(build_content(Sources(sorted(records, key=lambda r: r.hash)))[0], {})["names"]
    shown = [each[1:7] + each[8:] for each in listed]
    assert len({str(each) for each in shown}) == len(records)
    assert [each[-1] for each in shown if "dgd" in each[1]] == ["", ""], "a name that is one run's says no more"
    assert sorted(each[-1] for each in shown if "dpsd" in each[1]) == [
        "split few, version 2",
        "split iid, version 1",
        "split iid, version 2",
    ]


def test_report_shows_installed_boards_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tmp_path / "installed"
    (installed / "records").mkdir(parents=True)
    found = record()
    (installed / "records" / f"{found.hash}.json").write_text(json.dumps(asdict(found)))
    monkeypatch.setattr("bench.boards.records.INSTALLED", installed)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["report"]) == 0
    assert "1 runs" in capsys.readouterr().out and Path("site/index.html").exists()


def test_run_page_has_audits_of_the_latest_game() -> None:
    run = record("dpsd", claim="none", accounted=1.0)
    lines = {name: {"correct": 95, "guesses": 100, "epsilon_lower": 2.0, "accuracy": 0.5} for name in SCORED}
    spec = {"tier": "quick", "release": run.spec["release"], "guesses": 100, "confidence": 0.95}
    old = Audit("a" * 16, "refuted", [], spec, {"number": 200}, 3.5, 1e-5, lines, True, run.privacy)
    right = {name: line | {"correct": 50} for name, line in lines.items()}
    new = replace(old, hash="b" * 16, spec=spec | {"version": 2}, lines=right)
    for audits, flags in (([old], ["refuted"]), ([old, new], [])):
        page = value_of(render(Sources([run], audits))[f"data/runs-{run.hash[:2]}.js"])[run.hash]
        (result,) = board_files.results(board_files.build([run], audits))
        assert (page["flags"], len(page["audits"])) == (sorted(result.flags), 1) == (flags, 1)


def test_missing_measures_share_one_line_per_reason() -> None:
    few = "359 non-members are too few"
    missing = {"tpr_at_01pct": few, "teacher_tpr_at_01pct": few, "judge_accuracy": "no judge", "of_a_plugin": "no"}
    assert runs.missing_measures(missing) == [
        ("judge accuracy of student", "no judge"),
        ("of_a_plugin", "no"),
        ("TPR at FPR 0.1 % of teacher, student", few),
    ]
