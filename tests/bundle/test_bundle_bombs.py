"""A bundle that would exhaust memory or time is refused in one line, within 1 GiB and 30 s.

`PYTHONPATH=tests:. python tests/bundle/test_bundle_bombs.py` prints the table of docs/releasing.md.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from bundles import Change, edit, png, put, read, renew, untrained_bundle, write, write_card
from conftest import ROOT
from safetensors.torch import load_file, save_file

from bench.bundle import Failed, Limits
from bench.bundle.files import read_bundle

GIB = 2**30
MOST_SECONDS = 30


def header(content: bytes, declared: int | None = None) -> bytes:
    """A safetensors file of nothing but a header."""
    return struct.pack("<Q", len(content) if declared is None else declared) + content


def tensors(**found: Any) -> bytes:
    return header(json.dumps(found).encode())


def sparse(name: str, size: int = 100 * GIB) -> Change:
    """A file of that size without any block on the disk; the manifest has some digest of it."""

    def apply(folder: Path) -> None:
        (folder / name).write_bytes(b"")
        os.truncate(folder / name, size)

    return apply


def many_files(folder: Path) -> None:
    for number in range(12_000):
        (folder / "synthetic" / f"{number:05d}.png").write_bytes(b"")


def zip_bomb(folder: Path) -> None:
    with zipfile.ZipFile(folder / "student.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            archive.writestr(f"data/{number}", b"\0" * 2**24)
    renew(folder)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def image(width: int, height: int, pixels: bytes, between: bytes = b"") -> bytes:
    """A PNG file with these bytes of pixels, which its stated size need not fit."""
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + between + chunk(b"IDAT", zlib.compress(pixels, 9)) + chunk(b"IEND", b"")


def account(change: Callable[[Any], object]) -> Change:
    return edit("privacy.json", change)


def nested(depth: int) -> Any:
    event: Any = {"name": "NonPrivateDpEvent"}
    for _ in range(depth):
        event = {"name": "SelfComposedDpEvent", "event": event, "count": 1000}
    return event


FILES: dict[str, Change] = {
    "sparse weights of 100 GiB": sparse("student.safetensors"),
    "sparse card of 100 GiB": sparse("README.md"),
    "sparse manifest of 100 GiB": sparse("MANIFEST.json"),
    "weights of 241 MiB": sparse("student.safetensors", 241 * 2**20),
    "generator of 241 MiB": sparse("generator.safetensors", 241 * 2**20),
    "12,000 images": many_files,
    "JSON nested 400,000 deep": put("privacy.json", b"[" * 400_000),
    "objects nested 100,000 deep": put("privacy.json", b'{"a":' * 100_000),
    "ledger of 20 MiB": put("privacy.json", b'{"events": [' + b"1," * (10 * 2**20) + b"1]}"),
    "ledger of 100,000 entries": account(lambda p: p.update(events=[1] * 100_000)),
    "whole number of 500,000 digits": put("privacy.json", b'{"format": ' + b"9" * 500_000 + b"}"),
    "count of 1e18": account(lambda p: p["events"][0].update(count=10**18)),
    "count of 1e300": account(lambda p: p["events"][0].update(count=10**300)),
    "200,000 class names": edit("model.json", lambda m: m.update(class_names=["a"] * 200_000)),
    "100,000 keys, one twice": put("model.json",
        ("{" + "".join(f'"{i}":0,' for i in range(100_000)) + '"0":1}').encode()),
    "header of 2^63 bytes": put("student.safetensors", header(b"{}", 2**63)),
    "header of 20 MiB": put("student.safetensors", header(b" " * (20 * 2**20))),
    "tensor of 10^12 numbers": put("student.safetensors",
        tensors(a={"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4]})),
    "shape whose product is beyond 64 bits": put("student.safetensors",
        tensors(a={"dtype": "F32", "shape": [2**40] * 8, "data_offsets": [0, 4]})),
    "tensors that share their bytes": put("student.safetensors",
        tensors(**{f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(5000)})[:-1]),
    "generator of a huge tensor": put("generator.safetensors",
        tensors(a={"dtype": "F64", "shape": [2**39], "data_offsets": [0, 2**40]})),
    "image of 60,000 x 60,000 pixels": put("synthetic/000.png", image(60_000, 60_000, b"\0" * 100)),
    "image whose pixels are 256 MiB": lambda folder: put("synthetic/000.png", image(16, 16, b"\0" * 2**28))(folder),
    "image with a text of 64 MiB": lambda folder: put(
        "synthetic/000.png", image(16, 16, b"\0" * 272, chunk(b"zTXt", b"a\0\0" + zlib.compress(b"\0" * 2**26)))
    )(folder),
    "image with bytes behind its end": put("synthetic/000.png", png(16, 16) + b"\0" * 1000),
    "zip bomb as a program": zip_bomb,
}  # fmt: skip
"""Bombs that the check of the files finds, without a library that computes."""


def network(shape: list[int], **changes: Any) -> Change:
    """Another network, without synthetic images."""

    def apply(folder: Path) -> None:
        content = read(folder / "model.json") | changes
        content["input"]["shape"] = shape
        write(folder / "model.json", content)
        shutil.rmtree(folder / "synthetic")
        write_card(folder, [])

    return apply


VIT = "vit_huge_patch14_224"
HUGE = {"function": "timm.create_model", "name": VIT, "arguments": {"num_classes": 10}}
"""A network of a library that is far larger than its weights."""


def large_weights(folder: Path) -> None:
    import torch

    state = load_file(folder / "student.safetensors")
    save_file(state | {"more": torch.zeros(50 * 2**20)}, folder / "student.safetensors")
    renew(folder)


def slow_ledger(folder: Path) -> None:
    """A hundred kinds of sampled Gaussians, for every unit: some 12 s each."""
    content = read(folder / "privacy.json")
    units = ["client", "example", "label", "query"]
    kinds = [
        {"name": "PoissonSampledDpEvent", "sampling_probability": 0.001 + i * 1e-4,
         "event": {"name": "GaussianDpEvent", "noise_multiplier": 0.6 + i * 0.01}}
        for i in range(100)
    ]  # fmt: skip
    content["events"] = [
        {"count": 10**6, "event": kind, "unit": unit, "why": "noise"} for unit in units for kind in kinds
    ]
    like = content["accounted"]["label"]
    content["accounted"] = {unit: like | {"unit": unit} for unit in units}
    write(folder / "privacy.json", content)
    renew(folder)


COMPUTATIONS: dict[str, Change] = {
    "uses nested to 1e45": account(lambda p: p["events"][0].update(event=nested(15))),
    "ledger that takes a minute": slow_ledger,
    "network of 630 million parameters": network([3, 224, 224], architecture=VIT, library=HUGE),
    "images of 16 million numbers": network([16, 1024, 1024]),
    "weights of 200 MiB": large_weights,
}
"""Bombs that are met when a library computes with the bundle."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(untrained_bundle(), tmp_path / "bundle")


