"""The baselines, one module or package each, with the same interface as the methods.

Only the boards distinguish baselines and methods: the folder is one of their columns.

Terms of the docstrings:

- The *bench* is this project, dp-distill-bench.
- The *claim* is the epsilon by the paper's own theorem. The *ledger* lists every use of private data, and the *account*
  is the epsilon that an accountant computes from it.
- A *unit* is what one guarantee protects: an `example` (a record), a `label`, a `query` (the response to one image) or
  a `client`.
- The *game* of an audit lets an adversary distinguish two worlds by the outputs of a mechanism; a *play* is one output.
- The *attacker's part* of a data set is neither private nor the test set (`bench.data.splits`); choices that were made
  on it cost no privacy.
- Each baseline has the variants `printed`, as the paper has it, and `working`, with the changes in `departures`.
"""
