"""A function of the interface leaves the process as it found it, and an interrupted one leaves the store usable."""

import gc
import hashlib
import os
import pickle
import platform
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench
from bench.interface.process import preserve_process_state

RR: dict[str, Any] = {"method": "rr", "tier": "smoke", "teacher": "datalens"}


def state() -> dict[str, object]:
    """All that belongs to the whole process and that a training might change."""
    return {
        "torch generator": hashlib.sha256(torch.random.get_rng_state().numpy().tobytes()).hexdigest(),
        "numpy generator": hashlib.sha256(pickle.dumps(np.random.get_state())).hexdigest(),
        "python generator": random.getstate(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32),
        "filters": list(warnings.filters),
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "numpy errors": np.geterr(),
        "collector": gc.isenabled(),
    }


@pytest.fixture
def unusual() -> Iterator[None]:
    """Settings that are not the defaults, so that a reset to the defaults is found out."""
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no such warning")
        signal.signal(signal.SIGTERM, lambda *given: None)
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        with torch.no_grad():
            yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.thorough
@pytest.mark.usefixtures("unusual")
def test_run_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = state()
    result = bench.run(**RR, attack="loss-threshold", out=tmp_path)
    assert result.attack is not None and state() == before


@pytest.mark.usefixtures("unusual")
def test_refused_run_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = state()
    with pytest.raises(bench.errors.BenchError):
        bench.run("rr", dataset="npz:missing.npz", out=tmp_path)
    assert state() == before


@pytest.mark.thorough
def test_settings_of_the_caller_do_not_change_results(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    usual = bench.run(**RR, out=tmp_path / "usual")
    request.getfixturevalue("unusual")
    again = bench.run(**RR, out=tmp_path / "again")
    assert again.record.metrics == usual.record.metrics


def test_changes_inside_are_undone() -> None:
    before = state()
    with preserve_process_state():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_default_dtype(torch.float64)
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGTERM, lambda *given: None)
        assert all(state()[name] != before[name] for name in ("torch generator", "threads", "filters", "handlers"))
    assert state() == before


def test_default_device_of_the_caller_is_kept() -> None:
    with torch.device("meta"):
        with preserve_process_state():
            assert torch.zeros(1).device.type == "cpu"
        assert torch.zeros(1).device.type == "meta"


class Interrupter:
    """A progress callback that raises once, at the n-th call."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error


@pytest.mark.thorough
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")], ids=repr)
@pytest.mark.parametrize("at", [1, 30])
def test_interrupted_run_goes_on_to_the_same_result(at: int, error: BaseException, tmp_path: Path) -> None:
    before, cut = state(), tmp_path / "cut"
    with pytest.raises(type(error)):
        bench.run(**RR, attack="loss-threshold", out=cut, progress=Interrupter(at, error))
    assert state() == before
    assert not list(cut.rglob("record.json")), "an interruption is not a failed run"
    again, whole = (bench.run(**RR, attack="loss-threshold", out=out) for out in (cut, tmp_path / "whole"))
    assert again.record.metrics == whole.record.metrics and again.record.hash == whole.record.hash
    assert not [path for path in cut.rglob(".*") if path.is_dir()]


@pytest.mark.thorough
def test_nothing_is_printed_without_logging(tmp_path: Path) -> None:
    code = f"import bench; bench.run('rr', tier='smoke', teacher='datalens', out={str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_import_is_quick_and_imports_no_library() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import bench; took = time.perf_counter() - start;"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'pandas', 'dp_accounting'} & set(sys.modules);"
        "print(took, sorted(heavy), {'run', 'data'} <= {*dir(bench)})"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    took = min(float(run.stdout.split()[0]) for run in runs)
    assert took < 0.1 and all(run.stdout.split(maxsplit=1)[1] == "[] True\n" for run in runs)


@pytest.mark.parametrize("name", bench.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    found: Callable[..., object] = getattr(bench, name)
    assert name in dir(bench) and (found.__doc__ or "").strip()
    if name.islower() and callable(found):
        cannot_fail = name in ("methods", "attacks", "datasets", "keep_freed_memory")
        sections = found.__doc__ or ""
        assert "Returns:" in sections and ("Raises:" in sections or cannot_fail)


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        bench.runn  # type: ignore[attr-defined]  # noqa: B018


SCRIPT = """
import resource, sys
from bench.interface.process import keep_freed_memory
is_set = keep_freed_memory() if sys.argv[1] == "keep" else None
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):  # small blocks in between are kept from the eighth on
    torch.ones(2**24)
before = faults()
for _ in range(8):
    torch.ones(2**24)
print(is_set, faults() - before)
"""


def measure(word: str, **environment: str) -> tuple[str, int]:
    """Run the script in a new process; return whether memory is kept, and the number of page faults."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, word], capture_output=True, text=True, check=True, env=usual | environment
    )
    is_set, faults = done.stdout.split()
    return is_set, int(faults)


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_block_is_reused_without_page_faults() -> None:
    """64 MiB eight times: 131,072 pages of 4 KiB unless they are kept."""
    is_set, kept = measure("keep")
    assert is_set == "True" and kept < 2_000
    assert measure("leave")[1] > 10 * max(kept, 100), "the C library keeps them by itself, or the test cannot fail"


@pytest.mark.thorough
def test_allocator_configured_by_the_user_is_not_changed() -> None:
    assert measure("keep", MALLOC_ARENA_MAX="2")[0] == "False"
