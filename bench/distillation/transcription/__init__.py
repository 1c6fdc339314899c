"""The training loop of the `working` variants of DPSD, DP-DFD, DPDFD, FedDPSD and DGD: private, data-free distillation.

A private teacher is queried with synthetic images; only its noisy responses may be used. In every round:

1. Candidates are new images of a data-free prior, and transformed copies ("children") of images queried before. The
   student selects the queries among them: balanced over its predicted classes, uncertain images more often (`queries`).
2. The method queries the teacher and adds the noise that its privacy budget requires. This is the only use of the
   teacher. Each noisy response becomes a row of log-likelihoods, a "reading": log P(response | class) (`likelihoods`).
3. The student minimises the marginal likelihood loss of all readings so far, -log sum_r p_s(r | x) P(response | r).
   It is post-processing of noisy responses, as are the steps below, and costs no privacy (`learner`).

If responses are few, or more often wrong than right, several new students learn from all readings, and the mean of
their predictions labels new images for one more student, which is released (`committee`). Read `loop`, `queries`,
`likelihoods`, `learner` and `committee` in this order. `options` has the options, `soft` a variant without noise.
"""
