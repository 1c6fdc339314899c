"""GANs: training steps, losses and batches (`training`), the attackers' GAN (`wasserstein`, `gan_prior`), and searches.

`latent_search` optimises the latents of a generator, `code_search` the codes of a decoder; `eigenfaces` is a linear
decoder.
"""
