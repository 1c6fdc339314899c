"""Every built-in metric, in the order in which boards, report and terminal show them."""

from __future__ import annotations

from bench.metrics.metric import Metric, Of


def _by_judge(
    key: str, label: str, images: str, of: Of = "floor", core: bool = False, whole: bool = True
) -> tuple[Metric, ...]:
    """Return the metrics by the face judge (`bench.pipeline.face_judge`), a network that no attack has access to.

    Args:
        key, label: prefixes of the names of the three numbers.
        images: name of the judged images, in the plural.
        whole: True if boards and terminal show all three numbers, False for the first only.
    """
    return (
        Metric(
            f"{key}judge_accuracy", f"{label}judge accuracy",
            f"Of {images}, the share whose face an independent judge finds nearest to the person aimed at.",
            "share", "down", of=of, beside_teacher=core, core=core, newer=True,
        ),
        Metric(
            f"{key}judge_near", f"{label}judged near",
            f"Of {images}, the share that the judge takes for the person aimed at: nearer than 0.6 to the mean face.",
            "share", "down", of=of, averaged=whole, beside_teacher=core, newer=True,
        ),
        Metric(
            f"{key}judge_distance", f"{label}judged distance",
            f"Median distance of {images}, to the mean face of the person aimed at, by the judge.",
            "distance", "up", of=of, averaged=whole, newer=True,
        ),
    )  # fmt: skip


