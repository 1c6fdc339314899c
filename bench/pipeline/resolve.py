"""Turn a user's settings into a job, and find every input error before anything is trained."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from bench import data, nets, registry, teachers
from bench.api import (
    Attack,
    MembershipAttack,
    Method,
    PretrainedMethod,
    PublicDataMethod,
    ReleaseAttack,
    refuse_groups,
)
from bench.config import EVALUATOR, Variant, options
from bench.errors import BadData, BadOption, BadPlugin, BenchError, Incompatible, plugin_errors
from bench.metrics.power import FEWEST
from bench.pipeline.components import Components
from bench.pipeline.job import Job
from bench.pipeline.material import Wanted
from bench.pipeline.settings import Settings
from bench.privacy import Unit
from bench.ranks import Ranks
from bench.validate import present

PROPOSED = ("gmi", "mi-face", "pca-mi", "rmia", "lira", "loss-threshold", "label-only")
"""Attacks to suggest instead of one that does not fit, the preferred first."""


def load_job(settings: Settings, components: Components | None = None, budget: bool = True) -> Job:
    """Find the plug-ins, check their combination, load the data. Trains nothing.

    Args:
        components: source of the parts; a caching one for many jobs.
        budget: also run the checks of `Job.check`; otherwise the caller runs them before training.

    Raises:
        BenchError: one line saying what was given, what is expected and what to do.
    """
    find = components or Components()
    s = replace(settings, teacher=find.teacher(settings.teacher))
    check_names(find, s)
    method, variant = find.plugin("method", s.method, s.variant, s.tier, s.method_options)
    refuse_groups(method, s.budget, s.method)
    check_solved_noise(method, s)
    attack, attack_variant = find_attack(find, s)
    recipe = find.recipe(s.tier, s.teacher_options)
    weights_sha256, devices = find.weights_sha256(s.teacher_weights), find.devices(s.device, s.devices)
    store = find.store(s.out, s.fresh)
    evaluator_recipe = find.evaluator_recipe(s.tier, data.slug(s.dataset), s.evaluator_options)
    pretrained = find_pretrained(find, s, method)
    material = find.material(wanted_images(s, method))
    if attack is not None and attack.goal == "inversion":
        find.check_judge(material.data.name)
    job = Job(
        settings=s,
        device=devices[0],
        store=store,
        method=method,
        variant=variant,
        attack=attack,
        attack_variant=attack_variant,
        recipe=recipe,
        evaluator_recipe=evaluator_recipe,
        weights_sha256=weights_sha256,
        material=material,
        components=find,
        ranks=Ranks(devices) if len(devices) > 1 else None,
        pretrained=pretrained,
    )
    check_groups(job)
    if budget:
        job.check()
    check_own_teacher(job)
    check_ensemble(job)
    check_public_images(job)
    return job


def check_names(find: Components, settings: Settings) -> None:
    """Refuse unknown data sets and networks, and options of a teacher or an evaluator that contradict each other."""
    find.check_data(settings.dataset)
    for arch in (settings.teacher, settings.student, settings.evaluator):
        find.check_network(arch)
    if settings.evaluator != EVALUATOR and settings.evaluator == settings.teacher:
        raise BadOption(
            f"--evaluator {settings.evaluator}: the teacher is the same network, and an image that fools one may fool "
            "the other; give a network of another family, or leave --evaluator out"
        )
    if settings.teacher_weights is not None and settings.teacher_options:
        raise BadOption(
            f"--teacher.{settings.teacher_options[0][0]} is an option of training, and --teacher-weights "
            f"{settings.teacher_weights} is a trained teacher; leave one of them out"
        )


def wanted_images(settings: Settings, method: Method) -> Wanted:
    """Return the selection of images that these settings need."""
    return Wanted(
        dataset=settings.dataset,
        split=settings.split,
        data_root=settings.data_root,
        download=settings.download,
        public="public_data" in method.needs,
        skip_broken=settings.skip_broken,
        out=settings.out,
        reading=settings.reading,
        attacked=settings.attack is not None or settings.split not in data.FROM_ANOTHER_SET,
    )


def find_pretrained(find: Components, settings: Settings, method: Method) -> teachers.PretrainedWeights | None:
    """Return the public pretrained weights that the method needs; None if it needs none.

    Raises:
        BenchError: there are none on this machine, or the user gave some to a method that needs none.
    """
    if "pretrained_weights" not in method.needs:
        if settings.pretrained is not None:
            raise BadOption(
                f"--pretrained {settings.pretrained}: {settings.method} uses no pretrained weights at these settings; "
                "leave it out, or give --method private-features --method.features timm:NAME"
            )
        return None
    if not isinstance(method, PretrainedMethod):
        raise BadPlugin(f'{settings.method} needs "pretrained_weights" and has no `backbone()`; fix the plug-in')
    with plugin_errors(f"method '{settings.method}'"):
        name = method.backbone()
    file = teachers.find_pretrained(name, settings.pretrained)
    return teachers.PretrainedWeights(name, file, present(find.weights_sha256(file), "hash of the weights"))


def find_attack(
    find: Components, settings: Settings
) -> tuple[Attack | MembershipAttack | ReleaseAttack | None, Variant]:
    """Return the attack with its variant; None without one, for which no options may be given."""
    if settings.attack is None:
        if settings.attack_options:
            raise BadOption(f"--attack.{settings.attack_options[0][0]} was given without --attack; name the attack")
        if settings.attack_variant is not None:
            raise BadOption("--attack-variant was given without --attack; name the attack")
        return None, "printed"
    return find.plugin("attack", settings.attack, settings.attack_variant, settings.tier, settings.attack_options)


def check_solved_noise(method: Method, settings: Settings) -> None:
    """Refuse an option for the noise that the budget decides: the record would show noise that was not added."""
    budget = settings.budget
    if budget.epsilon is None or (budget.solve != "sigma" and math.isfinite(budget.epsilon)):
        return
    solved = {option.name for option in options(type(method)) if option.solved}
    for name, value in settings.method_options:
        if name in solved:
            raise BadOption(
                f"--method.{name} {value}: --epsilon {budget.epsilon:g} decides it; leave it out, or give "
                "--epsilon none, which keeps it, or --solve steps, which finds the number of steps instead"
            )


def check_own_teacher(job: Job) -> None:
    """Refuse a user's own teacher that is never queried, or whose normalisation is for other images."""
    s, channels = job.settings, job.material.data.shape[0]
    if s.teacher_weights is not None and not job.needs_teacher:
        raise BadOption(f"--teacher-weights {s.teacher_weights}: {s.method} queries no teacher; leave them out")
    for name, values in zip(("means", "deviations"), s.teacher_normalise or (), strict=False):
        if isinstance(values, tuple) and len(values) not in (1, channels):
            raise BadOption(
                f"--teacher-normalise: {len(values)} {name} for images of {channels} channel{'s' * (channels != 1)}; "
                f"give one{f' or {channels}' if channels != 1 else ''}"
            )


