"""A run from its settings to its record: its steps, its stages, what judges them."""
