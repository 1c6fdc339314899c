"""The parts of `private_features.py`."""
