"""Teacher votes: noisy aggregation and its ledger (`noisy_votes`), PATE's bounds (`vote_bounds`), audits (`vote_game`).

`voted_student` trains a student on the resulting labels; `pate` adds what the two PATE baselines share.
"""
