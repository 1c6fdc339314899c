"""Which releases the tables of docs/ show, and under what label."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.storage.options import BUDGET, Changed


def given(**options: Any) -> Changed:
    """Options as records hold them, group to option to value."""
    found: Changed = {"method": {}, "budget": {}}
    for name, value in options.items():
        found["budget" if name in BUDGET else "method"][name] = value
    return filled(found)


def filled(options: Changed) -> Changed:
    """The groups that hold any."""
    return {group: held for group, held in options.items() if held}


SOUND: dict[str, Any] = {"account": "accounted"}
LABEL = given(epsilon=1.0, unit="label", **SOUND)
NONE = given(epsilon="inf", solve="none")
UNPROMISED = given(epsilon=None, solve="none")


@dataclass(frozen=True)
class Line:
    """A row of the tables of results: its label, a method, and its options; one that did not run on a data set is left
    out there. Of several variants the default one is meant, and the usual teacher, unless `variant` or `teacher` names
    another."""

    label: str
    method: str
    options: Changed = field(default_factory=dict)
    variant: str | None = None
    teacher: str | None = None


LINES = (
    Line("no-defence", "no-defence"),
    *(
        Line(f"class-moments, {n} teachers, `--epsilon {e:g}`", "class-moments", given(teachers=n, epsilon=e, **SOUND))
        for n, e in ((40, 8.0), (40, 2.0), (50, 8.0), (50, 1.0))
    ),
    *(Line(f"class-moments, `--epsilon {e:g}`", "class-moments", given(epsilon=e, **SOUND)) for e in (8.0, 2.0, 1.0)),
    *(Line(f"private-features, `--epsilon {e:g}`", "private-features", given(epsilon=e)) for e in (8.0, 3.0, 1.0)),
    *(Line(f"scatter-cnn, `--epsilon {e:g}`", "scatter-cnn", given(epsilon=e)) for e in (8.0, 3.0, 1.0)),
    Line("dp-dfd", "dp-dfd"),
    Line("dpsd, label mode", "dpsd", given(mode="label")),
    Line("dpdfd", "dpdfd"),
    Line("fed-dpsd", "fed-dpsd"),
    Line("fed-dpsd, label mode", "fed-dpsd", given(mode="label")),
    Line("dpsd, label mode, 51,200 questions", "dpsd", given(mode="label", questions=51_200)),
    Line("dpsd (the default)", "dpsd"),
    Line("dpsd, beta 1e-3", "dpsd", given(beta=1e-3)),
    Line("dgd", "dgd"),
    *(
        Line(name, name)
        for name in ("ts-adp", "dp-sgd", "gm-dp", "zcdp", "dp-teacher", "dp-merf", "p3gm", "psg", "dp-gan")
    ),
    *(Line(name, name) for name in ("rgp", "dp-blsgd", "spectral-dp", "topagg", "geddp", "dpgen")),
    Line("dp-sinkhorn", "dp-sinkhorn"),
    Line("datalens", "datalens"),
    *(
        Line(f"{name}, `--account accounted`", name, given(**SOUND))
        for name in ("gep", "gs-wgan", "datalens", "pate", "pate-gnmax", "pate-gan", "g-pate")
    ),
    *(
        Line(f"{m}, `--epsilon 1 --unit label`", m, LABEL)
        for m in ("alibi", "lp-2st", "rr-debiased", "rr", "cluster-rr", "label-protocol")
    ),
    Line("cluster-rr, `--epsilon 1 --unit label`", "cluster-rr", given(epsilon=1.0, unit="label")),
    *(Line(name, name, NONE) for name in ("non-private-kd", "label-smoothing")),
    *(
        Line(label, name, options)
        for name in ("fedavg", "feddf", "dense", "fedadi", "feddafl")
        for label, options in ((name, NONE), (f"{name}, `--epsilon none`", UNPROMISED))
    ),
    *(Line(name, name, NONE) for name in ("raw-images", "acgan", "wgan", "infogan")),
)
LEARNT: dict[str, Any] = {"critics": 500, "steps": 2000, "critic_steps": 25, "critic_width": 8, "width": 16}
"""Of `gs-wgan`: critics that learn for longer before each use (`recipes/sizes.toml`)."""
FINDINGS = {
    "answers": (
        Line("`dpsd`, data mode", "dpsd"),
        Line("`dpsd`, label mode", "dpsd", given(mode="label")),
        Line("`dpdfd`", "dpdfd"),
        Line("`dp-dfd`", "dp-dfd"),
        Line("`fed-dpsd`, data mode", "fed-dpsd"),
    ),
    "free": (
        Line("25,600 answers", "dpsd", given(mode="label")),
        Line("51,200, as many as the paper", "dpsd", given(mode="label", questions=51_200)),
        Line("409,600 answers, at a claimed 1", "dpsd", given(mode="label", questions=409_600, copies=32, epsilon=1.0)),
    ),
    "bound": (
        Line("beta = 0.005", "dpsd"),
        Line("beta = 0.001", "dpsd", given(beta=1e-3)),
    ),
    "norm": tuple(
        Line(f"C = {c:g}" + (", clipped" if clip else ""), "dpdfd", given(epsilon=0.6, norm_bound=c, **clip))
        for c in (1e-2, 1e-3, 1e-4, 1e-5)
        for clip in ({}, {"bound": "clip"})
    ),
    "beta": tuple(
        Line(
            f"claimed {e:g}, beta = {'0.001' if e <= 1 else '0.005'}", "dpsd",
            {} if e == 10 else given(epsilon=e), teacher="resnet34",
        )
        for e in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    ),
    "operations": tuple(
        Line(
            f"beta = {b:g}" + (", clipped" if clip else ""), "dpsd", given(beta=b, epsilon=1.0, **clip),
            teacher="resnet34",
        )
        for b in (1e-2, 1e-3, 1e-4, 1e-5)
        for clip in ({}, {"bound": "clip"})
    ),
    "nothing": (
        Line("DGD, generator from the baseline classifier", "dgd", {}, "printed"),
        Line("DP-DFD, soft answers", "dp-dfd", given(answers="soft"), "printed"),
        Line("DPSD-T, generator from the teacher", "dpsd", given(discriminator="teacher"), "printed"),
        Line("DPDFD, Table 4, private images in the update", "dpdfd", given(data="private"), "printed"),
    ),
    "printed": (
        Line("DPSD, data mode", "dpsd", {}, "printed"),
        Line("DPSD, label mode", "dpsd", given(mode="label"), "printed"),
        Line("DPDFD", "dpdfd", {}, "printed"),
        Line("DP-DFD", "dp-dfd", {}, "printed"),
        Line("DGD", "dgd", {}, "printed"),
    ),
    "true": (
        Line("`private-features`", "private-features", given(epsilon=1.0)),
        Line(
            "`dp-teacher`, a student that it teaches", "dp-teacher",
            given(teacher="private-features", conversion="transcribe", epsilon=1.0),
        ),
        Line("`class-moments`, 50 teachers", "class-moments", given(teachers=50, epsilon=1.0, **SOUND)),
        Line("`dpsd`", "dpsd", given(epsilon=1.0)),
        Line("`dpdfd`", "dpdfd", given(epsilon=1.0)),
        Line(
            "`dp-dfd`, 409,600 answers", "dp-dfd", given(amount=409_600, copies=32, epsilon=1.0),
        ),
    ),
    "schedule": (
        Line("no noise", "gs-wgan", given(mode="published", epsilon="inf", solve="none", **LEARNT)),
        Line("a claimed 10, as published", "gs-wgan", given(mode="published", **LEARNT)),
        Line("a proved 10", "gs-wgan", given(**LEARNT)),
    ),
}  # fmt: skip
"""Of docs/findings.md, all on MNIST."""
SHOWN = (
    Line("no defence: the teacher", "no-defence"),
    Line("`dpsd`, claimed 10 per answer", "dpsd"),
    Line("`dp-sgd`", "dp-sgd"),
    Line("`dp-teacher`, taught by another DP-SGD network", "dp-teacher"),
    Line("`class-moments`, which asks no teacher", "class-moments", given(epsilon=2.0, **SOUND)),
)
"""Networks that `gmi` inverts, of docs/findings.md."""


@dataclass(frozen=True)
class Headline:
    """A paper's headline cell: its method and options, and the unprotected ingredient that the paper itself names."""

    cell: str
    method: str
    options: Changed = field(default_factory=dict)
    ingredient: str = ""
    unprotected: Changed = field(default_factory=dict)


