"""What distillation methods share: losses, generators, replay, noisy labels and votes, class moments."""
