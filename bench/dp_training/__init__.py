"""Training on private data, as the baselines share it.

- DP-SGD: `dp_sgd` (Algorithm 1), of `per_sample_gradients`, `clipping` and `accounting`; `weight_average`.
- `private_classifier`: a network trained by DP-SGD and released itself.
- `private_gradient`: one such gradient of any network and loss, for private critics and gradient matching.
- `synthetic_data`: a student trained on what a private generator draws, and on nothing else.
- `label_privacy`: randomised labels and what they cost; `noisy_label_training`: training on them.
- `feature_training`: a linear layer on features that no data went into, trained on all private records at once; of
  `fixed_features`, `whitening`, `linear_head` and `head_accounting`.
- `records`: the private records themselves; `teacher_batches`: those of many teachers on disjoint parts.
- `top_k_votes`: gradients that vote with the signs of their largest coordinates.
"""
