"""Files and directories that are named on the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

LONGEST = 255
"""Bytes of one word of a path, on every common file system."""


def named(text: str) -> Path:
    """The path that was typed. An empty one, often a variable that is not set, would mean the working directory.

    Raises:
        argparse.ArgumentTypeError: it is empty, or a word of it is longer than a file system takes.
    """
    longest = max(text.split("/"), key=len)
    if len(os.fsencode(longest)) > LONGEST:
        raise argparse.ArgumentTypeError(f"'{longest[:20]}...' is longer than the {LONGEST} bytes of a file's name")
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name; give a path, or . for the directory you are in")
    return Path(text)
