"""The rows of `benchmarks/peers.py`: our code compared with other libraries or a plain loop for the same result.

- `_pair`: two functions with the same result, timed alternately; the ratio of their times.
- `private_training`, `accounting`, `image_metrics`, `latent_search`, `loading`: pairs by subject.
"""