HEADLINES = (
    Headline("DPSD, Table I", "dpsd", {}, "the generator learns from the teacher", given(discriminator="teacher")),
    Headline(
        "DPSD, Table VI, label mode", "dpsd", given(mode="label"), "the same",
        given(mode="label", discriminator="teacher"),
    ),
    Headline("DPDFD, Table 1", "dpdfd", {}, "Table 4: trained on the private images", given(data="private")),
    Headline("DP-DFD, Table I", "dp-dfd", {}, "the teacher's own vectors as answers", given(answers="soft")),
    Headline("DGD, Table I", "dgd", {}, "the teachers' votes without noise", NONE),
)  # fmt: skip

ELSEWHERE: dict[tuple[str, str, float], tuple[float, str]] = {
    ("dp-sgd", "mnist", 1.0): (0.9511, "Fu et al. 2024"),
    ("dp-sgd", "mnist", 2.0): (0.9610, "Fu et al. 2024"),
    ("dp-sgd", "fmnist", 1.0): (0.8025, "Fu et al. 2024"),
    ("ts-adp", "mnist", 1.0): (0.9706, "Fu et al. 2024"),
    ("ts-adp", "fmnist", 1.0): (0.8363, "Fu et al. 2024"),
    ("dp-merf", "mnist", 10.0): (0.821, "Cao et al. 2021"),
    ("dp-merf", "fmnist", 10.0): (0.754, "Cao et al. 2021"),
    ("g-pate", "mnist", 10.0): (0.51, "Cao et al. 2021"),
    ("g-pate", "fmnist", 10.0): (0.50, "Cao et al. 2021"),
}
"""Accuracy by method, data and claimed epsilon that neither the method's authors nor the four papers measured: Fu et
al., "DPSUR", VLDB 2024, Table 2; Cao et al., "Don't Generate Me", NeurIPS 2021, Table 1 (of g-pate, by Chen et al.
2020)."""
