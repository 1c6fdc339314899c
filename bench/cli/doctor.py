"""`bench doctor`: what is installed, devices, data found, and what each missing piece blocks."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.progress import out

HELP = "versions, devices, data found, and what each missing piece blocks"
DESCRIPTION = HELP
BLOCKS = {
    "opacus": "the DP-SGD family of baselines",
    "torchmetrics": "FID, KID, SSIM",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench doctor`."""
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="where data sets lie",
    )


def execute(given: argparse.Namespace) -> int:
    """Print the report; status 1 if something a plain run needs is missing."""
    import torch

    from bench import __version__, data
    from bench.errors import BenchError
    from bench.storage import provenance

    commit = provenance.git_state(Path(__file__).parents[2])["commit"]
    out.print(f"[bold]dp-distill-bench[/bold] {__version__}, commit {commit}")
    missing = 0
    for name, version in provenance.versions().items():
        blocks = BLOCKS.get(name)
        missing += version is None and blocks is None
        out.print(f"  {name:<14} {version or 'missing: blocks ' + (blocks or 'every run')}", markup=False)
    out.print("[bold]devices[/bold]")
    out.print(f"  {provenance.device_name(torch.device('cpu'))}", markup=False)
    for index in range(torch.cuda.device_count()):
        out.print(f"  cuda:{index} {torch.cuda.get_device_name(index)}", markup=False)
    if not torch.cuda.is_available():
        out.print("  no CUDA device: tier `paper` takes hours to days")
    out.print("[bold]data[/bold]")
    for name in (n for n in data.names() if ":" not in n):
        try:
            images = data.load(name, given.data_root)
            out.print(
                f"  {name:<14} {len(images.train_images)} + {len(images.test_images)} images {images.shape}",
                markup=False,
            )
        except BenchError as error:
            out.print(f"  {name:<14} missing: blocks --dataset {name}. {error}", markup=False, soft_wrap=True)
    return 1 if missing else 0
