"""Seconds of `bench assess`: images of 32 pixels and a ResNet-18 without reference models, and scores files.

    python benchmarks/assess_time.py --images 5000 --scores 1000000 --kind npz

Images are noisy blobs. Prints wall-clock seconds, processor seconds of each part, and the peak memory of the process.
A part does not include the parts inside it. Processor seconds of several threads are added up. 5,000 + 5,000 images
took 224 processor seconds with batches of 512 and records that were queried again; docs/assess.md has the parts.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np


class Parts:
    """Processor seconds of the parts of an assessment of a model, without those of the parts inside them."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inner: list[float] = []
        self._of = "model"

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure assessments inside the block."""
        from bench.assess import attacks, from_model, front, pictures, training

        with ExitStack() as stack:
            for owner, name, part in (
                (front, "assess", "everything else"),
                (from_model, "read_records", "read the images"),
                (from_model, "check_normalisation", "try other normalisations"),
                (pictures, "find_copies", "find copies"),
                (pictures, "facts_of", "facts for the baseline"),
                (from_model, "compare_without_model", "baseline without the model"),
                (attacks, "_side", "outputs on all records"),
                (attacks, "_plugin", ""),
                (from_model, "_attack_control", "control"),
                (from_model, "_invert", "class inversion"),
                (training.Trainer, "evaluator", "train the evaluator"),
                (training.Trainer, "control", "training"),
                (training.Trainer, "reference", "train reference models"),
                (front, "assemble", "numbers and limits"),
                (front, "write", "write the report"),
            ):
                stack.enter_context(mock.patch.object(owner, name, self._timed(getattr(owner, name), part)))
            yield

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Measure a function; an empty `part` is the first argument, the name of an attack."""

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            before, self._of = self._of, "control" if part == "control" else self._of
            start = time.process_time()
            self._inner.append(0.0)
            try:
                return function(*given, **named)
            finally:
                total, inner = time.process_time() - start, self._inner.pop()
                self.seconds[f"{self._of}: {part or given[0]}"] += total - inner
                if self._inner:
                    self._inner[-1] += total
                self._of = before

        return call

    def lines(self) -> list[str]:
        """Return a line for each part, the longest first."""
        total = sum(self.seconds.values())
        return [
            f"{each:8.1f} s {each / total:6.1%}  {part}" for part, each in self.seconds.most_common() if each > 0.05
        ]


def made_images(n: int, seed: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, 32, 32, 3) uint8 images and (n,) labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    images = rng.normal(110, 60, (n, 32, 32, 3))
    for number, label in enumerate(labels):
        images[number, 3 * label : 3 * label + 4, 8:24] += 45
    return images.clip(0, 255).astype(np.uint8), labels


def assess_images(n: int, folder: Path) -> None:
    """Assess a ResNet-18 after training for two passes."""
    import torch

    import bench
    from bench import nets
    from bench.teachers.recipes.standard import Recipe
    from bench.teachers.training import fit
    from bench.teachers.weights import save

    paths = [folder / f"{name}.npz" for name in ("members", "others")]
    for seed, path in enumerate(paths):
        images, labels = made_images(n, seed)
        np.savez(path, images=images, labels=labels)
    images, labels = made_images(n, 0)
    model = nets.build("resnet18", (3, 32, 32), 10)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    fit(model, pixels, torch.from_numpy(labels), Recipe(epochs=3, batch=64, shift=0), torch.device("cpu"), 0)
    save(folder / "model.safetensors", model)
    start, used, parts = time.perf_counter(), time.process_time(), Parts()
    with parts.measured():
        found = bench.assess(folder / "model.safetensors", *paths, network="resnet18", report=folder / "report")
    print(f"{n} + {n} images: {time.perf_counter() - start:.0f} s, {time.process_time() - used:.0f} processor seconds")
    print("\n".join(parts.lines()), found.verdict.decision, sep="\n")


def write_scores(n: int, path: Path, shift: float) -> None:
    """Write labels and ten logits of n records, to CSV, NumPy or Parquet by the suffix."""
    rng = np.random.default_rng(int(shift))
    labels, logits = rng.integers(0, 10, n), rng.normal(size=(n, 10))
    logits[np.arange(n), labels] += 2 + shift
    names = ["label", *(f"logit_{place}" for place in range(10))]
    if path.suffix == ".npz":
        np.savez(path, label=labels, logits=logits)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table([labels, *logits.T], names), path)
    else:
        table = np.column_stack([labels, logits])
        np.savetxt(path, table, ["%d", *["%.5f"] * 10], ",", header=",".join(names), comments="")


def assess_scores(n: int, kind: str, folder: Path) -> None:
    """Assess files of n scores each, ten classes; another process writes them, so that its memory does not count."""
    import bench

    members, others = (folder / f"{name}.{kind}" for name in ("members", "others"))
    for path, shift in ((members, 1.0), (others, 0.0)):
        writer = get_context("spawn").Process(target=write_scores, args=(n, path, shift))
        writer.start()
        writer.join()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start, used = time.perf_counter(), time.process_time()
    bench.assess(scores=(members, others), report=folder / "report")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds, processor = time.perf_counter() - start, time.process_time() - used
    print(
        f"{n} + {n} scores, {kind}: {seconds:.0f} s, {processor:.0f} processor seconds, {most:.0f} MiB "
        f"(before: {before:.0f})"
    )


def main() -> None:
    """Time the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--scores", type=int, default=0)
    parser.add_argument("--kind", choices=("csv", "npz", "parquet"), default="csv", help="format of the scores")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        if given.scores:
            assess_scores(given.scores, given.kind, Path(folder))
        if given.images:
            assess_images(given.images, Path(folder))


if __name__ == "__main__":
    main()
