"""`bench report`: records, audits and pictures -> one static page that needs no network."""

from __future__ import annotations

from bench.report.command import command
from bench.report.page import render
from bench.report.sources import Sources, gather

__all__ = ["Sources", "command", "gather", "render"]
