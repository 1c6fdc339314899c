"""Measurements: plain functions over tensors and arrays, and the table that says what their numbers mean (`table`).

Nothing here trains or loads a model. Import from the module that has the metric: `intervals`, `utility`, `inception`,
`inversion`, `power`, `distribution`, `pairs`, `membership`. The files of `image_metrics` are plug-ins (`table`).
A measurement that cannot be made raises ValueError with the reason; it never returns a flattering number.
"""
