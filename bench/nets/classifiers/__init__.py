"""This project's own classifiers.

A module lists its networks, name -> class, in its table NETWORKS; one without this table has a single network, which is
called like the module, with `_` written as `-`.
"""
