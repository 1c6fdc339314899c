"""Plug-ins of every kind: their names without importing them, their classes by importing one module."""

from __future__ import annotations

from bench.plugins.discovery import KINDS, ROOT, Entry, add_class, class_of, entries, find

__all__ = ["KINDS", "ROOT", "Entry", "add_class", "class_of", "entries", "find"]
