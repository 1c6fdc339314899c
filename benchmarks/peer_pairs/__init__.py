"""The rows of `benchmarks/peers.py`: what we do, beside what others' libraries or a plain loop do for the same result.

- `_pair`: two functions that must give the same, taken turns with; the ratio of their times.
- `private_training`, `accounting`, `image_metrics`, `latent_search`, `loading`: pairs of the rooms that they are of.
"""
