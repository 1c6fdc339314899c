"""Processes that stay, on a CUDA device: several runs in one, and what they leave behind of its memory.

pytest tests/device/test_sweep_on_cuda.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from conftest import write_toy

from bench.cli import main
from bench.sweeps.executors import Task
from bench.sweeps.local import Local

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def told(arguments: Sequence[str]) -> int:
    """Run the command; then print the memory of its process on the device, in MiB."""
    import sys

    status = main(arguments)
    torch.cuda.empty_cache()
    print("holds", torch.cuda.memory_reserved() >> 20, file=sys.stderr)
    return status


def test_runs_in_one_process_equal_runs_in_separate_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path, 160)
    common = [
        "--teacher",
        "datalens",
        "--dataset",
        f"npz:{tmp_path}/toy.npz",
        "--tier",
        "smoke",
        "--noise",
        "seeded",
        "--epsilon",
        "10",
    ]
    runs = [["run", "--method", name, *common, "--out", "staying"] for name in ("dpsd", "dpdfd", "dp-dfd", "dgd")]
    done = list(Local(told, 2, ("cuda:0",)).run([Task(i, tuple(run)) for i, run in enumerate(runs)]))
    assert [each.status for each in done] == [0] * len(runs), [each.tail for each in done]
    held = [int(line.split()[1]) for each in done for line in each.tail.splitlines() if line.startswith("holds ")]
    assert len(held) == len(runs) and max(held) < 200, "a run leaves little behind"
    for run in runs:
        assert main([*run[:-1], "each", "--device", "cuda:0"]) == 0

    def found(out: str) -> dict[str, object]:
        read = [json.loads(path.read_text()) for path in (tmp_path / out / "records").glob("*/record.json")]
        return {each["hash"]: (each["metrics"], each["privacy"]) for each in read}

    assert found("staying") == found("each")
