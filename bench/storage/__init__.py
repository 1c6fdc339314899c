"""Files on disk: specs and records, the store of finished steps, provenance."""
