"""Metrics: functions over tensors and arrays, and the table that explains their numbers (`table`).

Nothing here trains or loads a model. Import from the module that has the metric: `intervals`, `utility`, `inception`,
`inversion`, `power`, `distribution`, `pairs`, `membership`. The files of `image_metrics` are plug-ins (`table`). A
metric that cannot be computed raises ValueError with the reason; it never returns a misleading number.
"""
