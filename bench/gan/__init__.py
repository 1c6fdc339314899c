"""GANs: training steps, losses and batches (`training`), the attackers' GAN (`wasserstein`, `gan_prior`), and searches.

`latent_search` and `code_search` search a generator's latents; `eigenfaces` is a linear generator.
"""
