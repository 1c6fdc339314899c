"""The figures of DP-DFD and DPDFD."""

from __future__ import annotations

from bench.papers.figures.claims import Says
from bench.papers.figures.kinds import SATURATION, Figure, Printed, Sweep

FIGURES: tuple[Figure, ...] = (
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
)
