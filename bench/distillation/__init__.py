"""Building blocks of the distillation methods.

| module                                  | content                                                                 |
|-----------------------------------------|-------------------------------------------------------------------------|
| `losses`, `training`                    | student and generator losses; training step and replay buffer           |
| `generator_training`, `image_source`    | data-free generators; sources of query images (prior or generator)      |
| `noisy_labels`, `distinguishing_games`  | privacy of noisy gradients and randomised responses, and its audits     |
| `transcription`                         | the training loop of the `working` variants                             |
| `votes`                                 | noisy votes of teacher ensembles (PATE, DGD), and students trained on them |
| `class_moments`                         | a private release of class moments, and images drawn from it            |
| `data_free_kd`                          | distillation without noise, from a classifier that is already private   |
| `unprotected_images`                    | students of DGD's Fig. 4, on private images or unprotected generators   |
"""