BUILT_IN = (
    Metric(
        "accuracy", "accuracy", "Share of the test images that the network classifies rightly.", "share", "up",
        of="classifier", deviation=True, beside_teacher=True, core=True,
    ),
    Metric(
        "attack_accuracy", "attack accuracy",
        "Share of reconstructions that the evaluator, which no attack saw, assigns to the class they were aimed at.",
        "share", "down", deviation=True, beside_teacher=True, core=True,
    ),
    Metric(
        "attack_accuracy_std", "deviation over draws",
        "Standard deviation of the attack accuracy over the attack's independent draws.", "share", averaged=False,
    ),
    Metric(
        "target_accuracy", "target's own view",
        "Share of reconstructions that the attacked network itself assigns to the class they were aimed at.", "share",
    ),
    Metric(
        "inception_score", "inception score",
        "Inception score by the data set's evaluator: confident and varied classes; it never asks for the right class.",
        better="down", core=True,
    ),
    Metric(
        "inception_score_std", "inception score, deviation",
        "Standard deviation of the inception score over its splits.", averaged=False,
    ),
    Metric("inception_e6", "(IS-1) 10⁶", "The inception score less 1, in millionths.", better="down"),
    Metric("inception_within_class", "IS within class", "Mean over the classes of the inception score of one class."),
    Metric(
        "knn_distance", "KNN distance",
        "Mean squared distance, in the evaluator's features, to the nearest private image of the class.",
        "distance", "up",
    ),
    Metric(
        "knn_gap", "KNN gap",
        "How much nearer reconstructions are to private than to unseen images of the class, beside a random network's.",
        "distance", "down",
    ),
    Metric(
        "fid", "FID",
        "Fréchet distance to as many private images, in the leading directions of the evaluator's features.",
        "distance", "up",
    ),
    Metric("precision", "precision", "Share of reconstructions among private images.", "score", averaged=False),
    Metric("recall", "recall", "Share of private images among reconstructions.", "score", averaged=False),
    Metric(
        "density", "density",
        "How many private images' balls a reconstruction lies in; 1 for private images themselves.", better="down",
    ),
    Metric(
        "coverage", "coverage", "Share of private images that have a reconstruction in their ball.", better="down"
    ),
    Metric(
        "ssim", "SSIM",
        "Structural similarity to the victim's image or, for attacks on classes, to the most similar private image.",
        better="down",
    ),
    Metric(
        "ssim_gap", "SSIM gap", "How much more similar reconstructions are to private victims than to unseen ones.",
        better="down",
    ),
    Metric(
        "ssim_class_mean", "SSIM to class mean", "Structural similarity to the mean private image of the class.",
        averaged=False,
    ),
    Metric(
        "psnr", "PSNR",
        "Peak signal-to-noise ratio to the image that SSIM is measured to, or to the nearest in pixels.", better="down",
        unit="dB", averaged=False,
    ),
    Metric(
        "psnr_gap", "PSNR gap", "How much better private victims come back than unseen ones.", better="down", unit="dB",
        averaged=False,
    ),
    Metric(
        "without_start", "without a start", "Share of searches that found no image of their class to start from.",
        "share",
    ),
    *_by_judge("", "", "reconstructions, up to five of a person", of="reconstructions", core=True),
    Metric(
        "retrieval_accuracy", "retrieval",
        "Share of the attacker's own images, the five that the target prefers for each class, that show the class: "
        "public images alone score this.",
        "share", of="floor", beside_teacher=True, core=True, newer=True,
    ),
    Metric(
        "retrieval_best_accuracy", "retrieval, best", "The same of the image that the target prefers most.", "share",
        of="floor", newer=True,
    ),
    Metric(
        "retrieval_next_accuracy", "retrieval, next", "The same of the image that it prefers next.", "share",
        of="floor", newer=True,
    ),
    Metric(
        "retrieval_mean_accuracy", "retrieval, mean", "The same of the mean of the ten images that it prefers.",
        "share", of="floor", newer=True,
    ),
    Metric(
        "retrieval_latents_accuracy", "retrieval, latents",
        "The same of the best of a thousand images that the attack's generator makes of random latents.", "share",
        of="floor", newer=True,
    ),
    *_by_judge("retrieval_", "retrieval, ", "the five public images that the target prefers for a person"),
    *_by_judge(
        "retrieval_best_", "retrieval, best, ", "the public images that the target prefers most", whole=False
    ),
    *_by_judge(
        "retrieval_mean_", "retrieval, mean, ", "the means of the ten public images that it prefers", whole=False
    ),
    *_by_judge(
        "retrieval_latents_", "retrieval, latents, ", "the best of a thousand images of random latents", whole=False
    ),
    Metric(
        "above_floor", "above floor",
        "Attack accuracy less that of retrieval on the same target: a mean over classes, with a bootstrap over them; "
        "of people by the judge of faces, where it is there.",
        "share", "down", of="floor", beside_teacher=True, core=True, newer=True,
    ),
    Metric(
        "floor_p", "p-value against retrieval",
        "Sign-flip test over classes that the attack is no better than retrieval; from 50 classes on.", "p-value",
        of="floor", averaged=False,
    ),
    Metric(
        "above_mean", "above the mean",
        "The same as `above_floor`, above the mean of the ten public images that the target prefers.",
        "share", "down", of="floor", newer=True,
    ),
    Metric(
        "mean_p", "p-value against the mean",
        "Sign-flip test over classes that the attack is no better than that mean; from 50 classes on.", "p-value",
        of="floor", averaged=False,
    ),
    Metric(
        "auc", "AUC", "Area under the curve of a membership attack; 0.5 is guessing.", "score", "down",
        of="membership", beside_teacher=True, core=True,
    ),
    Metric(
        "auc_gain", "AUC beyond an unaware net",
        "AUC less that of the same attack on a network trained as the teacher was that saw none of the records.",
        "score", "down", of="membership", beside_teacher=True, newer=True,
    ),
    Metric(
        "gap_auc", "AUC of the gap attack",
        "AUC of calling those records members whose class the network names rightly, beside attacks by labels alone.",
        "score", "down", of="membership", newer=True,
    ),
    Metric(
        "tpr_at_1pct", "TPR at FPR 1 %", "Share of members found where 1 % of the others are taken for members.",
        "share", "down", of="membership",
    ),
    Metric(
        "tpr_at_01pct", "TPR at FPR 0.1 %", "Share of members found where 0.1 % of the others are taken for members.",
        "share", "down", of="membership",
    ),
    Metric(
        "balanced_accuracy", "balanced accuracy", "Mean of the shares of members and of others told rightly.",
        "share", "down", of="membership",
    ),
    Metric(
        "membership_epsilon_lower", "epsilon seen (no proof)",
        "The epsilon that the attack's scores point at: an indication, since records share a model.",
        "epsilon", "down", of="membership",
    ),
    Metric(
        "times_chance", "accuracy over chance",
        "Accuracy over the share of the test part's commonest class (flag `knows-nothing`).",
        of="run",
        averaged=False,
    ),
    Metric("queries", "queries", "Images that the attack asked the released student about.", "count", of="run"),
    Metric(
        "power_p_teacher", "p-value of the attack on the teacher",
        "The power gate: how often exchanged classes would do as well on the undefended teacher.", "p-value", of="run",
        averaged=False,
    ),
    Metric(
        "power_p_random", "p-value on the random net",
        "The power gate: how often exchanged classes would do as well on a network with random weights.", "p-value",
        of="run", averaged=False,
    ),
)  # fmt: skip
