"""Measurements: plain functions over tensors and arrays. Nothing here trains or loads a model.

Import from the module that has the metric: `intervals`, `utility`, `inception`, `inversion`,
`power`, `distribution`, `pairs`, `membership`.
A measurement that cannot be made raises ValueError with the reason; it never returns a flattering number.
"""
