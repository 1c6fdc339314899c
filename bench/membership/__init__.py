"""Shared code of membership attacks: model confidences, reference models, and nearest neighbours."""
