"""The code that this process runs: the state of the checkout when this was imported, beside the rest of it.

A sweep's fork server imports the code once and begins all runs with it, whatever is committed meanwhile.
"""

from __future__ import annotations

from bench import registry
from bench.storage.provenance import git_state

RUNNING = git_state(registry.ROOT)
