"""Noisy means and second moments of the classes: one private release, and images that are made of it."""
