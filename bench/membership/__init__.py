"""Shared code of membership attacks: model confidences and reference models (`confidences`), nearest neighbours."""
