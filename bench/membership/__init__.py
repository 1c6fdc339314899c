"""The answers that membership attacks read, and the reference models that they learn from."""
