"""teacher -> release -> attack -> score -> record, each step made once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from bench import console, data, leaderboard, nets, pictures, provenance, registry, scoring, steps, teachers
from bench.api import AttackResult, Context, Shards, Teacher
from bench.config import configure, plain
from bench.errors import BenchError, RunFailed
from bench.metrics.inversion import nearest_private
from bench.metrics.power import Power, power
from bench.privacy import Budget
from bench.privacy.accountant import Overspent
from bench.records import (
    RECORD,
    AttackSpec,
    DataSpec,
    EnsembleSpec,
    EvaluatorSpec,
    RandomSpec,
    Record,
    ReleaseSpec,
    RunSpec,
    TeacherSpec,
    canonical,
)
from bench.scoring import Scored
from bench.store import Step, Store, publish

EVALUATOR_SEED = 2020
MOST_COLUMNS = 20
NAMES = {"student": "student", "teacher": "teacher", "random": "random net"}


@dataclass(frozen=True)
class Settings:
    """What a user asks for; every field is an option of `bench run`."""

    method: str
    attack: str | None
    dataset: str = "digits"
    split: str = "iid"
    data_root: Path | None = None
    download: bool = False
    teacher: str = "resnet18"
    teacher_weights: Path | None = None
    teacher_normalise: tuple[float, float] | None = None
    student: str = "datalens"
    tier: str = "quick"
    budget: Budget = field(default_factory=Budget)
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    noise: Literal["seeded", "os"] = "seeded"
    out: Path = Path("runs")
    fresh: bool = False
    method_options: tuple[tuple[str, str], ...] = ()
    attack_options: tuple[tuple[str, str], ...] = ()
    teacher_options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Job:
    """Settings with everything checked and loaded that can be checked before anything is trained."""

    settings: Settings
    device: torch.device
    store: Store
    method: Any
    attack: Any | None
    recipe: teachers.Recipe
    evaluator_recipe: teachers.Recipe
    weights_sha256: str | None
    material: steps.Material

    def context(self, seed: int) -> Context:
        """The context of a step with its own seed."""
        s = self.settings
        return Context(self.device, seed, console.track, self.store, s.noise, s.precision == "bf16", s.compile)


@dataclass(frozen=True)
class Outcome:
    """A record, the directory it was published in, and whether it was there already."""

    record: Record
    path: Path
    cached: bool


def prepare(settings: Settings) -> Job:
    """Check all that a user can get wrong, then load the data.

    Raises:
        BenchError: one line saying what was given, what is expected and what to do.
    """
    data.check(settings.dataset)
    for arch in (settings.teacher, settings.student):
        nets.check(arch)
    method = configure(registry.load("method", settings.method), settings.tier, dict(settings.method_options), "method")
    attack = _attack(settings)
    recipe = configure(teachers.Recipe, settings.tier, dict(settings.teacher_options), "teacher")
    sha = _weights_sha256(settings.teacher_weights)
    device = pick_device(settings.device)
    store = Store(settings.out, settings.fresh, console.say)
    material = _material(settings)
    method.check(settings.budget, material.data.name, material.data.classes)
    if "teacher_ensemble" in method.needs:
        _check_shards(method.shards(settings.teacher, material.data.name), len(material.private[0]))
    return Job(settings, device, store, method, attack, recipe, teachers.recipe_for(settings.tier), sha, material)


def _check_shards(shards: Shards, records: int) -> None:
    for arch in shards.archs:
        nets.check(arch)
    if shards.count > records:
        raise BenchError(f"{shards.count} teachers for {records} private records: give at most that many")


def _attack(settings: Settings) -> Any | None:
    if settings.attack is None:
        if settings.attack_options:
            raise BenchError(f"--attack.{settings.attack_options[0][0]} was given without --attack; name the attack")
        return None
    plugin = configure(registry.load("attack", settings.attack), settings.tier, dict(settings.attack_options), "attack")
    if plugin.goal != "inversion":
        raise BenchError(f"--attack {settings.attack}: its goal '{plugin.goal}' has no scorer; expected 'inversion'")
    return plugin


def _weights_sha256(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise BenchError(f"--teacher-weights {path}: no such file; give a .safetensors or a torch state-dict file")
    return steps.file_sha256(path)


def pick_device(name: str) -> torch.device:
    """The torch device called `name`: auto, cpu, cuda or cuda:N. Raises BenchError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise BenchError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise BenchError(
            f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use --device cpu or auto"
        )
    return torch.device(name)


def _material(settings: Settings) -> steps.Material:
    images = data.load(settings.dataset, settings.data_root, settings.download)
    split = data.split(images, settings.split)
    load_other = partial(data.load, root=settings.data_root, download=settings.download)
    aux = data.aux_part(images, split, load_other)
    return steps.Material(data.private_domain(images, split), data.private_part(images, split), aux)


