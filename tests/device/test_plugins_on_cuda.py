"""Every method, attack and audit on a CUDA device, if there is one: torch itself reports where the host waits.

    pytest -n 8 --dist load tests/device/test_plugins_on_cuda.py

CI has no such device and runs the same on one made of CPU tensors (`test_plugins_on_second_device.py`), where moving
numbers to the device is not a wait; here it is one unless the memory is pinned.
"""

from __future__ import annotations

import math
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import write_toy
from everything import AUDITED, EVERY, FEW, LOOPS, TAUGHT, job_on, steps_logged
from scipy import stats
from torch.nn import functional as F

from bench import nets
from bench.dp_training.clipped_sums import ClippedSums
from bench.dp_training.coding import Uncoded
from bench.dp_training.linear_head import clipped_sum
from bench.dp_training.per_sample_gradients import GRADIENTS
from bench.pipeline import canary_audit, run
from bench.pipeline.canary_game import CanaryGame
from bench.privacy.noise import Noise

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"), 160)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that progress bars reported."""
    return steps_logged(monkeypatch)


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """How often the host waits for the device, by the innermost line of the project, FILE:LINE.

    Not where a network is moved there or its weights are read, tensor by tensor: to do that in a loop is not seen.
    """
    found: Counter[str] = Counter()

    def seen(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: object) -> None:
        if "synchronizing CUDA operation" in str(message):
            stack = traceback.extract_stack()
            if not any(frame.name in ("_apply", "load_state_dict") for frame in stack):
                found[_line(stack)] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = seen  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _line(stack: traceback.StackSummary) -> str:
    for frame in reversed(stack):
        path = frame.filename.removeprefix(f"{ROOT}/")
        if path.startswith(("bench/", "methods/", "attacks/", "baselines/")):
            return f"{path}:{frame.lineno}"
    return "elsewhere"


def loops(found: Counter[str], logged: list[int]) -> dict[str, int]:
    """Lines at which the host waited more often than twice a logged step, with how often."""
    allowed = max(FEW, 2 * sum(logged))
    return {line: count for line, count in found.items() if count > allowed and line.split(":")[0] not in LOOPS}


@pytest.mark.parametrize(("method", "attack", "precision"), list(dict.fromkeys(EVERY)))
def test_it_runs_there_and_waits_seldom(
    toy: Path, logged: list[int], method: str, attack: str | None, precision: str
) -> None:
    job = job_on(DEVICE, toy, method, attack, precision)
    with waits() as found:
        record = run.run(job, 0).record
    assert record.status in ("ok", "inconclusive", "skipped"), record.reason
    assert record.provenance["device"] == torch.cuda.get_device_name(DEVICE)
    assert not loops(found, logged)


@pytest.mark.parametrize(("method", "score"), [("dp-sgd", "rmia"), *((method, "loss") for method in AUDITED)])
def test_an_audit_of_its_release_runs_there(toy: Path, method: str, score: str) -> None:
    audit = canary_audit.run(job_on(DEVICE, toy, method, None, "fp32"), CanaryGame(12, 6, score), 0).audit  # type: ignore[arg-type]
    assert audit.lines.keys() == {"student", "teacher", "null"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_student_of_typical_questions_runs_there(toy: Path, precision: str) -> None:
    record = run.run(job_on(DEVICE, toy, "dp-teacher", None, precision, TAUGHT), 0).record
    assert record.status == "ok", record.reason


@pytest.mark.parametrize("gradients", list(GRADIENTS))
def test_a_record_moves_a_sum_by_the_clipping_norm_and_no_more(gradients: str) -> None:
    """In TF32, which torch's convolutions there take by themselves, gradients alike are rounded to 11 bits."""
    generator = torch.Generator().manual_seed(0)
    alike = torch.rand(1, 1, 28, 28, generator=generator) + 1e-3 * torch.rand(513, 1, 28, 28, generator=generator)
    images, labels = alike.to(DEVICE), torch.zeros(513, dtype=torch.int64, device=DEVICE)
    model = nets.build("tanh-cnn", (1, 28, 28), 10).to(DEVICE)
    coding = Uncoded(dict(model.named_parameters()), 1e-3, "flat")
    sums = ClippedSums(GRADIENTS[gradients](model, 1), coding, 1, 128)
    whole, without = (sums((images, labels), torch.arange(n, device=DEVICE), None, 513) for n in (513, 512))
    moved = math.sqrt(sum(float((whole[name] - without[name]).square().sum()) for name in whole))
    assert 0.99e-3 < moved <= 1e-3
    norm = math.sqrt(sum(float(each.square().sum()) for each in whole.values()))
    assert norm > 0.5, "the records point one way, else a rounding of their sum would not show"


def test_record_moves_a_head_sum_by_at_most_the_clipping_norm() -> None:
    rows = F.normalize(
        torch.ones(2001, 512) + 1e-3 * torch.randn(2001, 512, generator=torch.Generator().manual_seed(0))
    )
    rows, labels = rows.to(DEVICE), torch.zeros(2001, dtype=torch.int64, device=DEVICE)
    weight = torch.randn(10, 512, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        moved = clipped_sum(rows, labels, weight, 1.0) - clipped_sum(rows[1:], labels[1:], weight, 1.0)
    assert 0.99 < float(moved.double().norm()) < 1.001


def test_its_noise_has_the_law_that_was_asked_for() -> None:
    drawn = Noise("cuda", 3).normal(400_001).cpu().double().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    assert all(stats.kstest(drawn, stats.norm(0, wrong).cdf).pvalue < 1e-4 for wrong in (0.98, 1.02))
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 0.01
    value = torch.full((200_000,), 0.7, dtype=torch.float64, device=DEVICE)
    assert stats.kstest(Noise("cuda", 9).gaussian(value, 0.01).cpu().numpy(), stats.norm(0.7, 0.01).cdf).pvalue > 1e-4
