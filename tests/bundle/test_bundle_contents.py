"""Contents of a bundle: only listed files and keys, and no measurement on private data."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from bundles import KINDS, SEED, bundle_of, found, make, place, read
from conftest import ROOT, write_toy
from PIL import Image

from bench.boards import read_records
from bench.bundle import account, export, find, network
from bench.bundle.schema import AuditedEpsilon, ClaimedEpsilon, Privacy
from bench.cli import main
from bench.errors import BenchError
from bench.privacy import Unit
from bench.storage.records import Record
from bench.storage.specs import digest

ALWAYS = {"MANIFEST.json", "README.md", "model.json", "privacy.json", "student.safetensors"}
EXTRAS = {
    "dpsd data": {"synthetic"},
    "dpsd label": {"synthetic"},
    "class-moments": {"synthetic"},
    "dp-sgd": set(),
    "pate-gnmax": set(),
    "rr": set(),
    "lp-2st": set(),
    "dp-merf": {"generator.safetensors", "synthetic"},
    "no-defence": set(),
    "resnet18": {"synthetic"},
}
EPSILON = {"epsilon", "delta", "unit"}
PRIVACY = {
    "": {"format", "method", "tier", "noise", "noise_version", "unit", "delta", "accountant", "accounted", "claimed",
         "audited",
         "events", "warnings"},
    "method": {"name", "version"},
    "accounted": {"example", "label", "query", "client"},
    "accounted.*": EPSILON | {"relation", "accountant", "version", "note"},
    "claimed": EPSILON | {"source", "disputed"},
    "events.*": {"event", "count", "unit", "why"},
}  # fmt: skip
MODEL = {
    "": {"format", "architecture", "library", "torch", "input", "normalisation", "classes", "class_names",
         "data", "accuracy", "parameters", "buffers"},
    "library": {"function", "name", "arguments"},
    "library.arguments": {"num_classes", "in_chans"},
    "input": {"shape", "layout", "dtype", "range"},
    "normalisation": {"mean", "std"},
    "accuracy": {"share", "low", "high", "images"},
}  # fmt: skip


def paths(value: Any, at: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every dictionary's place, list items and units as `*`, with its keys."""
    if isinstance(value, dict):
        yield at, set(value)
        for key, inner in value.items():
            yield from paths(inner, f"{at}.{'*' if at == 'accounted' else key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{at}.*")


def contents(folder: Path) -> bytes:
    """The bytes of all files, and their names."""
    parts = [path.read_bytes() + path.name.encode() for path in sorted(folder.rglob("*")) if path.is_file()]
    return b"\n".join(parts)


DATA_DEPENDENT = ("answered", "data_dependent_epsilon_diagnostic", "mean_candidates")
"""Solved parameters that depend on private data; the ledger has none of them."""


def laboratory(record: Record) -> dict[str, str]:
    """Return a record's withheld values by name, without those equal to the student's own accuracy."""
    public = {value for name, value in record.metrics.items() if name in ("accuracy", "accuracy.lo", "accuracy.hi")}
    numbers = {name: value for name, value in record.metrics.items() if value is not None and value not in public}
    solved = record.privacy["solved"]
    numbers |= {f"solved {name}": solved[name] for name in DATA_DEPENDENT if name in solved}
    numbers |= {f"seconds {name}": value for name, value in record.provenance["seconds"].items()}
    texts = {name: repr(value) for name, value in numbers.items() if len(repr(value)) >= 8}
    texts |= {f"{name} shown": f"{value:.2%}" for name, value in numbers.items() if name.endswith("_accuracy")}
    shown = {f"{value:.2%}" for value in public if value is not None}
    texts = {name: text for name, text in texts.items() if text not in shown}
    release = record.spec["release"]
    texts |= {"seed": str(SEED), "fingerprint": release["teacher"]["data"]["fingerprint"], "run": record.hash}
    return texts | {"release": digest(release), "teacher": digest(release["teacher"])}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_bundle_contains_only_allowed_files_and_fields(kind: str) -> None:
    run, folder = found(kind), bundle_of(kind)
    assert {path.name for path in folder.iterdir()} == ALWAYS | EXTRAS[kind]
    for file, allowed in (("privacy.json", PRIVACY), ("model.json", MODEL)):
        for at, keys in paths(read(folder / file)):
            assert keys <= allowed.get(at, set()) or at.startswith("events.*.event"), (file, at, keys)
    found_in, secrets = contents(folder), laboratory(run.record)
    assert len(secrets) >= 6 and f"{run.record.metrics['accuracy']!r}".encode() in found_in
    assert {name: text for name, text in secrets.items() if text.encode() in found_in} == {}
    assert not [word for word in (str(ROOT), str(place()), str(Path.home())) if word.encode() in found_in]