def run_spec(job: Job, seed: int) -> RunSpec:
    """The spec of the run that `job` asks for, with one seed."""
    s, m = job.settings, job.material.data
    where = DataSpec(m.name, m.fingerprint, s.split)
    recipe = {} if job.weights_sha256 else plain(job.recipe)
    teacher = TeacherSpec(
        where, s.teacher, job.weights_sha256, recipe, 0 if job.weights_sha256 else seed, s.teacher_normalise
    )
    method = job.method
    budget = steps.budget_plain(s.budget)
    shards = shards_of(job)
    ensemble = None if shards is None else EnsembleSpec(where, asdict(shards), seed)
    release = ReleaseSpec(teacher, s.method, method.version, plain(method), s.student, budget, s.noise, seed, ensemble)
    evaluator = EvaluatorSpec(
        replace(where, split="all"), teachers.EVALUATOR, plain(job.evaluator_recipe), EVALUATOR_SEED
    )
    return RunSpec(s.tier, release, _attack_spec(job, release, seed), evaluator)


def shards_of(job: Job) -> Shards | None:
    """The ensemble that the method asks for at its settings, if any."""
    if "teacher_ensemble" not in job.method.needs:
        return None
    return job.method.shards(job.settings.teacher, job.material.data.name)


def setting(job: Job) -> str:
    """What differs from the tier's defaults, as options in a line, such as "mode=label epsilon=1"."""
    s, usual = job.settings, Budget()
    parts = _changed(registry.load("method", s.method), job.method, s.tier, "")
    if s.attack is not None:
        parts += _changed(registry.load("attack", s.attack), job.attack, s.tier, "attack.")
    for name in ("epsilon", "delta", "account", "solve", "unit"):
        if getattr(s.budget, name) != getattr(usual, name):
            parts.append(f"{name}={getattr(s.budget, name)}")
    return " ".join(parts + ([f"noise={s.noise}"] if s.noise != "seeded" else []))


def _changed(cls: type[Any], plugin: Any, tier: str, prefix: str) -> list[str]:
    default, now = plain(configure(cls, tier, {}, "plugin")), plain(plugin)
    return [f"{prefix}{name}={now[name]}" for name in now if now[name] != default[name]]


def _attack_spec(job: Job, release: ReleaseSpec, seed: int) -> AttackSpec | None:
    name, plugin = job.settings.attack, job.attack
    if name is None or plugin is None:
        return None
    aux = hashlib.sha256(job.material.aux.numpy().tobytes()).hexdigest()[:16]
    return AttackSpec(release, aux, name, plugin.version, plugin.access, plain(plugin), seed)