SLOW = ("12,000 images", "image whose pixels are 256 MiB", "image with a text of 64 MiB")
"""Bombs that take a second to make."""


@pytest.mark.parametrize("bomb", [pytest.param(b, marks=[pytest.mark.thorough] * (b in SLOW)) for b in FILES])
def test_read_bundle_refuses_a_bomb(folder: Path, bomb: str) -> None:
    FILES[bomb](folder)
    start = time.process_time()
    with pytest.raises(Failed) as failed:
        read_bundle(folder, Limits())
    assert time.process_time() - start < 5
    assert "\n" not in str(failed.value) and len(str(failed.value)) < 1000


def run(folder: Path, address_space: int | None) -> tuple[int, str, float, float]:
    """Exit status, stderr, seconds of processors and MiB of the largest process of `bench verify`."""

    def limit() -> None:
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    command = [sys.executable, "-c", MEASURE, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, preexec_fn=limit, timeout=300
    )
    *lines, last = done.stderr.splitlines()
    seconds, mib = map(float, last.split())
    return done.returncode, "\n".join(lines), seconds, mib


MEASURE = """
import resource, sys
from bench.cli import main
status = main(["verify", sys.argv[1]])
spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
seconds = sum(each.ru_utime + each.ru_stime for each in spent)
(own,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, max(int(own), spent[1].ru_maxrss) / 1024, file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("bomb", [*FILES, *COMPUTATIONS])
def test_verify_refuses_a_bomb_within_limits(folder: Path, bomb: str) -> None:
    (FILES | COMPUTATIONS)[bomb](folder)
    status, said, seconds, mib = run(folder, GIB if bomb in FILES else None)
    assert status == 1 and said.startswith("bench: not verified: ") and said.count("\n") == 0, said
    assert seconds < MOST_SECONDS and mib < 1024


def table() -> None:
    print("| bomb | seconds | MiB | said |\n|---|---|---|---|")
    for name, change in {**FILES, **COMPUTATIONS}.items():
        with TemporaryDirectory() as place:
            folder = shutil.copytree(untrained_bundle(), Path(place) / "bundle")
            change(folder)
            _, said, seconds, mib = run(folder, GIB if name in FILES else None)
        print(
            f"| {name} | {seconds:.1f} | {mib:.0f} | {said.removeprefix('bench: not verified: ')[:100]} |", flush=True
        )


if __name__ == "__main__":
    table()
