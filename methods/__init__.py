"""Distillation methods, one folder each: `<name>.py` follows the paper, `working.py` is the variant `working`.

The name on the command line is `<name>` with `_` written as `-`.
"""