def run(job: Job, seed: int) -> Outcome:
    """Walk all steps of one run and publish its record; a failure is a record too.

    Raises:
        BenchError: the input was bad after all (corrupt weights, an impossible budget); nothing is published.
        RunFailed: a step failed; the record with status `failed` has been published.
    """
    spec = run_spec(job, seed)
    final = job.store.root / "records" / spec.hash
    if not job.settings.fresh and (known := _published(final)) is not None:
        return Outcome(known, final, cached=True)
    try:
        record, artists = _walk(job, spec)
    except (RunFailed, Overspent, RuntimeError, ArithmeticError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if _published(final) is None:
            record = Record(spec.hash, "failed", reason, asdict(spec), setting(job))
            record.provenance = _provenance(job, {})
            _publish(job, record, final, {})
        raise RunFailed(f"{reason} (recorded in {final / RECORD})") from error
    _publish(job, record, final, artists)
    return Outcome(record, final, cached=False)


def _published(final: Path) -> Record | None:
    """The finished record in `final`, unless it failed, is damaged or lacks a picture."""
    try:
        record = Record.read(final / RECORD)
    except (OSError, ValueError):
        return None
    complete = all((final / name).exists() for name in record.artifacts.values())
    return record if complete and record.status != "failed" else None


Artist = Callable[[Path], None]


def _walk(job: Job, spec: RunSpec) -> tuple[Record, dict[str, tuple[str, Artist]]]:
    s, m = job.settings, job.material
    taught, teacher_net = steps.teacher(job.store, spec.release.teacher, job.recipe, m, s.teacher_weights, job.context)
    judged, evaluator_net = steps.evaluator(job.store, spec.evaluator, job.evaluator_recipe, m, job.context)
    seconds = {"teacher": taught.seconds, "evaluator": judged.seconds}
    record = Record(spec.hash, "ok", "", asdict(spec), setting(job))
    members = None
    if (wanted := spec.release.ensemble) is not None and (shards := shards_of(job)) is not None:
        trained, members = steps.ensemble(job.store, wanted, shards, m, job.context)
        seconds["ensemble"] = trained.seconds
        result = trained.json("result.json")
        record.metrics |= scoring.with_interval("ensemble_accuracy", result["correct"], result["tested"])
        record.metrics["member_accuracy"] = result["member_accuracy"]
    private = m.private if "private_data" in job.method.needs else None
    teacher = Teacher(teacher_net, s.teacher, m.data.shape, m.data.classes, m.data.name, private, members)
    released, student_net = steps.release(job.store, spec.release, job.method, s.budget, teacher, m, job.context)
    seconds["release"] = released.seconds
    for name, step in (("teacher_accuracy", taught), ("evaluator_accuracy", judged), ("accuracy", released)):
        result = step.json("result.json")
        record.metrics |= scoring.with_interval(name, result["correct"], result["tested"])
    result = released.json("result.json")
    if "control" in result:
        control = result["control"]
        record.metrics |= scoring.with_interval("control_accuracy", control["correct"], control["tested"])
    record.student = result["arch"]
    record.privacy = result["privacy"] | {"noise": s.noise, "solved": result["solved"]}
    artists: dict[str, tuple[str, Artist]] = {}
    if (shown := steps.synthetic(released)) is not None:
        artists["synthetic"] = (
            "synthetic.png",
            partial(_draw_synthetic, title=f"{s.method}: synthetic images", images=shown),
        )
    if spec.attack is not None:
        targets = {"student": student_net, "teacher": teacher_net}
        artists |= _attack_all(job, spec, record, targets, evaluator_net, seconds)
    record.provenance = _provenance(job, seconds)
    return record, artists


def _attack_all(
    job: Job,
    spec: RunSpec,
    record: Record,
    nets_by_target: dict[str, nets.Classifier],
    evaluator: nets.Classifier,
    seconds: dict[str, float],
) -> dict[str, tuple[str, Artist]]:
    """Attack student, teacher and random net; fill metrics and the power gate; return the picture to draw."""
    m, aim = job.material, spec.attack
    assert aim is not None and job.attack is not None
    reason = job.attack.applicable(m.data.shape, m.data.classes, len(m.aux))
    if reason is not None:
        record.status, record.reason = "skipped", f"{aim.attack} does not apply: {reason}"
        return {}
    random_spec = RandomSpec(spec.release.teacher.data, spec.release.teacher.arch, aim.seed)
    nets_by_target = nets_by_target | {"random": steps.random_network(random_spec, m, job.device)}
    specs = {
        "student": aim,
        "teacher": replace(aim, target=spec.release.teacher),
        "random": replace(aim, target=random_spec),
    }
    made: dict[str, Step] = {}
    for name, target_spec in specs.items():
        made[name] = steps.attack(job.store, target_spec, job.attack, nets_by_target[name], m, job.context)
        seconds[f"attack_{name}"] = made[name].seconds
    found = {name: steps.reconstructions(step) for name, step in made.items()}
    by = scoring.appoint(evaluator, m.private, job.device)
    scored = {name: scoring.judge(images, by) for name, images in found.items()}
    gate = power(scored["teacher"].confusion, scored["random"].confusion)
    _fill(record, scored, gate, made["student"].json("result.json")["queries"])
    title = f"{aim.attack} against {spec.release.method} on {m.data.name} (first image of the first draw per class)"
    return {"reconstructions": ("reconstructions.png", partial(_draw_attack, title=title, found=found, material=m))}


def _fill(record: Record, scored: dict[str, Scored], gate: Power, queries: int) -> None:
    for name, prefix in (("student", ""), ("teacher", "teacher_"), ("random", "random_")):
        record.metrics |= {f"{prefix}{key}": value for key, value in scored[name].metrics.items()}
        record.missing |= {f"{prefix}{key}": reason for key, reason in scored[name].missing.items()}
    record.metrics |= {"queries": queries, "power_p_teacher": gate.p_teacher, "power_p_random": gate.p_random}
    if not gate.passed:
        record.status, record.reason = "inconclusive", gate.reason


def _draw_synthetic(path: Path, title: str, images: torch.Tensor) -> None:
    rows = [("", images[start : start + 10]) for start in range(0, min(len(images), 60), 10)]
    pictures.grid(path, title, [""] * 10, [row for row in rows if len(row[1]) == 10])


def _draw_attack(path: Path, title: str, found: dict[str, AttackResult], material: steps.Material) -> None:
    images, labels = data.to_float(material.private[0]), material.private[1]
    classes = found["student"].targets.unique()[:MOST_COLUMNS]
    rows = []
    for name, result in found.items():
        first = [int((result.targets == c).nonzero()[0]) for c in classes]
        near = nearest_private(result.images[first], result.targets[first], images, labels)
        rows += [(f"from the {NAMES[name]}", result.images[first]), ("nearest private", images[near])]
    pictures.grid(path, title, [material.data.class_names[int(c)] for c in classes], rows)


def _provenance(job: Job, seconds: dict[str, float]) -> dict[str, Any]:
    return provenance.collect(registry.ROOT, job.device, job.settings.precision, seconds)


def _publish(job: Job, record: Record, final: Path, artists: dict[str, tuple[str, Artist]]) -> None:
    """Write the record with its pictures into its own directory, then the data set's board."""
    with job.store.exclusive(final) as work:
        for key, (file, draw) in artists.items():
            draw(work / file)
            record.artifacts[key] = file
        (work / RECORD).write_text(canonical(asdict(record)), encoding="utf-8")
        publish(work, final)
    leaderboard.refresh(job.store.root, job.material.data.name)
