"""The figures of the four papers: the runs that each is of, the published numbers in it, and what the text says."""

from bench.papers.figures.kinds import read_figures

FIGURES = read_figures()
