"""dp-distill-bench: attack and evaluate privacy-preserving students made by data-free distillation."""

__version__ = "0.2.0"
