"""Files and directories on the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

LONGEST = 255
"""Largest number of bytes of one part of a path, on every common file system."""


def named(text: str) -> Path:
    """Return the typed path. An empty one, often from an unset variable, would mean the working directory.

    Raises:
        argparse.ArgumentTypeError: it is empty, or a part of it is longer than file systems allow.
    """
    longest = max(text.split("/"), key=len)
    if len(os.fsencode(longest)) > LONGEST:
        raise argparse.ArgumentTypeError(f"'{longest[:20]}...' is longer than the {LONGEST} bytes of a file's name")
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name; give a path, or . for the directory you are in")
    return Path(text)
