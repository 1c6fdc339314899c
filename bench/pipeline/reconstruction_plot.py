"""The picture of an inversion attack: what it brought back from each target, beside the nearest private images."""

from __future__ import annotations

from pathlib import Path

from bench import data
from bench.api import AttackResult
from bench.metrics.inversion import nearest_private
from bench.pipeline import plots
from bench.pipeline.attack_targets import NAMES
from bench.pipeline.material import Material
from bench.pipeline.victims import Victims
from bench.validate import present

MOST_COLUMNS = 20


def draw(path: Path, title: str, found: dict[str, AttackResult], material: Material, victims: Victims | None) -> None:
    """Write the picture.

    Args:
        path: the PNG file.
        title: one line above.
        found: target, a key of NAMES, to what came back from it.
        victims: those of an attack that watches their answers; None for an attack on classes.
    """
    if victims is not None:
        _draw_victims(path, title, found, material, victims)
    else:
        _draw_classes(path, title, found, material)


def _draw_classes(path: Path, title: str, found: dict[str, AttackResult], material: Material) -> None:
    images, labels = material.private
    classes = found["student"].targets.unique()[:MOST_COLUMNS]
    rows = []
    for name, result in found.items():
        first = [int((result.targets == c).nonzero()[0]) for c in classes]
        near = nearest_private(result.images[first], result.targets[first], images, labels)
        rows += [(f"from the {NAMES[name]}", result.images[first]), ("nearest private", data.to_float(images[near]))]
    title += " (first image of the first draw per class)"
    plots.grid(path, title, [material.data.class_names[int(c)] for c in classes], rows)


def _draw_victims(path: Path, title: str, found: dict[str, AttackResult], material: Material, victims: Victims) -> None:
    """One victim of each class: a private one and one never seen, with what was made of the answers to it."""
    columns = victims.labels.unique()[:MOST_COLUMNS]
    rows = []
    for private, what in ((True, "a private image"), (False, "an unseen image")):
        numbers = [int(((victims.labels == c) & (victims.private == private)).nonzero()[0]) for c in columns]
        rows.append((what, data.to_float(victims.images[numbers])))
        for name, result in found.items():
            attacked = present(result.victims, "victim of the reconstructions")
            made = [int((attacked == number).nonzero()[0]) for number in numbers]
            rows.append((f"from the {NAMES[name]}", result.images[made]))
    plots.grid(path, title, [material.data.class_names[int(c)] for c in columns], rows)
