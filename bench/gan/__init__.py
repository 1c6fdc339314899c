"""The attackers' GANs, the search of their latent spaces, and the hook on a target's features."""
