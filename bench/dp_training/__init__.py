"""Training on private data: DP-SGD, per-sample gradients, label privacy, private generators."""
