"""Noisy class means and second moments: one private release, and images drawn from it."""
