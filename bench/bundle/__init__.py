"""What leaves: a released student with its account, in a directory that holds nothing else; writing and checking one.

Whatever is written is on a list of what the account covers (`account`, `network`); a record's other fields, which were
measured on private data without noise, are never read.
"""

from __future__ import annotations

from bench.bundle.checking import Failed, Verified, verify
from bench.bundle.finding import find
from bench.bundle.network import load
from bench.bundle.writing import export

__all__ = ["Failed", "Verified", "export", "find", "load", "verify"]
