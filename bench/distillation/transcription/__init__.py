"""The loop of the working variants: what is asked, how a noisy answer is read, and how a student learns from it."""
