"""Shared code of membership attacks: confidences and reference models (`confidences`), distances (`neighbours`)."""
