"""Typed values of the project: privacy, records and results. Imports neither torch nor pandas."""
