"""Memory freed by tensors is kept for later ones."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ASK = """
import resource, sys
from bench.interface.heap import keep_freed_memory
told = keep_freed_memory() if sys.argv[1] == "keep" else None
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):  # small blocks in between are kept from the eighth on
    torch.ones(2**24)
before = faults()
for _ in range(8):
    torch.ones(2**24)
print(told, faults() - before)
"""


def asked(word: str, **environment: str) -> tuple[str, int]:
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, word], capture_output=True, text=True, check=True, env=usual | environment
    )
    told, faults = done.stdout.split()
    return told, int(faults)


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_block_that_was_freed_is_had_again_without_a_page_fault() -> None:
    """64 MiB eight times: 131,072 pages of 4 KiB unless they are kept."""
    told, kept = asked("keep")
    assert told == "True" and kept < 2_000
    assert asked("leave")[1] > 10 * max(kept, 100), "the C library keeps them by itself, or the test cannot fail"


@pytest.mark.thorough
def test_an_allocator_that_the_user_has_set_is_left_alone() -> None:
    assert asked("keep", MALLOC_ARENA_MAX="2")[0] == "False"