def check_ensemble(job: Job) -> None:
    """Refuse an ensemble of unknown networks, or of more teachers than private records."""
    shards, records = job.shards(), len(job.material.private[0])
    for arch in () if shards is None else shards.archs:
        nets.check(arch)
    if shards is not None and shards.count > records:
        raise BadOption(f"{shards.count} teachers for {records} private records: give at most that many")


def check_groups(job: Job) -> None:
    """Refuse unit group if the groups are unknown, too few for the classes or the method, or in both parts.

    A group that is in the training part and in the test part has records that the account does not cover, and the
    accuracy would be that on known groups.
    """
    images, groups = job.material.data, job.material.private_groups
    if job.settings.budget.unit != Unit.GROUP:
        return
    if groups is None or images.test_groups is None:
        raise BadData(
            f"--unit group: data set '{images.name}' does not say which group a record belongs to; give image folders "
            "a groups.csv or --groups FILE, arrays the key groups, or use --unit example"
        )
    private = groups.unique()
    if shared := int(torch.isin(images.test_groups.unique(), private).sum()):
        raise BadData(
            f"--unit group: {shared} groups of data set '{images.name}' are in the training and in the test part; put "
            "all records of a group into one of them"
        )
    if len(private) < images.classes:
        raise BadData(
            f"--unit group: data set '{images.name}' has {len(private)} private groups for {images.classes} classes; "
            "give at least one group for each class, or use --unit example"
        )
    if hasattr(job.method, "check_groups"):
        with plugin_errors(f"method '{job.settings.method}'"):
            job.method.check_groups(len(private), images.name)


def check_public_images(job: Job) -> None:
    """Refuse a method that needs more public images than the data set has, or that cannot read its own ones."""
    public, name, method = job.material.public, job.material.data.name, job.settings.method
    _ = job.public  # reads them
    if public is None:
        return
    if not isinstance(job.method, PublicDataMethod):
        raise BadPlugin(f'{method} needs "public_data" and has no `least_public()`; fix the plug-in')
    with plugin_errors(f"method '{method}'"):
        least = job.method.least_public()
    if least > len(public):
        raise BadOption(
            f"{method} needs {least} public images to query, and data set '{name}' has {len(public)}: lower its option "
            f"for their number (`bench show {method}`)"
        )


def unfit_reason(job: Job) -> str | None:
    """Return why the attack of a run cannot have a result: it does not apply, or its power cannot be tested; else None.

    An attack without queries has no power by design; it is a baseline of the others.
    """
    if job.attack is None or job.attack_skip_reason is not None:
        return job.attack_skip_reason
    classes = job.material.data.classes
    if job.goal == "inversion" and classes < FEWEST and not job.attack.is_null:  # type: ignore[union-attr]
        return (
            f"{classes} classes are too few for an inversion, whose success is tested class by class; expected "
            f"{FEWEST} or more"
        )
    return None


def fitting_attack(job: Job) -> str | None:
    """Return an attack that fits the data of a run with its usual options, of the same goal if possible; else None."""

    def fits(name: str) -> bool:
        settings = replace(job.settings, attack=name, attack_variant=None, attack_options=())
        try:
            attack, variant = job.components.plugin("attack", name, None, settings.tier, ())
            return unfit_reason(replace(job, settings=settings, attack=attack, attack_variant=variant)) is None
        except BenchError:  # do not suggest an attack that cannot be set up here
            return False

    fitting = [name for name in PROPOSED if name in registry.entries("attack") and fits(name)]
    return min(fitting, key=lambda name: registry.load("attack", name).goal != job.goal, default=None)


def refuse_unfit(job: Job) -> None:
    """Raise BenchError for an attack that cannot give a result, naming one that fits."""
    reason = unfit_reason(job)
    if reason is None:
        return
    other = fitting_attack(job)
    advice = f"give --attack {other}" if other else "leave --attack out"
    raise Incompatible(f"--attack {job.settings.attack}: {reason}; {advice}, or --unfit-attack record to run it anyway")
