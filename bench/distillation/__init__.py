"""Building blocks of the distillation methods: losses, generators, replay, noisy labels and votes, class moments."""
