"""The training loop of the `working` variants: choice of queries, reading of noisy responses, and student training."""
