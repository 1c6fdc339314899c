"""The figures of the four papers: what each draws, of which runs, and which of its numbers are printed anywhere.

The papers print few of their figures' points. What they do print, in a sentence or in a table of the same experiment,
is drawn beside ours: a point, a level where they give no place on the axis, an upright line where they name a place
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.report.figure_claims import Says

Axis = Literal["log", "linear", "names"]
CLAIMED = "epsilon"
"""The claimed epsilon, as an axis; any other axis is an option of the method."""
WHICH = "method"
"""As an axis: which method it is, and which of `Sweep.series` it has."""
TEACHER = "teacher"


@dataclass(frozen=True)
class Printed:
    """Which rows of reported.csv are drawn, and where.

    Attributes:
        table: the beginning of the table's or the sentence's name.
        method: in the papers' own names; "" for any.
        metric: of the row.
        at: "epsilon", a key of the row's setting, "value" (the number is a place on the axis) or "" (a level).
        epsilon: the row's own, as a number; None for any.
        unit: what the paper says is protected; "" for any.
    """

    table: str
    method: str = ""
    metric: str = "accuracy"
    at: str = CLAIMED
    epsilon: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Sweep:
    """One picture of a figure, drawn for every data set that has runs or printed numbers of it.

    Attributes:
        x: `CLAIMED`, `WHICH`, `TEACHER` or an option of the methods.
        label: of that axis.
        y: "accuracy", `CLAIMED`, or another number of a record.
        series: options whose value tells lines apart.
        where: options that a run must have, by their values.
        epsilon: the budget that it must have, where the figure is of one; None for any.
        attack: whose runs are meant, where the number is the attack's.
        datasets: only these of the papers' data sets; () for all.
        says: what the paper's text says of it.
    """

    title: str
    methods: tuple[str, ...]
    x: str
    label: str
    axis: Axis = "linear"
    y: str = "accuracy"
    series: tuple[str, ...] = ()
    where: Mapping[str, object] = field(default_factory=dict)
    epsilon: float | None = None
    attack: str = ""
    datasets: tuple[str, ...] = ()
    printed: tuple[Printed, ...] = ()
    says: tuple[Says, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of a paper; `pictures` names the kind of images of runs of `methods` that it shows besides."""

    paper: str
    name: str
    sweeps: tuple[Sweep, ...] = ()
    pictures: str = ""
    methods: tuple[str, ...] = ()
    note: str = ""


VOTES = "votes_accuracy"
SATURATION = "synthetic_samples_at_convergence"
TOTALS = (Printed("text IV-C", "dgd", "epsilon_total", "queries"),)
"""DGD's sentences on what 400 and 1000 queries cost in all."""

