"""Plug-in metrics of reconstructed images: one per file, whose METRIC has the file's name (see `table`)."""
