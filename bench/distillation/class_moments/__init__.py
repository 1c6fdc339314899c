"""Class means and second moments: one noisy release (`noisy_moments`), and images drawn from it (`class_images`).

`typical_images` optimises images by a released second moment of features.
"""
