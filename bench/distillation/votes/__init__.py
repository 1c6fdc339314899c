"""Teacher votes: noisy aggregation, privacy bounds, and a student trained on the resulting labels."""
