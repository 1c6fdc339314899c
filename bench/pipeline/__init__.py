"""A run from its settings to its record: its steps, its stages, and the networks that evaluate it."""
