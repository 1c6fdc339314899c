"""The attacks, one module or package each; its name, with `_` written as `-`, is the attack's name.

Terms of the docstrings:

- The *target* is the attacked network. The attacker's own images are the auxiliary images, `aux`.
- A *suspect* is a record whose membership an attack scores.
- A *victim* is an image of which the attacker observes a response or a corrupted copy, and which it reconstructs.
- A *draw* is one of several independent repetitions of an attack.
- The *evaluator* is a classifier that no attack can access; it decides whether a reconstruction shows its class. On
  people the *face judge* (`bench.metrics.face_descriptor`) decides as well.
- Each attack has the variants `printed`, as the paper has it, and `working`, with the changes listed in `departures`.
"""
