"""Sweeps: recipes of many runs, the plan of open work, and the executors that do it."""
