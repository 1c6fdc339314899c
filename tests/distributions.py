"""Distributions with plug-ins, as pip installs them."""

from pathlib import Path


def install(folder: Path, points: str, **modules: str) -> None:
    """A distribution as pip lays it out in `folder`: modules, and the entry points of its metadata."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    metadata = folder / f"{folder.name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
