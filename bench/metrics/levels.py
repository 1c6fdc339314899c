"""What an attack must reach where nothing defends; in a file that needs no library, as boards ask for it at once."""

from __future__ import annotations

LEAST_AUC = 0.6
"""Of a membership attack on the undefended teacher, for a student's 0.5 to say anything."""
LEAST_SHOWN = 0.25
"""Of the reconstructions of the undefended teacher, where its classes are too few to be tested against public images:
with ten classes, one in ten is shown by chance, and 0.2 is one class found and nine not."""
