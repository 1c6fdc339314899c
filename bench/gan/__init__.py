"""The attackers' GANs, the search of their latent spaces, the hook on a target's features, and records by teacher."""
