"""Losses, steps and batches of GANs; the attackers' GANs and searches of their latent spaces; records by teacher."""
