"""JSON Schema of the records of runs and audits: `python -m bench.core.schema docs/schema`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.core.records import AuditRecord, RunRecord

FILES: dict[str, type[RunRecord] | type[AuditRecord]] = {"record.json": RunRecord, "audit.json": AuditRecord}


def schemas() -> dict[str, str]:
    """Return the text of every schema, by file name."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    plain = {name: dialect | kind.model_json_schema() for name, kind in FILES.items()}
    return {name: json.dumps(schema, indent=1, sort_keys=True) + "\n" for name, schema in plain.items()}


def main(arguments: list[str]) -> int:
    """Write the schemas into a folder. Returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m bench.core.schema FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
