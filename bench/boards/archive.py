"""Write the boards as one archive to publish: records, tables, schemas, metadata, and the SHA-256 of every file.

The archive is the same to the last byte for the same boards: names are sorted and times fixed. The metadata of the file
`.zenodo.json` are those that Zenodo reads, made from `CITATION.cff`.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench import registry
from bench.errors import BadOption, NotFound

CITATION, SUMS = "CITATION.cff", "SHA256SUMS"
TIME = (1980, 1, 1, 0, 0, 0)
"""Time of every file in the archive: the earliest that zip stores."""
README = """\
Boards of dp-distill-bench {version}

leaderboards/  records of all runs and audits (JSON lines), and the tables computed from them (CSV)
schema/        JSON Schema of a record and of an audit
SHA256SUMS     sums of all other files: sha256sum --check SHA256SUMS

With dp-distill-bench {version} installed, this computes every table again from the records and compares:

    bench leaderboard --check --boards leaderboards
"""


@dataclass(frozen=True)
class Archived:
    """What an archive has.

    Attributes:
        files: number of files in it.
        size: size of the archive in bytes.
        sha256: SHA-256 of the archive.
    """

    files: int
    size: int
    sha256: str


def write_archive(path: Path, boards: Path) -> Archived:
    """Write the archive of a folder of boards.

    Args:
        path: the new zip file; nothing is overwritten.
        boards: the folder, such as leaderboards; `bench.boards.publish.check` should have found no difference.

    Raises:
        BenchError: the file exists, or the folder of the project has no `CITATION.cff`.
    """
    if path.suffix != ".zip":
        raise BadOption(f"--archive {path}: expected a name that ends in .zip")
    if path.exists():
        raise BadOption(f"--archive {path}: there is a file of this name; give a new one")
    citation = registry.ROOT / CITATION
    if not citation.is_file():
        raise NotFound(f"--archive {path}: no {CITATION} in {registry.ROOT}; run the command in a checkout")
    contents = _contents(boards, citation)
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())
    contents[SUMS] = sums.encode()
    work = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(work, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in sorted(contents.items()):
                archive.writestr(zipfile.ZipInfo(name, TIME), content, zipfile.ZIP_DEFLATED)
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)
    content = path.read_bytes()
    return Archived(len(contents), len(content), hashlib.sha256(content).hexdigest())


def _contents(boards: Path, citation: Path) -> dict[str, bytes]:
    """Return every file of the archive but the sums, by its name."""
    cited = yaml.safe_load(citation.read_text(encoding="utf-8"))
    found = {
        f"leaderboards/{each.relative_to(boards).as_posix()}": each.read_bytes()
        for each in sorted(boards.rglob("*"))
        if each.is_file() and not any(part.startswith(".") for part in each.relative_to(boards).parts)
    }
    found |= {
        f"schema/{each.name}": each.read_bytes() for each in sorted((registry.ROOT / "docs/schema").glob("*.json"))
    }
    found["README.txt"] = README.format(version=cited["version"]).encode()
    found |= {name: (registry.ROOT / name).read_bytes() for name in (CITATION, "LICENSE")}
    metadata = {
        "title": f"Boards of {cited['title']}",
        "upload_type": "dataset",
        "description": "Records of private students: accounted, claimed and audited epsilons, and attacks on them.",
        "version": cited["version"],
        "publication_date": str(cited["date-released"]),
        "license": cited["license"],
        "creators": [{"name": each["name"]} for each in cited["authors"]],
        "keywords": cited["keywords"],
    }
    found[".zenodo.json"] = (json.dumps(metadata, indent=1, sort_keys=True) + "\n").encode()
    return found