@pytest.mark.thorough
def test_laboratory_values_of_a_record_are_searchable(tmp_path: Path) -> None:
    assert "teacher_accuracy shown" in laboratory(found("dp-sgd").record)
    run, folder = found("pate-gnmax"), shutil.copytree(bundle_of("pate-gnmax"), tmp_path / "bundle")
    names = laboratory(run.record)
    assert {"ensemble_accuracy", "seed", "fingerprint"} <= set(names)
    assert "solved data_dependent_epsilon_diagnostic" in names
    (folder / "record.json").write_text(run.record.to_json())
    missing = [name for name, text in names.items() if text.encode() not in contents(folder)]
    assert [name for name in missing if not name.endswith(" shown") and name not in ("release", "teacher")] == []


def test_bundle_images_are_the_released_ones() -> None:
    from safetensors.numpy import load_file

    run, folder = found("dp-merf"), bundle_of("dp-merf")
    images = load_file(run.step / "synthetic.safetensors")["images"]
    files = sorted((folder / "synthetic").iterdir())
    assert len(files) == len(images)
    with Image.open(files[3]) as image:
        assert image.tobytes() == images[3].tobytes() and not image.info


def first_lines(folder: Path) -> str:
    return "\n".join((folder / "README.md").read_text(encoding="utf-8").splitlines()[:5])


@pytest.mark.thorough
def test_card_begins_with_the_alarms() -> None:
    assert "drawn from a seed" in first_lines(bundle_of("no-defence"))
    assert "Nothing is proved" in first_lines(bundle_of("no-defence"))
    assert "For a private record nothing is proved" in first_lines(bundle_of("rr"))
    assert "seed" not in first_lines(bundle_of("resnet18"))
    assert first_lines(bundle_of("dp-merf")).startswith("# datalens, released by dp-merf\n\n> **The noise was drawn")
    card = (bundle_of("resnet18") / "README.md").read_text(encoding="utf-8")
    for words in ("disputed", "outside the account", "does not protect records", "public test part"):
        assert words in card, words


def privacy_of(kind: str, change: Callable[[Any], object] = lambda plain: None) -> Privacy:
    """The account of a bundle, with a change of its plain data."""
    plain = read(bundle_of(kind) / "privacy.json")
    change(plain)
    return Privacy.model_validate_json(json.dumps(plain))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": {"name": "p3gm", "version": 1}}, "was not true"),
        ({"method": {"name": "gs-wgan", "version": 1}}, "was not true"),
        ({"method": {"name": "p3gm", "version": 2}}, ""),
        ({"method": {"name": "fed-dpsd", "version": 1}, "relation": "replace"}, "not for one that is replaced"),
        ({"method": {"name": "fed-dpsd", "version": 1}, "relation": "add-or-remove"}, ""),
        ({"delta": 0.5}, "with that chance nothing is promised"),
        ({"delta": 1e-4}, ""),
    ],
    ids=str,
)
def test_warnings_name_an_untrue_account(changes: dict[str, Any], says: str) -> None:
    def change(plain: Any, more: dict[str, Any]) -> None:
        relation = {"relation": changes.get("relation", "add-or-remove")}
        plain["accounted"]["example"].update(relation)
        plain.update(more)

    usual = account.warnings(privacy_of("dp-sgd", lambda plain: change(plain, {})))
    more = {name: value for name, value in changes.items() if name != "relation"}
    said = account.warnings(privacy_of("dp-sgd", lambda plain: change(plain, more)))
    new = [each for each in said if each not in usual]
    assert bool(new) == bool(says) and all(says in each for each in new)
    if "version" in changes.get("method", {}) and says:
        assert new[0] == said[0], "a warning that voids the guarantee comes first"


def test_alarm_of_an_audit_needs_a_comparable_epsilon() -> None:
    numbers = dict.fromkeys(AuditedEpsilon.model_fields, 1.0) | {"canaries": 1, "unit": "example", "delta": 1e-5}

    def audited(changes: dict[str, Any]) -> list[str]:
        def change(plain: Any) -> None:
            plain["audited"] = numbers | {"epsilon_lower": 99.0}
            plain["accounted"]["example"].update(changes)

        return account.alarms(privacy_of("dp-sgd", change))

    assert any("refutes" in line for line in audited({}))
    for changes in ({"relation": "replace"}, {"delta": 1e-3}):
        assert not any("refutes" in line for line in audited(changes)), changes


