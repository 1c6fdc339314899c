"""Accuracy of a federation's clients together: an upper estimate for its server, by way of combining their responses.

The clients of the seed (drawn as in `bench run --seeds`) are trained as those of `dense` at tier quick, which equal
those of `fedavg`. They are tested on the attacker's part, which is neither private nor the test set: each client by
itself, the mean of their logits (which `dense`, `feddf`, `feddafl` and `fedadi` distil as published), the mean of their
probabilities, their votes, and one network of their averaged weights.

    python benchmarks/client_ensembles.py --dataset mnist --student datalens --student dense-cnn
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from attackers_part import material  # noqa: E402

from bench import registry  # noqa: E402
from bench.config import configure  # noqa: E402
from bench.seeds import clients_seed  # noqa: E402
from bench.teachers.federated import ClientEnsemble, Clients  # noqa: E402
from bench.testing import context  # noqa: E402

AT_ONCE = 500


def main() -> None:
    """Print one line per data set, network and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default as of `bench run --data-root`")
    parser.add_argument("--dataset", action="append", required=True, help="may be repeated")
    parser.add_argument("--student", action="append", required=True, help="the clients' network; may be repeated")
    parser.add_argument("--seed", action="append", type=int, help="may be repeated (default 0)")
    parser.add_argument("--tier", default="quick", help="of the clients' training (default quick)")
    given = parser.parse_args()
    for dataset in given.dataset:
        teacher, judged, truth = material(dataset, given.data)
        for network in given.student:
            for seed in given.seed or [0]:
                torch.manual_seed(seed)
                method = configure(registry.load("method", "dense"), given.tier, {}, "method")
                ctx = replace(context(seed), clients_seed=clients_seed(seed, dataset, "iid"))
                clients = Clients(method, teacher, network, ctx)
                starts = [clients.initial(k) for k in range(method.clients)]
                models = [clients.update(k, w, lambda _: None) for k, w in enumerate(starts)]
                together = ClientEnsemble(clients, models)
                answers = logits(together, judged)
                average = clients.with_weights(clients.average(models)).eval()
                found = {
                    **{f"client {k}": each for k, each in enumerate(answers)},
                    "mean of logits": answers.mean(0),
                    "mean of probabilities": answers.softmax(2).mean(0),
                    "votes": F.one_hot(answers.argmax(2), answers.shape[2]).sum(0),
                    "averaged weights": asked(average, judged),
                }
                shares = "; ".join(f"{name} {100 * right(each, truth):.1f} %" for name, each in found.items())
                print(f"{dataset} {network} seed {seed}: {shares}", flush=True)


def logits(together: ClientEnsemble, images: Tensor) -> Tensor:
    """Return (K, n, classes) logits for (n, c, h, w) uint8 images."""
    return torch.stack([asked(member, images) for member in together.members])


@torch.no_grad()
def asked(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the network's (n, classes) float32 outputs, in batches."""
    return torch.cat([network(part.float() / 255).float() for part in images.split(AT_ONCE)])


def right(scores: Tensor, truth: Tensor) -> float:
    """Return the share of (n, classes) scores with the largest at the true class; ties count for the first class."""
    return float((scores.argmax(1) == truth).float().mean())


if __name__ == "__main__":
    main()
