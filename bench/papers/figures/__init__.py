"""The figures of the four papers: for each its runs, its published numbers, and the paper's sentences about it."""

from bench.papers.figures.kinds import read_figures

FIGURES = read_figures()
