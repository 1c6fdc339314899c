"""GAN losses, training steps and batches; the attackers' GANs and latent-space searches."""
