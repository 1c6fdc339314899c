"""Made-up records for the report's tests: every status, unit and kind of number."""

import base64
import gzip
import json
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from wide_boards import results_of

from bench import boards
from bench.boards.installed import installed_version
from bench.boards.results import Result, results
from bench.papers import printed_numbers
from bench.papers.comparison import Line
from bench.papers.printed_numbers import PrintedNumber
from bench.papers.section import section
from bench.report import Sources
from bench.report.charts import SHIFTS
from bench.report.site import build_content, parts
from bench.storage.records import Record
from bench.storage.specs import digest

ROW = {"dataset": "mnist", "method": "dpsd", "variant": "working", "tier": "quick", "accuracy_mean": 0.9}
NASTY = "</script><img src=x onerror=alert(1)>"


def epsilon(value: float | None, unit: str, **more: Any) -> dict[str, Any]:
    """A claim or an account as records hold it."""
    return {"epsilon": "inf" if value is None else value, "delta": 1e-5, "unit": unit, **more}


def record(method: str = "dpsd", seed: int = 0, accuracy: float = 0.5, **changes: Any) -> Record:
    """A record of a run on digits.

    Changes: tier, status, options, dataset, split, variant, version (today's), budget (epsilon), claim and claim_unit,
    accounted, query, attack, success, auc (of a membership attack).
    """
    variant = changes.get("variant", "printed")
    data = {"dataset": changes.get("dataset", "digits"), "fingerprint": "f" * 16}
    data["split"] = changes.get("split", "iid")
    teacher = {"data": data, "arch": "resnet18", "weights": None, "recipe": {}, "seed": seed, "normalise": None}
    teacher |= {"kind": "teacher", "version": 1}
    budget = {"epsilon": changes.get("budget", 10.0), "delta": 1e-5, "account": "claimed", "solve": "sigma"}
    release = {
        "teacher": teacher,
        "method": method,
        "version": changes.get("version", max(1, installed_version("method", method, variant))),
        "options": {},
        "student": "datalens",
        "variant": variant,
        "ensemble": None,
        "public": None,
        "kind": "release",
    }
    release |= {"budget": budget | {"unit": "example"}, "noise": "os", "seed": seed}
    attack, name = None, changes.get("attack")
    if name is not None:
        attack = {"target": release, "aux": "a" * 16, "attack": name, "version": 1, "access": "weights"}
        attack |= {"options": {}, "seed": seed, "variant": "printed", "kind": "attack"}
    evaluator = {"data": data, "arch": "evaluator-cnn", "recipe": {}, "seed": 1, "kind": "evaluator", "version": 1}
    spec = {"tier": changes.get("tier", "quick"), "release": release, "attack": attack, "evaluator": evaluator}
    spec |= {"kind": "run", "version": 1}
    status = changes.get("status", "ok")
    found = Record(digest(spec), status, "" if status == "ok" else "a reason", spec, changes.get("options", {}))
    if status == "failed":
        return found
    found.student = "datalens"
    found.metrics = {"accuracy": accuracy, "accuracy.lo": accuracy - 0.05, "accuracy.hi": accuracy + 0.05}
    found.metrics |= {"teacher_accuracy": 0.99, "evaluator_accuracy": 0.99}
    if "auc" in changes:
        found.metrics |= {"auc": changes["auc"], "teacher_auc": 0.7, "membership_epsilon_lower": 0.0}
        found.metrics |= {"queries": 1000, "power_p_teacher": 0.001}
    elif name is not None:
        found.metrics |= {"attack_accuracy": changes.get("success", 0.8), "teacher_attack_accuracy": 0.9}
        found.metrics |= {"random_attack_accuracy": 0.1, "queries": 1000, "power_p_teacher": 0.001}
    accounted = epsilon(changes.get("accounted"), "example", accountant="pld", relation="add-or-remove", version="1")
    query = epsilon(changes.get("query", 35.7), "query", accountant="pld", relation="add-or-remove", version="1")
    claim = changes.get("claim", 10.0)
    found.privacy = {
        "claimed": None if claim == "none" else epsilon(claim, changes.get("claim_unit", "query"), source="Theorem 1"),
        "accounted": accounted,
        "accounted_units": {"example": accounted, "query": query},
        "audited": None,
        "events": [
            {"event": {"name": "GaussianDpEvent", "noise_multiplier": 2.0}, "count": 7, "unit": "query", "why": "votes"}
        ],
        "noise": "os",
        "noise_version": 2,
        "solved": {"sigma": 2.0},
    }
    found.provenance = {
        "device": "cpu (2 threads)",
        "seconds": {"teacher": 1.5},
        "git": {"clean": True, "commit": "c0"},
    }
    return found


def png(shade: int = 128) -> bytes:
    """A grey PNG of four by four pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)
    body = zlib.compress((b"\0" + bytes([shade]) * 4) * 4)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def value_of(content: bytes) -> Any:
    """Return the value that a part's script sets, as a browser reads it."""
    packed = re.fullmatch(r"REPORT\[\".*?\"\] = '([A-Za-z0-9+/=]+)';\n", content.decode())
    if packed:
        return json.loads(gzip.decompress(base64.b64decode(packed[1])))
    found = re.fullmatch(r"REPORT\[(\".*?\")\] = JSON\.parse\('(.*)'\);\n", content.decode(), re.DOTALL)
    assert found is not None
    return json.loads(re.sub(r"\\(.)", r"\1", found[2], flags=re.DOTALL))


def built(*records: Record) -> list[boards.Board]:
    """Return their board in a list."""
    return [boards.build(records)]


def board(*records: Record) -> list[Result]:
    """The results on their board."""
    return results(boards.build(records))


def line(entry: PrintedNumber, accuracy: float, **changes: Any) -> Line:
    """A published number, and a result of ours with this accuracy."""
    (result,) = results_of(ROW | {"accuracy_mean": accuracy} | changes)
    return Line(entry, result)


def printed(paper: str, table: str, method: str, epsilon: float | None, dataset: str = "mnist") -> PrintedNumber:
    """The accuracy that a table prints of a method at an epsilon."""
    entries = printed_numbers.table(paper, table)
    return next(e for e in entries if (e.method, e.epsilon, e.dataset) == (method, epsilon, dataset))


def parts_of(sources: Sources, numbers: Sequence[PrintedNumber] | None = ()) -> dict[str, Any]:
    """The parts of a report with the papers' section, of these printed numbers; None reads the published ones."""
    shown, _ = build_content(sources)
    return parts(shown, {"papers": section(shown, numbers)})


Box = tuple[float, float, float, float]
NAME = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" class="(?:quiet )?name">([^<]+)</text>')


def name_boxes(markup: str) -> dict[str, Box]:
    """Return the box of each name in a chart, by its text."""
    found = {}
    for across, down, anchor, text in NAME.findall(markup):
        left = float(across) - SHIFTS[anchor] * 6.0 * len(text)
        found[text] = (left, float(down) - 10, left + 6.0 * len(text), float(down))
    return found


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
