"""The figures of the four papers: what each draws, of which runs, and which of its numbers are printed anywhere."""

from __future__ import annotations

from bench.report import figures_dgd, figures_dp_dfd, figures_dpsd

FIGURES = (*figures_dp_dfd.FIGURES, *figures_dgd.FIGURES, *figures_dpsd.FIGURES)
