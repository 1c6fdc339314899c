"""`bench report`: records, audits and pictures -> a static site that needs neither network nor server."""

from __future__ import annotations

from bench.report.command import command
from bench.report.files import check_free, write
from bench.report.site import render
from bench.report.sources import Sources, gather

__all__ = ["Sources", "check_free", "command", "gather", "render", "write"]
