"""Parts of the report: releases and method pages, command lines of records, the picture, and points of charts."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import write_toy
from made import built, parts_of, record
from matplotlib.axes import Axes

from bench import cli, registry
from bench.boards.selection import Constraints, candidates, choose, objection
from bench.cli import run as run_command
from bench.errors import BenchError
from bench.pipeline.job import changed_options, run_spec
from bench.pipeline.resolve import load_job
from bench.report import Sources, command, method_pages, releases
from bench.report.command import notes
from bench.report.picture import compose, draw
from bench.report.points import accounted, epsilons, grouped
from bench.storage.records import Record


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
    placed = {name: [(one.accuracy, one.rank, one.of) for one in method_pages.rankings(name, lines)] for name in "abcd"}
    assert placed == {"a": [(0.9, 1, 2)], "b": [(0.8, 2, 2)], "c": [], "d": []}
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


SMOKE = "run --method dpsd --tier smoke --teacher datalens"


def made_by(line: str, out: Path) -> Record:
    settings, seeds = run_command.read_run(cli.parse([*shlex.split(line), "--out", str(out)]))
    job = load_job(settings)
    spec = run_spec(job, seeds[0])
    return Record(spec.hash, "ok", "", json.loads(json.dumps(asdict(spec))), changed_options(job))


def test_setting_names_options_that_differ_from_tier(tmp_path: Path) -> None:
    given = "--attack gmi --attack.iterations 7 --teacher.lr 0.01 --teacher.flip --method.k 2 --teacher.epochs 1"
    named = "k=2 attack.iterations=7 teacher.flip=true teacher.lr=0.01 epsilon=1.0"
    assert made_by(f"{SMOKE} {given} --epsilon 1", tmp_path).setting == named, "epochs are the tier's"


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--attack gmi",
        "--attack gmi --attack.iterations 7 --attack.keep_best --seeds 3",
        "--method.mode label --method.k 2 --method.replay false --epsilon 1",
        "--method class-moments --method.teachers 4 --account accounted --epsilon 8 --unit example --delta 1e-6",
        "--epsilon inf --noise os --student resnet18",
        "--epsilon none --method.sigma 3.5",
        "--solve steps --epsilon 0.30000000000000004 --method.sigma 50",
        "--teacher.lr 0.01 --teacher.flip --split full --dataset digits --split disjoint-low",
        "--attack gmi --evaluator.epochs 3 --evaluator.flip",
        "--attack gmi --evaluator.recipe objects --evaluator.max_steps 5 --teacher.recipe faces",
        "--attack gmi --evaluator.recipe standard",
        "--attack gmi --evaluator evaluator-vgg --evaluator.epochs 3",
    ],
)
def test_command_of_record_makes_same_spec(options: str, tmp_path: Path) -> None:
    wanted = made_by(f"{SMOKE} {options}", tmp_path)
    line = command(wanted)
    program, *arguments = shlex.split(line)
    found = made_by(shlex.join(arguments), tmp_path)
    assert program == "bench"
    assert (found.hash, found.setting) == (wanted.hash, wanted.setting)
    assert ("--epsilon none" in line) == ("none" in options) and ("--epsilon inf" in line) == ("inf" in options)


def test_unused_evaluator_is_not_in_command_or_setting(tmp_path: Path) -> None:
    for options in ("", "--attack lira"):
        found = made_by(f"{SMOKE} {options} --evaluator.epochs 3 --evaluator evaluator-vgg", tmp_path)
        assert "evaluator" not in command(found) and found.setting == ""
    judged = made_by(f"{SMOKE} --attack gmi --evaluator.recipe objects --evaluator.epochs 3", tmp_path)
    assert judged.setting == "evaluator.epochs=3 evaluator.recipe=objects"
    other = made_by(f"{SMOKE} --attack gmi --evaluator evaluator-vgg", tmp_path)
    assert other.setting == "evaluator.network=evaluator-vgg" and other.spec["evaluator"]["arch"] == "evaluator-vgg"
    default = made_by(f"{SMOKE} --attack gmi --evaluator evaluator-cnn", tmp_path)
    assert default.hash == made_by(f"{SMOKE} --attack gmi", tmp_path).hash != other.hash and default.setting == ""


def test_command_has_placeholders_for_unknown_paths(tmp_path: Path) -> None:
    write_toy(tmp_path, 80)
    weights = tmp_path / "teacher.safetensors"
    weights.write_bytes(b"any bytes have a hash")
    own = f"--dataset npz:{tmp_path}/toy.npz --teacher-weights {weights} --teacher-normalise=0.1,0.3"
    wanted = made_by(f"{SMOKE} {own}", tmp_path)
    line = command(wanted)
    assert "npz:PATH/toy.npz" in line and "--teacher-weights FILE" in line
    filled = line.removeprefix("bench ").replace("PATH", str(tmp_path)).replace("FILE", str(weights))
    assert made_by(filled, tmp_path).hash == wanted.hash
    shown = " ".join(notes(wanted))
    assert wanted.spec["release"]["teacher"]["weights"] in shown
    assert wanted.spec["release"]["teacher"]["data"]["fingerprint"] in shown


def test_command_writes_all_options_of_missing_plugin() -> None:
    found = record("from-elsewhere")
    found.spec["release"]["options"] = {"a": 1.0, "b": True, "c": "-x", "d": "two words"}
    assert shlex.split(command(found))[-7:] == [
        *("--method.a", "1.0", "--method.b", "true", "--method.c=-x", "--method.d", "two words")
    ]
    assert "not installed" in " ".join(notes(found))


def test_notes_name_another_version_of_a_plugin() -> None:
    found = record("dpsd")
    found.spec["release"]["version"] = 0
    assert "Version 0 of dpsd made it" in " ".join(notes(found))


MADE = [
    record("dpsd", seed=0, accuracy=0.4, accounted=100.0, attack="gmi", success=0.7),
    record("dpsd", seed=1, accuracy=0.6, accounted=100.0, attack="gmi", success=0.9),
    record("dp-merf", accuracy=0.9, accounted=10.0),
    record("dgd", accuracy=0.3, attack="gmi", success=0.2, status="inconclusive"),
    record("no-defence", accuracy=0.99, claim="none"),
]


def marks(axes: Axes) -> list[tuple[float, float]]:
    return [(float(bar[0].get_xdata()[0]), float(bar[0].get_ydata()[0])) for bar in axes.containers]


def test_picture_marks_are_at_recorded_values() -> None:
    left, right = compose("made up", MADE, "gmi").axes
    assert sorted(marks(left))[:2] == [(10.0, 0.9), (100.0, pytest.approx(0.5))]
    endless = sorted(marks(left))[2:]
    assert [y for _, y in endless] == [0.3, 0.99] and all(x > 300 for x, _ in endless)
    assert left.get_xlim()[1] >= max(x for x, _ in endless)
    assert sorted(marks(right)) == [(0.2, 0.3), (pytest.approx(0.8), pytest.approx(0.5))]


def test_picture_attack_without_power_is_hollow() -> None:
    _, right = compose("made up", MADE, "gmi").axes
    faces = {round(float(bar[0].get_xdata()[0]), 6): bar[0].get_markerfacecolor() for bar in right.containers}
    assert faces[0.2] == "none" and faces[0.8] != "none"


def test_picture_bytes_do_not_depend_on_order(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", "made up", MADE, "gmi")
    draw(tmp_path / "b.png", "made up", MADE[::-1], "gmi")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_picture_without_runs_is_refused() -> None:
    with pytest.raises(BenchError, match="lira"):
        compose("made up", MADE, "lira")
    with pytest.raises(BenchError, match="client"):
        compose("made up", MADE, "gmi", "client")


def write(folder: Path, made: Record) -> None:
    path = folder / "records" / f"{made.hash}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(made.to_json())


def test_picture_command_draws_one_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for made in [*MADE, record("dpsd", dataset="mnist"), record("dpsd", accounted=3.0, tier="paper", attack="gmi")]:
        write(tmp_path, made)
    line = ["report", "--boards", str(tmp_path), "--picture", str(tmp_path / "new" / "r.png")]
    assert cli.main(line) == 2
    error = capsys.readouterr().err
    assert "digits, mnist" in error and "--dataset" in error
    assert cli.main([*line, "--dataset", "digits"]) == 0
    assert (tmp_path / "new" / "r.png").read_bytes().startswith(b"\x89PNG")
    assert f"{len(MADE)} runs" in capsys.readouterr().out


def test_point_takes_seeds_of_one_row_first() -> None:
    single = [record(seed=seed, accuracy=0.5 + seed / 10) for seed in (0, 1, 2)]
    attacked = [record(seed=seed, accuracy=0.9, attack="gmi", success=0.5) for seed in (0, 1)]
    (group,) = grouped([*attacked, *single], attacks=False)
    assert group == single, "the mean is the board's of the row with most seeds"
    (group,) = grouped([*attacked, *single[:1]], attacks=False)
    assert group == attacked
    (group,) = grouped([*attacked, *single[2:]], attacks=False)
    assert group == [*attacked, single[2]], "what no other row has is taken from the one that has it"
    (group,) = grouped([attacked[0], single[0]], attacks=False)
    assert group == single[:1], "of as many seeds, the row without an attack"
    assert sorted(map(len, grouped([*attacked, *single], attacks=True))) == [2, 3]


def test_point_prefers_runs_without_float32_noise() -> None:
    coarse = [record(seed=seed, accuracy=0.9) for seed in (0, 1, 2)]
    for each in coarse:
        del each.privacy["noise_version"]
    sound = record(seed=1, accuracy=0.4, attack="gmi", success=0.5)
    assert grouped([*coarse, sound], attacks=False) == [[sound]]
    assert grouped(coarse, attacks=False) == [coarse]


def test_point_has_largest_accounted_epsilon() -> None:
    runs = [record(seed=seed, accounted=epsilon, claim="none") for seed, epsilon in ((0, 3.0), (1, 3.5))]
    (panel,) = [panel for panel in epsilons(runs) if panel.unit == "example"]
    assert [point.x for point in panel.points] == [3.5]
    assert accounted(runs) == (3.5, "example")


@pytest.mark.parametrize("version", [1, 2])
def test_invalid_account_is_not_drawn(version: int) -> None:
    runs = [record("p3gm", version=version, accounted=3.0)]
    assert {panel.what for panel in epsilons(runs)} == ({"claimed"} if version == 1 else {"claimed", "accounted"})
    assert accounted(runs) == (None if version == 1 else (3.0, "example"))
