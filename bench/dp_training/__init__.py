"""Training on private data, shared by the baselines.

- DP-SGD: `dp_sgd` (Algorithm 1), built from `per_sample_gradients`, `clipping` and `accounting`.
- `private_classifier`: a network that is trained by DP-SGD and then released.
- `private_gradient`: a single DP-SGD gradient of any network and loss, for private critics and gradient matching.
- `synthetic_data`: a student trained only on images drawn from a private generator.
- `label_privacy`: randomised labels and their privacy cost; `noisy_label_training`: training on them.
- `feature_training`: a linear layer on data-independent features, trained on all private records at once; it uses
  `fixed_features`, `whitening`, `linear_head` and `head_accounting`.
- `records`: access to the private records; `games`: parts of the distinguishing games of private training.
- `top_k_votes`: gradients that vote with the signs of their largest coordinates.
"""
