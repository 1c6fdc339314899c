"""The four papers: their published numbers compared with ours, and their figures drawn from our runs.

No other package of the bench imports this one. `bench papers` and the report load it by name (`bench.extensions`).
"""
