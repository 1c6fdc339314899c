"""Metrics of reconstructed images that compute themselves: a file each, whose METRIC has its name (see `table`)."""
