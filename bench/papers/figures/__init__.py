"""The figures of the four papers: what each draws, of which runs, and which of its numbers are printed anywhere."""

from bench.papers.figures import dgd, dp_dfd, dpsd

FIGURES = (*dp_dfd.FIGURES, *dgd.FIGURES, *dpsd.FIGURES)
