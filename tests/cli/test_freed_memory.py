"""Memory freed by tensors is kept for later ones."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

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
