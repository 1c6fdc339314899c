"""The papers' ablation that a board's row is, from its options."""

from __future__ import annotations

from functools import cache

from bench import registry
from bench.storage.options import Changed

BY_SIGMA = ("dpdfd",)
"""Methods of which a table has no epsilon and several sigmas, the default one among them (DPDFD, Table 5)."""
DGD_PLUS = {"aggregation": "gaussian", "images": "private"}
"""The options that make DGD the paper's DGD+."""
TERMS = {"ce_weight": "CE", "ie_weight": "IE", "norm_weight": "NORM"}
TERMS_DP_DFD = {"ce_weight": "CE", "alpha": "IE", "beta": "NORM"}
"""The weight that switches a term of the generator's loss off, to the papers' name of the term."""


def ablation(method: str, given: Changed) -> str:
    """The papers' ablation that a board's row is, from its options; "" for the method itself.

    >>> ablation("dpsd", {"method": {"ie_weight": 0.0}, "budget": {"epsilon": 1.0}})
    'loss=CE+NORM'
    >>> ablation("dpdfd", {"method": {}, "budget": {"epsilon": None}})
    'sigma=100'
    """
    own, found = given.get("method", {}), []
    if method == "dgd":  # both together are DGD+ (Fig. 7); either alone is no table's
        found += [f"{name}={value}" for name, value in DGD_PLUS.items() if own.get(name) == value]
    if method == "dpsd" and own.get("discriminator") == "teacher":
        found.append("discriminator=teacher")
    terms = TERMS_DP_DFD if method == "dp-dfd" else TERMS if method in ("dpdfd", "dpsd") else {}
    kept = [term for option, term in terms.items() if own.get(option) != 0]
    if len(kept) < len(terms):
        found.append(f"loss={'+'.join(kept)}")
    if own.get("data") == "private":
        found.append("data=private")
    if given.get("budget", {}).get("epsilon", 10.0) is None:
        sigma = own["sigma"] if "sigma" in own else _usual_sigma(method) if method in BY_SIGMA else None
        found += [] if sigma is None else [f"sigma={sigma:g}"]
    return " ".join(found)


@cache
def _usual_sigma(method: str) -> float:
    """The noise where none is given and none is solved for."""
    (sigma,) = [each.default for each in registry.describe("method", method).options if each.name == "sigma"]
    return float(sigma)
