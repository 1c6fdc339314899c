"""The figures of DGD."""

from __future__ import annotations

from bench.papers.figures.claims import Says
from bench.papers.figures.kinds import CLAIMED, SATURATION, WHICH, Figure, Printed, Sweep

VOTES = "votes_accuracy"
TOTALS = (Printed("text IV-C", "dgd", "epsilon_total", "queries"),)
"""DGD's sentences on what 400 and 1000 queries cost in all."""

FIGURES: tuple[Figure, ...] = (
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
)
