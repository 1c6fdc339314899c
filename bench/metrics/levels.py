"""What an attack must reach where nothing defends; in a file that needs no library, as boards ask for it at once."""

from __future__ import annotations

LEAST_AUC = 0.6
"""Of a membership attack on the undefended teacher, for a student's 0.5 to say anything."""
