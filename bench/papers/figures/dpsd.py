"""The figures of DPSD."""

from __future__ import annotations

from bench.papers.figures.claims import Says
from bench.papers.figures.kinds import CLAIMED, SATURATION, TEACHER, WHICH, Figure, Printed, Sweep

IID = 1e6
"""From this alpha on clients are alike: their shares of every class differ by less than a percent."""

FIGURES: tuple[Figure, ...] = (
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
                endless=IID,
                beyond="iid",
                printed=(Printed("Table V", "feddpsd", at="partition"),),
            ),
        ),
        note="Not a figure of the paper: it prints one alpha, 0.5, in Table V. A small one gives clients few classes.",
    ),
)