def test_warning_of_a_claim_at_a_smaller_delta() -> None:
    privacy = privacy_of("dp-sgd")
    proved = privacy.accounted[Unit.EXAMPLE]
    for delta, doubted in ((proved.delta, False), (0.0, True)):
        claim = ClaimedEpsilon(epsilon=proved.epsilon, delta=delta, unit=Unit.EXAMPLE, source="somebody", disputed="")
        said = account.warnings(privacy.model_copy(update={"claimed": claim}))
        assert any("is not what is proved" in line for line in said) == doubted


def test_bundle_of_an_infinite_epsilon() -> None:
    folder = bundle_of("no-defence")
    said = read(folder / "privacy.json")
    assert said["accounted"]["example"]["epsilon"] == "inf"
    assert "| accounted | infinite |" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_bundle_omits_the_audits_teacher(tmp_path: Path) -> None:
    run = found("dp-sgd")
    audit = {"epsilon_lower": 0.25, "confidence": 0.95, "unit": "example", "delta": 1e-5, "ceiling": 3.5,
             "canaries": 200, "null_run": 0.125, "audits": ["0123456789abcdef"], "teacher": 2.0625}  # fmt: skip
    run.record.privacy["audited"] = audit
    export(run, tmp_path / "bundle", allow_seeded=True)
    assert set(read(tmp_path / "bundle" / "privacy.json")["audited"]) == set(AuditedEpsilon.model_fields)
    card = (tmp_path / "bundle" / "README.md").read_text(encoding="utf-8")
    assert "Lower bound 0.25 per example" in card and "null run 0.125" in card and "3.5" in card
    assert b"0123456789abcdef" not in contents(tmp_path / "bundle") and b"2.0625" not in contents(tmp_path / "bundle")
    run.record.privacy["audited"] = audit | {"epsilon_lower": 99.0}
    export(run, tmp_path / "refuted", allow_seeded=True)
    assert any("refutes" in line for line in read(tmp_path / "refuted" / "privacy.json")["warnings"])


def test_bundle_of_own_data_withholds_its_names(tmp_path: Path) -> None:
    write_toy(tmp_path, 96)
    own = (tmp_path / "toy.npz").rename(tmp_path / "patients-of-ward-7.npz")  # too long to stand in weights by chance
    made = make("dp-sgd", "--dataset", f"npz:{own}", "--student", "relu-cnn")
    run = find(str(made), place() / "runs")
    export(run, tmp_path / "bundle", allow_seeded=True)
    said = read(tmp_path / "bundle" / "model.json")
    assert said["data"].startswith("withheld") and said["accuracy"] is None and said["class_names"] is None
    assert said["classes"] == 4 and said["input"]["shape"] == [1, 16, 16]
    accuracy = run.record.metrics["accuracy"]
    for secret in (own.stem, f"{accuracy:.2%}", f'"accuracy": {accuracy!r}'):
        assert secret.encode() not in contents(tmp_path / "bundle"), secret
    assert main(["export", str(made), str(tmp_path / "named"), "--allow-seeded", "--class-names"]) == 0
    assert len(read(tmp_path / "named" / "model.json")["class_names"]) == 4


@pytest.mark.thorough
def test_export_refuses_additional_ledger_fields(tmp_path: Path) -> None:
    run = found("dp-sgd")
    run.record.privacy["events"][0]["found_in_the_data"] = 123456789.25
    with pytest.raises(BenchError, match="entry 0"):
        export(run, tmp_path / "bundle", allow_seeded=True)
    assert not (tmp_path / "bundle").exists()
    run.record.privacy["events"][0].pop("found_in_the_data")


PAGE = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")


def named() -> list[str]:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_docs_table_has_every_field_of_a_record() -> None:
    fields = {field.name for field in dataclasses.fields(Record)}
    assert fields == {name.split(".")[0] for name in named() if name.split(".")[0] in fields}


def test_docs_table_has_every_metric() -> None:
    patterns = [name.removeprefix("metrics.") for name in named() if name.startswith("metrics.")]
    records = [found("dpsd data").record, found("class-moments").record]
    records += read_records(ROOT / "leaderboards")
    metrics = {name for record in records for name in record.metrics}
    assert {"auc", "knn_gap", "ensemble_accuracy", "control_accuracy", "power_p_teacher"} <= metrics
    assert [name for name in sorted(metrics) if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_bundle_code_reads_only_the_accuracy_metric() -> None:
    """The allow-list is in the code: exporting another metric requires changing this test and the table."""
    sources = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (account, network)]
    assert set(re.findall(r"metrics\[f?\"([a-z_.{}]+)\"\]", "".join(sources))) == {"accuracy{end}"}
