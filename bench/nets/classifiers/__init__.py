"""This project's own classifiers. Each module lists its networks, name -> class, in its table NETWORKS."""