FIGURES = (
    Figure(
        "dp-dfd",
        "Fig. 2",
        (
            Sweep(
                "accuracy over the number of synthetic images",
                ("dp-dfd",),
                "amount",
                "synthetic images",
                "log",
                epsilon=1,
                printed=(
                    Printed("text III-C", "dp-dfd", SATURATION, "value"),
                    Printed("Table I", "dp-dfd", at="", epsilon=1),
                ),
                says=(Says("accuracy grows with the images, until it converges", "rises", ("dp-dfd printed",)),),
            ),
        ),
        note="At epsilon 1. The upright line is where the text says that accuracy saturates; the level is Table I's.",
    ),
    Figure(
        "dp-dfd",
        "Fig. 3",
        (
            Sweep(
                "accuracy over the number of stages",
                ("dp-dfd",),
                "stages",
                "stages",
                "log",
                epsilon=10,
                printed=(Printed("Table I", "dp-dfd", at="", epsilon=10),),
                says=(Says("between 20 and 320 stages accuracy increases with them", "rises", ("dp-dfd printed",)),),
            ),
        ),
        note="At epsilon 10. The level is Table I's.",
    ),
    Figure("dp-dfd", "Fig. 4", pictures="synthetic", methods=("dp-dfd",), note="Images that the generator drew."),
    Figure(
        "dp-dfd",
        "Fig. 5",
        pictures="reconstructions",
        methods=("datalens", "alibi", "dp-dfd"),
        note="What generative inversion brings back of three students on MNIST.",
    ),
    Figure(
        "dpdfd",
        "Fig. 2",
        (
            Sweep(
                "accuracy over the norm bound",
                ("dpdfd",),
                "norm_bound",
                "norm bound C",
                "log",
                series=("bound",),
                epsilon=0.6,
                printed=(Printed("text 5.3", metric="norm_bound_crossover", at="value"),),
                says=(
                    Says(
                        "where C is small, normalising is significantly better than clipping",
                        "ahead",
                        ("bound=normalise",),
                        ("bound=clip",),
                        most=2e-4,
                    ),
                    Says(
                        "from about 0.001, clipping is ahead",
                        "ahead",
                        ("bound=clip",),
                        ("bound=normalise",),
                        least=9e-4,
                    ),
                    Says("the student is better where C is small", "falls", ("bound=normalise",)),
                ),
            ),
        ),
        note="At epsilon 0.6. The upright line is from where, by the text, clipping is ahead of normalising.",
    ),
    Figure(
        "dpdfd",
        "Table 5, over sigma",
        (
            Sweep(
                "accuracy over the noise scale",
                ("dpdfd",),
                "sigma",
                "sigma",
                "log",
                printed=(Printed("Table 5", "dpdfd", at="sigma"),),
            ),
        ),
        note="Not a figure of the paper: its Table 5 drawn. The paper gives no epsilon for it.",
    ),
    Figure(
        "dgd",
        "Fig. 3",
        (
            Sweep(
                "accuracy over the number of queries",
                ("dgd",),
                "queries",
                "queries",
                "log",
                datasets=("mnist", "fmnist"),
                printed=(
                    Printed("text IV-A", "dgd", at="queries"),
                    Printed("text IV-B label query", "dgd", at="queries"),
                ),
                says=(Says("more queries, a higher epsilon: a higher accuracy", "rises", ("dgd printed",)),),
            ),
            Sweep(
                "claimed epsilon over the number of queries",
                ("dgd",),
                "queries",
                "queries",
                "log",
                y=CLAIMED,
                printed=TOTALS,
            ),
        ),
        note="The sentence with 95.2 % at 750 queries names no data set.",
    ),
    Figure(
        "dgd",
        "Fig. 4",
        (
            Sweep(
                "students of private images and of generators",
                ("dgd", "raw-images", "acgan", "wgan", "infogan"),
                WHICH,
                "where the images come from",
                "names",
                series=("images",),
            ),
        ),
        note="No number of this figure is printed in the text.",
    ),
    Figure(
        "dgd",
        "Fig. 5",
        pictures="synthetic",
        methods=("dgd", "acgan", "wgan", "infogan"),
        note="Images of different generators.",
    ),
    Figure(
        "dgd",
        "Fig. 6",
        (
            Sweep(
                "accuracy over the number of synthetic images",
                ("dgd",),
                "synthetic",
                "synthetic images",
                "log",
                printed=(Printed("text IV-B generator learning", metric=SATURATION, at="value"),),
                says=(
                    Says("accuracy increases with the images, up to 60,000", "rises", ("dgd printed",), most=60_000),
                ),
            ),
        ),
        note="The upright line is from where accuracy is flat by the text.",
    ),
    Figure(
        "dgd",
        "Fig. 7",
        (
            Sweep(
                "votes on private or public images, over epsilon",
                ("pate", "pate-gnmax"),
                CLAIMED,
                "ε claimed",
                "log",
                datasets=("mnist", "svhn"),
            ),
            Sweep(
                "the same of DGD without a generator",
                ("dgd",),
                CLAIMED,
                "ε claimed",
                "log",
                series=("aggregation",),
                where={"images": "private"},
                datasets=("mnist", "svhn"),
                printed=(Printed("text IV-B VAE", at=""),),
                says=(Says("Gaussian votes are better than Laplace's", "ahead", ("=gaussian",), ("=laplace",)),),
            ),
        ),
        note="PATE, PATE+, and DGD and DGD+ on private images. The levels are DGD+'s and the teacher's; the text gives "
        "no epsilon.",
    ),
    Figure(
        "dgd",
        "Fig. 8",
        (
            Sweep(
                "the noisy votes over the number of teachers",
                ("dgd",),
                "teachers",
                "teachers",
                "log",
                y=VOTES,
                says=(Says("accuracy increases with the teachers, and then degrades", "peaks", ("dgd printed",)),),
            ),
            Sweep("the same votes without noise", ("dgd",), "teachers", "teachers", "log", y="ensemble_accuracy"),
            Sweep("their student", ("dgd",), "teachers", "teachers", "log"),
            Sweep(
                "accuracy over epsilon",
                ("dgd",),
                CLAIMED,
                "ε claimed",
                "log",
                series=("aggregation",),
                printed=(Printed("Table I", "dgd"),),
                says=(
                    Says("accuracy rises with epsilon", "rises", ("dgd printed", "=laplace"), but=("=private",)),
                    Says(
                        "Gaussian votes are remarkably better than Laplace's",
                        "ahead",
                        ("dgd printed", "=gaussian"),
                        ("dgd printed", "=laplace"),
                        ("=private",),
                    ),
                ),
            ),
            Sweep(
                "claimed epsilon over the noise scale",
                ("dgd",),
                "scale",
                "noise scale",
                "log",
                y=CLAIMED,
                says=(Says("epsilon declines with the noise", "falls", ("dgd printed", "epsilon=none")),),
            ),
            Sweep(
                "claimed epsilon over the number of queries",
                ("dgd",),
                "queries",
                "queries",
                "log",
                y=CLAIMED,
                printed=TOTALS,
            ),
        ),
        note="The points at epsilon 1 and 10 are Table I's; the totals are those of section IV-C. Over the teachers the"
        " figure has the noisy votes; what they are without noise, and what the student makes of them, is beside.",
    ),
    Figure(
        "dgd",
        "Fig. 9",
        pictures="reconstructions",
        methods=("dgd", "datalens", "gs-wgan"),
        note="What attacks bring back of DGD's student on MNIST; its students of two digits alone are not here.",
    ),
    Figure(
        "dpsd",
        "Fig. 4",
        (
            Sweep(
                "nine pretrained teachers on ImageNet",
                ("no-defence", "dpsd", "dpdfd"),
                TEACHER,
                "teacher",
                "names",
                series=("mode",),
                datasets=("imagenet",),
                printed=(
                    Printed("text IV-B", "dpsd", at="teacher"),
                    Printed("text IV-B", "teacher", at="teacher"),
                ),
            ),
        ),
        note="The text prints the best student at epsilon 1, of ShuffleNet, and the best teacher, a ViT.",
    ),
    Figure(
        "dpsd",
        "Fig. 5",
        (
            Sweep(
                "accuracy over the normalisation bound",
                ("dpsd",),
                "beta",
                "normalisation bound beta",
                "log",
                series=("bound",),
                where={"mode": "data"},
                epsilon=1.0,
                says=(
                    Says(
                        "where beta is small, normalising is better than clipping",
                        "ahead",
                        ("bound=normalise",),
                        ("bound=clip",),
                        most=2e-5,
                    ),
                ),
            ),
            Sweep(
                "accuracy over the noise scale",
                ("dpsd",),
                "sigma",
                "sigma",
                "log",
                where={"mode": "data"},
                says=(
                    Says(
                        "accuracy gets better from 20 to 100, and slightly worse beyond",
                        "peaks",
                        ("epsilon=none",),
                        least=15,
                    ),
                ),
            ),
            Sweep(
                "accuracy over the iterations",
                ("dpsd",),
                "iterations",
                "iterations T",
                "log",
                where={"mode": "label"},
                says=(Says("from 40 to 320 they boost accuracy", "rises", ("dpsd printed",), most=320),),
            ),
            Sweep(
                "accuracy over the candidates",
                ("dpsd",),
                "k",
                "candidates k",
                where={"mode": "label"},
                says=(
                    Says(
                        "accuracy improves with k, then declines, and rises again", "waves", ("dpsd working",), most=10
                    ),
                ),
            ),
            Sweep(
                "accuracy over the number of images asked about",
                ("dpsd",),
                "questions",
                "synthetic images",
                "log",
                where={"mode": "label"},
                printed=(Printed("text IV-F.1", "dpsd", SATURATION, "value"),),
            ),
        ),
        note="The upright lines are where the text says that accuracy saturates; no other point is printed.",
    ),
    Figure(
        "dpsd",
        "Fig. 6",
        (
            Sweep(
                "classic and decoupled distillation",
                ("dpsd",),
                CLAIMED,
                "ε claimed",
                "log",
                series=("loss",),
                where={"mode": "data"},
                datasets=("mnist", "fmnist"),
                printed=(Printed("Table I", "dpsd", unit="data"),),
                says=(Says("decoupled distillation is better than the classic one", "ahead", ("=dkd",), ("=kd",)),),
            ),
        ),
        note="The figure's epsilons are not printed; those of Table I are drawn.",
    ),
    Figure("dpsd", "Fig. 7", pictures="synthetic", methods=("dpsd",), note="Images that the students learnt from."),
    Figure(
        "dpsd",
        "Fig. 8",
        (
            Sweep(
                "(IS-1) 10⁶ of what GMI brings back",
                ("datalens", "alibi", "dpsd"),
                WHICH,
                "student",
                "names",
                y="inception_e6",
                series=("mode",),
                epsilon=1.0,
                attack="gmi",
                datasets=("mnist",),
            ),
        ),
        pictures="reconstructions",
        methods=("datalens", "alibi", "dpsd"),
        note="By (IS-1) 10⁶, more is a better reconstruction. The figure's numbers are not printed in the text.",
    ),
    Figure(
        "dpsd",
        "Fig. 9",
        (
            Sweep(
                "accuracy over epsilon, data mode",
                ("dpsd",),
                CLAIMED,
                "ε claimed",
                "log",
                where={"mode": "data"},
                printed=(
                    Printed("text IV-H.3", "dpsd"),
                    Printed("Table I", "dpsd", unit="data"),
                    Printed("Table III", "dpsd", unit="data"),
                ),
                says=(Says("accuracy sharply falls towards a very low epsilon", "rises", ("dpsd working",)),),
            ),
        ),
        note=(
            "Printed: 0.1 in the text, 1 and 10 in Table I, others in Table III. beta is the paper's, 0.001 up to 1 "
            "and 0.005 above, by which a claimed 2 needs more noise than 1: see docs/findings.md."
        ),
    ),
    Figure(
        "dpsd",
        "Table V, over alpha",
        (
            Sweep(
                "federated students over the clients' likeness",
                ("fed-dpsd", "fedavg", "feddf"),
                "alpha",
                "alpha of the Dirichlet shares",
                "log",
                series=("mode",),
                printed=(Printed("Table V", "feddpsd", at="partition"),),
            ),
        ),
        note="Not a figure of the paper: it prints one alpha, 0.5, in Table V. A small one gives clients few classes.",
    ),
)
