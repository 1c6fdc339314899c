"""Baselines, one file each, same protocol as the methods; the folder is only a column of the boards."""
