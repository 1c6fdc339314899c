"""Rebuild the command line from a record's spec."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from bench import data, plugins, registry
from bench.boards.flags import pretrained_source
from bench.config import EVALUATOR, STUDENT, Variant, configure, plain
from bench.core.records import RunSpec
from bench.data.dataset import AS_DECLARED
from bench.data.naming import is_by_path
from bench.privacy.budget import epsilon_from_json
from bench.renamed import present_names
from bench.storage.records import Audit, Record

BUDGET = {"delta": 1e-5, "account": "claimed", "unit": "example"}
"""Defaults of `bench run`, which the command may omit."""
Options = Mapping[str, object]
"""Values of options, by name."""


def command(record: Record) -> str:
    """Return `bench run ...` with every option that is not a default, quoted for a shell.

    All options of a plug-in that is not installed are included. Values that records do not keep are in capitals: the
    PATH of a user's own data, the FILE of a user's own weights, the
    WEIGHTS of a pretrained network.
    """
    spec = RunSpec.model_validate(record.spec)
    release, attack, tier = spec.release, spec.attack, spec.tier
    teacher, dataset = release.teacher, release.teacher.data.dataset
    parts = ["bench", "run", "--method", release.method]
    parts += _variant("--variant", "method", release.method, release.variant)
    if attack is not None:
        parts += ["--attack", attack.attack]
        parts += _variant("--attack-variant", "attack", attack.attack, attack.variant)
    parts += ["--dataset", _typed(dataset)]
    # The declared reading of a user's own images, which older records do not have
    reading = record.provenance.get("images", {}).get("reading", {})
    parts += _unless("--fit", reading.get("fit", AS_DECLARED.fit), AS_DECLARED.fit)
    parts += [f"--pixel-range={reading['pixel_range']}"] if "pixel_range" in reading else []
    parts += ["--groups", str(reading["groups"])] if "groups" in reading else []
    parts += _unless("--split", teacher.data.split, "iid")
    parts += ["--teacher", teacher.arch]
    if teacher.weights:
        parts += ["--teacher-weights", "FILE"]
        parts += [] if teacher.normalise is None else [f"--teacher-normalise={_pair(teacher.normalise)}"]
    parts += ["--pretrained", "WEIGHTS"] if pretrained_source(release.public) else []
    parts += _unless("--student", release.student, STUDENT)
    parts += ["--tier", tier, "--seeds", str(release.seed), "--epsilon", _epsilon(release.budget.epsilon)]
    for name, usual in BUDGET.items():
        value = getattr(release.budget, name)
        parts += [] if value == usual else [f"--{name}", str(value)]
    parts += ["--solve", "steps"] if release.budget.solve == "steps" else []
    is_own = data.is_own(dataset) or bool(teacher.weights)
    parts += _unless("--noise", release.noise, "os" if is_own else "seeded")
    parts += _options("method", release.method, tier, release.options, release.variant)
    if attack is not None:
        parts += _options("attack", attack.attack, tier, attack.options, attack.variant)
    if not teacher.weights:
        recipe = {name: value for name, value in teacher.recipe.items() if name != "recipe_version"}
        parts += _options("teacher", recipe.get("recipe", "standard"), tier, recipe, "printed")
    # Only attacks that make images have an evaluator
    goal = "" if attack is None or attack.attack not in installed("attack") else _goal(attack.attack)
    if goal == "inversion":
        parts += _unless("--evaluator", spec.evaluator.arch, EVALUATOR)
        parts += _evaluator(dataset, tier, spec.evaluator.recipe)
    return shlex.join(parts)


def differences(audit: Audit) -> str:
    """Return how an audit's release differs from its tier's defaults, as options."""
    release, tier = audit.spec["release"], audit.spec["tier"]
    epsilon = release["budget"]["epsilon"]
    parts = _options("method", release["method"], tier, release["options"], release["variant"])
    return shlex.join([
        *parts,
        *_unless("--epsilon", _epsilon(None if epsilon is None else epsilon_from_json(epsilon)), "10"),
    ])  # fmt: skip


def notes(record: Record) -> list[str]:
    """Return sentences that a reader of the command must know."""
    release, attack = record.spec["release"], record.spec["attack"]
    teacher, git = release["teacher"], record.provenance.get("git") or {}
    found: list[str] = []
    if git.get("commit"):
        state = "" if git.get("clean") else " with changes that were not committed"
        found.append(f"The code was that of commit {git['commit']}{state}.")
    if steps := record.provenance.get("steps"):
        found.append(f"Steps from the cache that other code or another device may have made: {', '.join(steps)}.")
    plugins = [("method", release["method"], release["version"])]
    plugins += [] if attack is None else [("attack", attack["attack"], attack["version"])]
    for kind, name, version in plugins:
        if name not in installed(kind):
            found.append(f"The {kind} {name} is not installed where this page was made.")
        elif (now := _version(kind, name)) != version:
            found.append(f"Version {version} of {name} made it; version {now} is installed now.")
    read = teacher["data"]
    if is_by_path(read["dataset"]):
        found.append(f"PATH is the folder or file of your data; its fingerprint must be {read['fingerprint']}.")
    elif read["dataset"] != "digits":
        found.append("Give the folder of the data with --data-root DIR or $BENCH_DATA, or fetch them with --download.")
    if teacher["weights"]:
        found.append(f"FILE is the teacher's weights, with SHA-256 {teacher['weights']}.")
    if source := pretrained_source(release.get("public")):
        found.append(f"WEIGHTS is the file of public weights of {source.network}, with SHA-256 {source.sha256}.")
    if release["noise"] == "os":
        found.append("The noise came from the system's entropy: another run has other numbers.")
    found.append("Digits of the result may differ on another device or with other versions; see the provenance.")
    return found


def _unless(flag: str, value: str, usual: str) -> list[str]:
    return [] if value == usual else [flag, value]


def _variant(flag: str, kind: str, name: str, variant: str) -> list[str]:
    usual = variants_of(kind, name)[-1] if name in installed(kind) else "printed"
    return _unless(flag, variant, usual)


def _pair(normalise: Sequence[Any]) -> str:
    """Format MEAN,STD as the command line reads them; several channels are separated by strokes."""
    return ",".join("/".join(map(repr, part)) if isinstance(part, list | tuple) else repr(part) for part in normalise)


def _epsilon(epsilon: float | None) -> str:
    """Format an epsilon as it is typed: a number, inf, or none for no budget."""
    if epsilon is None:
        return "none"
    return f"{epsilon:g}" if float(f"{epsilon:g}") == epsilon else repr(epsilon)


def _evaluator(dataset: str, tier: str, recipe: Options) -> list[str]:
    """Return how the evaluator differs from today's default for the data set."""
    from bench.teachers import recipe_for

    given = {name: value for name, value in recipe.items() if name != "recipe_version"}
    usual = recipe_for(tier, dataset)
    own = usual.settings().get("recipe", "standard")
    if given.get("recipe", "standard") == own:
        return _changed("evaluator", plain(usual), {name: value for name, value in given.items() if name != "recipe"})
    named = str(given.setdefault("recipe", "standard"))
    return _changed("evaluator", _defaults("teacher", named, tier, "printed"), given)


