"""Teachers' votes: how they are aggregated with noise, what is proved of them, and a student that learns from them."""
