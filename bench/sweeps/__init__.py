"""Sweeps: recipes of many runs, what has to be done for them, and who does it."""
