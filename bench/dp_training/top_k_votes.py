"""TopAgg: every gradient votes with the signs of its k largest coordinates; only the noisy sum of votes is released.

Reference: Wang, Wu, Long, Rimanic, Zhang, Li, "DataLens: Scalable Privacy Preserving Training via Gradient Compression
and Aggregation", ACM CCS 2021. Of n gradients g_i with d coordinates:

1. J_i are the k coordinates where |g_ij| is largest;
2. b_i = min(max_j |g_ij|, c), and s_ij is +1 with probability 1/2 + g_ij / (2 b_i), clamped to [0, 1], else -1;
3. v_ij = s_ij for j in J_i, 0 elsewhere;
4. V = sum_i v_i + N(0, sigma^2) on each of the d coordinates;
5. u_j is the sign of V_j where |V_j| > beta n, and 0 elsewhere.

Sensitivity. |v_i| = sqrt(k) in L2 for any g_i (0 if it is not finite), as b_i depends on g_i only. So V changes by
sqrt(k) if a voter is added or removed, and by at most 2 sqrt(k) if its gradient changes: its k signs flip, or sqrt(2 k)
if it selects other coordinates. All d coordinates get noise, which protects J_i as well as the signs; step 5 is
post-processing.

Draws. Voter i has an offset r_i and coordinate j an offset t_j, uniform in [0, 1); s_ij is +1 where (r_i + t_j) mod 1
is below its probability. For one coordinate the signs of all voters are independent, for one voter those of all
coordinates, each with its own probability; this takes n + d draws instead of n d. r_i belongs to the voter: removing
another voter does not change it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_votes(rows: Tensor, k: int, cap: float, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """Compute the votes of every gradient (steps 1 to 3).

    Args:
        rows: (n, d) gradients, any float dtype; or (n, m, d), n voters on m images.
        k: in [1, d].
        cap: c > 0. If it is far below the gradients' entries, the signs are deterministic; if it is above them, b_i is
            the row's largest magnitude.
        of_rows: (n,) offsets r_i in [0, 1), float64; for images (n, 1).
        of_columns: (d,) offsets t_j in [0, 1), float64; or (m, d), one row per image.

    Returns:
        Same shape as `rows`, values -1, 0 and 1, with exactly k nonzero in each finite row and none in others; float32
        or the rows' wider dtype, so that sums of fewer than 2^24 rows are exact.
    """
    finite = rows.isfinite().all(-1, keepdim=True)
    clean = torch.where(finite, rows, 0.0)
    found = clean.abs().topk(k, -1, sorted=False)
    bound = found.values.amax(-1, keepdim=True).double().clamp(max=cap)
    share = 0.5 + clean.gather(-1, found.indices).double() / (2 * bound.clamp_min(torch.finfo(torch.float64).tiny))
    at = (of_rows[..., None] + of_columns.expand(rows.shape).gather(-1, found.indices)) % 1.0
    dtype = torch.promote_types(rows.dtype, torch.float32)
    signs = torch.where(at < share, 1.0, -1.0).to(dtype) * finite
    return torch.zeros_like(rows, dtype=dtype).scatter(-1, found.indices, signs)


def agreed(mean: Tensor, beta: float) -> Tensor:
    """Return the agreed signs u_j (step 5); post-processing of the noisy sum of votes.

    Args:
        mean: V / n, any shape.
        beta: >= 0, the fraction of voters by which a sign must prevail.

    Returns:
        Same shape, values -1, 0 and 1.
    """
    return mean.sign() * (mean.abs() > beta)