def _options(kind: str, name: str, tier: str, given: Options, variant: str) -> list[str]:
    return _changed(kind, _defaults(kind, name, tier, variant), given)


def _changed(kind: str, usual: Options, given: Options) -> list[str]:
    parts: list[str] = []
    for key, value in sorted(given.items()):
        if key in usual and usual[key] == value and type(usual[key]) is type(value):
            continue
        ((name, shown),) = present_names({key: value}).items()
        flag = f"--{kind}.{name}"
        text = str(shown).lower() if isinstance(shown, bool) else str(shown)
        parts += [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]
    return parts


@cache
def installed(kind: str) -> dict[str, str]:
    """Return the plug-ins of a kind, "method" or "attack", with their folders; cached."""
    return {name: entry.folder for name, entry in registry.entries(kind).items()}


@cache
def variants_of(kind: str, name: str) -> tuple[Variant, ...]:
    """Return the variants of an installed plug-in, the default last; cached."""
    return registry.variants(kind, name)


_typed = cache(data.typed)


@cache
def _goal(attack: str) -> str:
    return str(registry.describe("attack", attack).facts.get("goal"))


@cache
def _version(kind: str, name: str) -> int:
    return int(registry.load(kind, name).version)


@cache
def _defaults(kind: str, name: str, tier: str, variant: str) -> Options:
    """Return the options of a plug-in's variant at a tier; {} if it is not installed."""
    if kind == "teacher":
        from bench.teachers import make_recipe

        return plain(make_recipe(tier, {"recipe": name})) if name in plugins.entries("teacher recipe") else {}
    if name not in installed(kind) or variant not in variants_of(kind, name):
        return {}
    return plain(configure(registry.load(kind, name, variant), tier, {}, kind, cast(Variant, variant)))
