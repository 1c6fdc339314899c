"""Every built-in metric, in the order in which boards, report and terminal show them."""

from __future__ import annotations

from bench.metrics.metric import Metric, Of


def _by_judge(
    key: str, label: str, images: str, of: Of = "retrieval", core: bool = False, all_columns: bool = True
) -> tuple[Metric, ...]:
    """Return the metrics by the face judge (`bench.pipeline.face_judge`), a network that no attack has access to.

    Args:
        key, label: prefixes of the names of the three numbers.
        images: name of the judged images, in the plural.
        all_columns: True if boards and terminal show all three numbers, False for the first only.
    """
    return (
        Metric(
            f"{key}judge_accuracy", f"{label}judge accuracy",
            f"Share of {images}, whose face an independent judge finds nearest to the target person.",
            "share", "down", of=of, with_teacher=core, core=core, newer=True,
        ),
        Metric(
            f"{key}judge_near", f"{label}judged near",
            f"Share of {images}, that are nearer than 0.6 to the mean face of the target person, by the judge.",
            "share", "down", of=of, averaged=all_columns, with_teacher=core, newer=True,
        ),
        Metric(
            f"{key}judge_distance", f"{label}judged distance",
            f"Median distance of {images}, to the mean face of the target person, by the judge.",
            "distance", "up", of=of, averaged=all_columns, newer=True,
        ),
    )  # fmt: skip


