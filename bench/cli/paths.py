"""Files and directories that are named on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path


def named(text: str) -> Path:
    """The path that was typed. An empty one, often a variable that is not set, would mean the working directory.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name; give a path, or . for the directory you are in")
    return Path(text)
