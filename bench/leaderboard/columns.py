"""The columns of a board, in their order."""

from __future__ import annotations

COLUMNS = [
    "tier",
    "split",
    "method",
    "kind",
    "setting",
    "teacher",
    "student",
    "teacher_accuracy",
    "accuracy_mean",
    "accuracy_std",
    "epsilon_claimed",
    "claim_unit",
    "epsilon_accounted",
    "unit",
    "relation",
    "delta",
    "epsilon_audited",
    "audited_teacher",
    "audited_null",
    "audited_ceiling",
    "attack",
    "access",
    "attack_accuracy",
    "attack_accuracy_std",
    "teacher_attack_accuracy",
    "target_accuracy",
    "power",
    "inception_score",
    "inception_e6",
    "inception_within_class",
    "knn_distance",
    "knn_gap",
    "fid",
    "density",
    "coverage",
    "ssim",
    "ssim_gap",
    "auc",
    "teacher_auc",
    "tpr_at_1pct",
    "tpr_at_01pct",
    "queries",
    "seeds",
    "failed",
    "seconds",
    "device",
    "reported_accuracy",
    "reported_source",
    "reported_difference",
    "flags",
    "runs",
]
AVERAGED = [*COLUMNS[COLUMNS.index("inception_score") : COLUMNS.index("queries") + 1], "target_accuracy"]
"""Columns that are the mean of the metric of the same name."""
REFERENCE = "reference"
REFERENCES = {
    "aux": "the attacker's images",
    "class_mean": "class means",
    "held_out": "unseen images",
    "prior": "random latents",
}
"""Images that no target was asked about, as records and boards name them."""
SORT = ["tier", "split", "method", "setting", "teacher", "student", "attack", "delta", "runs"]
