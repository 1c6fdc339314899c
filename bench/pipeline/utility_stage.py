"""The stage of a run in which the trained networks are measured on the test set."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from bench import data
from bench.pipeline import plots
from bench.pipeline.evaluation import with_interval
from bench.pipeline.job import Job
from bench.pipeline.plots import Plot, Plots
from bench.pipeline.release_step import synthetic_images
from bench.pipeline.stage_result import StageResult
from bench.pipeline.trained import Networks

COLUMNS, ROWS = 10, 6


def measure(job: Job, networks: Networks) -> StageResult:
    """The accuracies of a run, with their 95 % intervals, and a picture of synthetic images that were released."""
    metrics: dict[str, float | None] = {}
    measured = {
        "teacher_accuracy": networks.teacher,
        "accuracy": networks.student,
        "evaluator_accuracy": networks.evaluator,
        "ensemble_accuracy": networks.ensemble,
    }
    results = {name: one.result for name, one in measured.items() if one is not None}
    if networks.ensemble is not None:
        metrics["member_accuracy"] = networks.ensemble.result["member_accuracy"]
    if (control := networks.student.result.get("control")) is not None:
        results["control_accuracy"] = control
    if (votes := networks.student.result.get("votes")) is not None:
        results["votes_accuracy"] = votes
    for name, result in results.items():
        metrics |= with_interval(name, result["correct"], result["tested"])
    # Whoever always names the commonest class is right as often as it is there, which may be more than 1 / classes
    labels = job.material.data.test_labels
    metrics["times_chance"] = networks.student.result["accuracy"] * len(labels) / int(torch.bincount(labels).max())
    return StageResult(metrics, plots=_plots(job, networks), seconds=_seconds(networks))


def _seconds(networks: Networks) -> dict[str, float]:
    made = {
        "teacher": networks.teacher,
        "evaluator": networks.evaluator,
        "ensemble": networks.ensemble,
        "release": networks.student,
    }
    return {name: one.step.seconds for name, one in made.items() if one is not None}


def _plots(job: Job, networks: Networks) -> Plots:
    images = synthetic_images(networks.student)
    if images is None or not len(images) or data.facts(job.material.data.name).of_people:
        return {}
    title = f"{job.settings.method}: synthetic images"
    return {"synthetic": Plot("synthetic.png", partial(_draw, title=title, images=images))}


def _draw(path: Path, title: str, images: torch.Tensor) -> None:
    """At most six rows of ten, or one shorter row."""
    columns = min(COLUMNS, len(images))
    whole = images[: min(ROWS * COLUMNS, len(images) // columns * columns)]
    plots.grid(path, title, [""] * columns, [("", row) for row in whole.split(columns)])