BUILT_IN = (
    Metric(
        "accuracy", "accuracy", "Share of the test images that the network classifies correctly.", "share", "up",
        of="classifier", deviation=True, with_teacher=True, core=True,
    ),
    Metric(
        "attack_accuracy", "attack accuracy",
        "Share of reconstructions that the evaluator, which no attack can access, assigns to their target class.",
        "share", "down", deviation=True, with_teacher=True, core=True,
    ),
    Metric(
        "attack_accuracy_std", "deviation over draws",
        "Standard deviation of the attack accuracy over the attack's independent draws.", "share", averaged=False,
    ),
    Metric(
        "target_accuracy", "accuracy by the target",
        "Share of reconstructions that the attacked network itself assigns to their target class.", "share",
    ),
    Metric(
        "inception_score", "inception score",
        "Inception score by the data set's evaluator: high for confident and varied classes, right or wrong.",
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
        "KNN distance to unseen images of the class minus that to private images; compare with a random network's.",
        "distance", "down",
    ),
    Metric(
        "fid", "FID",
        "Fréchet distance to the same number of private images, in the leading directions of the evaluator's features.",
        "distance", "up",
    ),
    Metric(
        "precision", "precision",
        "Share of reconstructions that are in the ball of a private image.", "score", averaged=False
    ),
    Metric(
        "recall", "recall",
        "Share of private images that are in the ball of a reconstruction.", "score", averaged=False
    ),
    Metric(
        "density", "density",
        "Mean number of private images' balls that contain a reconstruction, over k; 1 for private images themselves.",
        better="down",
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
        "ssim_gap", "SSIM gap", "SSIM of private victims minus that of unseen ones.",
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
        "psnr_gap", "PSNR gap", "PSNR of private victims minus that of unseen ones.", better="down", unit="dB",
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
        "the score of public images without any attack.",
        "share", of="retrieval", with_teacher=True, core=True, newer=True,
    ),
    Metric(
        "retrieval_best_accuracy", "retrieval, best",
        "Retrieval by the one image that the target prefers most.", "share",
        of="retrieval", newer=True,
    ),
    Metric(
        "retrieval_next_accuracy", "retrieval, next", "Retrieval by the image that the target prefers next.", "share",
        of="retrieval", newer=True,
    ),
    Metric(
        "retrieval_mean_accuracy", "retrieval, mean",
        "Retrieval by the mean of the ten images that the target prefers.",
        "share", of="retrieval", newer=True,
    ),
    Metric(
        "retrieval_latents_accuracy", "retrieval, latents",
        "Retrieval by the best of a thousand images that the attack's generator makes from random latents.", "share",
        of="retrieval", newer=True,
    ),
    *_by_judge("retrieval_", "retrieval, ", "the five public images that the target prefers for a person"),
    *_by_judge(
        "retrieval_best_", "retrieval, best, ", "the public images that the target prefers most", all_columns=False
    ),
    *_by_judge(
        "retrieval_mean_", "retrieval, mean, ", "the means of the ten public images that it prefers", all_columns=False
    ),
    *_by_judge(
        "retrieval_latents_", "retrieval, latents, ",
        "the best of a thousand images of random latents", all_columns=False
    ),
    Metric(
        "above_floor", "above floor",
        "Attack accuracy minus that of retrieval on the same target: a mean over classes, with a bootstrap over them; "
        "for people by the face judge, if installed.",
        "share", "down", of="retrieval", with_teacher=True, core=True, newer=True,
    ),
    Metric(
        "floor_p", "p-value against retrieval",
        "Sign-flip test over classes of the hypothesis that retrieval is as good as the attack; from 50 classes on.",
        "p-value",
        of="retrieval", averaged=False,
    ),
    Metric(
        "above_mean", "above the mean",
        "Attack accuracy minus that of the mean of the ten public images that the target prefers.",
        "share", "down", of="retrieval", newer=True,
    ),
    Metric(
        "mean_p", "p-value against the mean",
        "Sign-flip test over classes of the hypothesis that this mean is as good as the attack; from 50 classes on.",
        "p-value",
        of="retrieval", averaged=False,
    ),
    Metric(
        "auc", "AUC", "Area under the curve of a membership attack; 0.5 is guessing.", "score", "down",
        of="membership", with_teacher=True, core=True,
    ),
    Metric(
        "auc_gain", "AUC beyond an unaware net",
        "AUC minus that of the same attack on a network trained like the teacher, but without any of the records.",
        "score", "down", of="membership", with_teacher=True, newer=True,
    ),
    Metric(
        "gap_auc", "AUC of the gap attack",
        "AUC of predicting member for correctly classified records; the baseline of attacks that observe only labels.",
        "score", "down", of="membership", newer=True,
    ),
    Metric(
        "tpr_at_1pct",
        "TPR at FPR 1 %", "Share of members found at a threshold that takes 1 % of the others for members.",
        "share", "down", of="membership",
    ),
    Metric(
        "tpr_at_01pct",
        "TPR at FPR 0.1 %", "Share of members found at a threshold that takes 0.1 % of the others for members.",
        "share", "down", of="membership",
    ),
    Metric(
        "balanced_accuracy",
        "balanced accuracy", "Mean of the shares of members and of others that are recognised as such.",
        "share", "down", of="membership",
    ),
    Metric(
        "blind_auc", "AUC without a model",
        "AUC of a classifier that sees the suspects and no network; an interval above 0.5 voids the attack.",
        "score", of="run", newer=True,
    ),
    Metric(
        "used_share", "share of records used",
        "The attack's estimate of the share of suspects that were training records; unbiased if its error rates on "
        "reference models hold. The truth is one half.",
        "score", of="membership", with_teacher=True, newer=True,
    ),
    Metric(
        "used_share_tpr", "share used, true positives",
        "True positive rate of the predictions behind the share of records used, on the reference models.",
        "share", of="membership", averaged=False,
    ),
    Metric(
        "used_share_fpr", "share used, false positives",
        "False positive rate of the predictions behind the share of records used, on the reference models.",
        "share", of="membership", averaged=False,
    ),
    Metric(
        "membership_epsilon_lower", "empirical epsilon (no proof)",
        "The epsilon that the attack's scores indicate; not a valid lower bound, since records share a model.",
        "epsilon", "down", of="membership",
    ),
    Metric(
        "times_chance", "accuracy over chance",
        "Accuracy over the share of the test set's most frequent class (flag `at-chance-level`).",
        of="run",
        averaged=False,
    ),
    Metric(
        "queries", "queries",
        "Number of images with which the attack queried the released student.", "count", of="run"
    ),
    Metric(
        "power_p_teacher", "p-value of the attack on the teacher",
        "Power check: share of permutations of the target classes that are as successful on the undefended teacher.",
        "p-value", of="run",
        averaged=False,
    ),
    Metric(
        "power_p_random", "p-value on the random net",
        "Power check: share of permutations of the target classes that are as successful on a random-weight network.",
        "p-value",
        of="run", averaged=False,
    ),
)  # fmt: skip
