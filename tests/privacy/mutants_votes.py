"""Faults planted into the code of noisy votes and randomised labels; test_mutants.py searches for them."""

from __future__ import annotations

from functools import partial

from mutation import Mutant

from baselines import alibi, cluster_rr, lp_2st, rr, rr_debiased
from baselines.class_moments.class_moments import ClassMoments
from baselines.class_moments.spending import Spending
from baselines.datalens import datalens
from baselines.datalens.accounting import DataLensParameters
from baselines.g_pate import aggregation
from baselines.g_pate import g_pate as g_pate_training
from baselines.pate_gan import networks, pate_gan
from bench.distillation.votes import noisy_votes
from bench.distillation.votes.voted_student import VotedStudent
from bench.dp_training import label_privacy, top_k_votes
from bench.nets import Ensemble
from bench.privacy import mechanisms
from methods.dgd.dgd import Dgd
from methods.dgd.working import DgdWorking

SEEDED = '__import__("torch").Generator().manual_seed(0)'
PATE = {"scale": 1, "query_count": 8, "images": "strokes"}
CONFIDENT = PATE | {"responses": 4, "threshold": 0.8, "threshold_noise": 1.0}
LABEL = {"label_epsilon": 2, "epochs": 4}

pate = partial(Mutant, plug_in="pate", options=PATE)
gnmax = partial(Mutant, plug_in="pate-gnmax", options=CONFIDENT)
all_pass = partial(Mutant, plug_in="pate-gnmax", options=CONFIDENT | {"threshold": 0.01})
printed_dgd = partial(Mutant, plug_in="dgd", options={"scale": 1}, variant="printed")
working_dgd = partial(Mutant, plug_in="dgd", options={"scale": 2}, variant="working")
gan = partial(Mutant, plug_in="pate-gan", options={"teachers": 4, "steps": 4, "teacher_rate": 0.1, "scale": 2})
g_pate = partial(
    Mutant, plug_in="g-pate", options={"teachers": 4, "steps": 4, "teacher_rate": 0.1, "scale": 2, "threshold": 0}
)
lens = partial(Mutant, plug_in="datalens", options={"teachers": 4, "steps": 4, "rate": 0.05, "sigma": 30})
few_votes = partial(Mutant, plug_in="datalens", options=lens.keywords["options"] | {"sigma": 1.5, "kept": 0.001})
moments = partial(Mutant, plug_in="class-moments", options={"teachers": 3, "sigma": 2})

VOTES = [
    pate(noisy_votes.release_counts, "plan.aggregation.counts(votes[passed], noise)", "votes[passed].double()",
        "no noise"),
    pate(noisy_votes.release_counts, "plan.aggregation.counts(",
        "replace(plan.aggregation, scale=plan.aggregation.scale / 2).counts(", "noise halved"),
    pate(noisy_votes.release_counts, "plan.aggregation.counts(votes[passed], noise)",
        "votes[passed] + plan.aggregation.counts(0 * votes[passed[:1]], noise)", "one draw for all images"),
    gnmax(noisy_votes.release_counts, "plan.aggregation.confident(votes, noise)",
        "(votes.amax(1) >= plan.aggregation.threshold)", "threshold on the exact count"),
    all_pass(noisy_votes.release_counts, "[: plan.queries]", "[: plan.queries + 1]", "one answer more than charged"),
    pate(noisy_votes.Aggregation.counts, "self.scale", "self.scale / 2", "noise halved"),
    pate(noisy_votes.Aggregation.counts, "self.scale, noise)", f"self.scale, {SEEDED})", "noise of one seed"),
    pate(noisy_votes.Aggregation.counts, "return noisy_counts(votes, self.law, self.scale, noise)",
        "return torch.where(votes > 0, noisy_counts(votes, self.law, self.scale, noise), votes.double())",
        "noise on counts above 0 only"),
    pate(noisy_votes.Aggregation.counts, "noisy_counts(votes,", "noisy_counts(2 * votes,", "votes counted twice"),
    gnmax(noisy_votes.Aggregation.confident, "self.threshold_scale", "self.threshold_scale / 4", "noise quartered"),
    gnmax(noisy_votes.Aggregation.confident, 'noisy_counts(votes.amax(1), "gaussian", self.threshold_scale, noise)',
        "votes.amax(1)", "no noise on the threshold"),
    gnmax(noisy_votes.Aggregation.confident, ">= self.threshold", ">= votes.amax()", "threshold reads the votes"),
    gnmax(noisy_votes.Aggregation.confident, "votes.amax(1)", "3 * votes.amax(1)", "largest count tripled"),
    gnmax(noisy_votes.Aggregation._event, "(math.sqrt(2) * votes)", "(votes / 2)", "ledger: wrong sensitivity"),
    pate(noisy_votes.Aggregation._event, "(2 * votes)", "votes", "ledger: wrong sensitivity"),
    pate(noisy_votes.Aggregation.spend, "(Unit.EXAMPLE, 1, queries,", "(Unit.EXAMPLE, 1, max(1, queries - 1),",
        "ledger: one query less"),
    pate(Ensemble.votes, "torch.ones_like(predicted,", "2 * torch.ones_like(predicted,", "every vote counted twice"),
    pate(Ensemble.votes, "counts.scatter_add_(1, predicted, torch.ones_like(predicted, dtype=torch.float32))",
        "counts.add_(logits.softmax(1))", "soft votes"),
    pate(VotedStudent.convert, "self._targets(counts, plan)",
        "self._targets(teacher.members().votes(queried)[passed].double(), plan)", "student of the exact votes"),
    pate(VotedStudent.convert, "noisy_votes(plan, queried,",
        "noisy_votes(plan.with_scale(plan.aggregation.scale / 2), queried,", "noise halved"),
    printed_dgd(Dgd.label, "noisy_votes(plan,", "noisy_votes(plan.with_scale(plan.aggregation.scale / 2),",
        "noise halved"),
    printed_dgd(Dgd.label, "counts.argmax(1)", "members.votes(images).argmax(1)", "arg-max of the exact votes"),
    printed_dgd(Dgd.label, "members, noise)", f"members, {SEEDED})", "noise used again in every call"),
    printed_dgd(Dgd.label, "F.one_hot(counts.argmax(1), members.classes).float()",
        "(counts + members.votes(images) * 10).softmax(1).float()", "soft label"),
    working_dgd(DgdWorking.label, "noisy_votes(part,", "noisy_votes(part.with_scale(part.aggregation.scale / 2),",
        "noise halved"),
    working_dgd(DgdWorking.label, "log_posterior(counts,", "log_posterior(counts + members.votes(images),",
        "exact votes added to the noisy ones"),
    working_dgd(DgdWorking.label, "members, noise)", f"members, {SEEDED})", "noise used again in every call"),
    gan(pate_gan.noisy_votes, "noise.counts(teachers.votes(u), source)", "teachers.votes(u).double()", "no noise"),
    gan(pate_gan.noisy_votes, "noise.counts(", "replace(noise, scale=noise.scale / 2).counts(", "noise halved"),
    gan(pate_gan.noisy_votes, "source)", f"{SEEDED})", "noise used again in every call"),
    gan(pate_gan.noisy_votes, "noise.counts(teachers.votes(u), source)",
        "torch.cat([noise.counts(teachers.votes(u)[:, :1], source), teachers.votes(u)[:, 1:]], 1)",
        "noise on one of the two counts"),
    gan(networks.Perceptrons.votes, "(self(x) > 0).sum(0)", "2 * (self(x) > 0).sum(0)", "every vote counted twice"),
    gan(networks.Perceptrons.votes, "(self(x) > 0).sum(0)", "self(x).sigmoid().sum(0)", "soft votes"),
    gan(pate_gan.Training.study, "self.targets(counts)", "self.targets(self.teachers.votes(u).double())",
        "student of the exact votes"),
    gan(pate_gan.Training.study, "+= len(u)", "+= len(u) - 1", "one query of a batch is not counted"),
    g_pate(aggregation.Aggregator.noisy_votes, "release_counts(self.plan,",
        "release_counts(self.plan.with_scale(self.plan.aggregation.scale / 2),", "noise halved"),
    g_pate(aggregation.Aggregator.noisy_votes, "return rows, counts", "return rows, counts + histograms[rows]",
        "exact votes added to the noisy ones"),
    g_pate(aggregation.Aggregator.noisy_votes, "self.noise)", f"{SEEDED})", "noise used again in every call"),
    g_pate(aggregation.votes, "counts.new_ones(1)", "counts.new_full((1,), 2.0)", "every vote counted twice"),
    g_pate(aggregation.votes, "counts.new_ones(1).expand(len(cast))", "(1 + v.abs().flatten())",
        "votes weighted by the private gradient"),
    g_pate(g_pate_training.Training.step, "self.aggregate(found, projection).view_as(u)",
        "(self.aggregate(found, projection).view_as(u) + next(self.teachers.directions(u, self._one_hot(y)))[0])",
        "a teacher's gradient added"),
    lens(datalens.noisy_votes, "parameters.sigma,", "parameters.sigma / 2,", "noise halved"),
    lens(datalens.noisy_votes, "source)", f"{SEEDED})", "noise used again in every call"),
    few_votes(datalens.noisy_votes, "parameters.k,", "parameters.k + 1,", "one vote more than charged"),
    lens(datalens.noisy_votes, 'return noisy_counts(votes, "gaussian", parameters.sigma, source)',
        'return noisy_counts(votes, "gaussian", parameters.sigma, source) * (votes != 0)',
        "noise where votes are only"),
    lens(top_k_votes.top_k_votes, "1.0, -1.0", "2.0, -2.0", "votes of 2"),
    lens(top_k_votes.top_k_votes, "torch.where(at < share, 1.0, -1.0).to(dtype) * finite",
        "(1e6 * clean.gather(-1, found.indices)).round().to(dtype)", "gradients in place of signs: no bound"),
    lens(DataLensParameters.multiplier, "(2 * math.sqrt(self.k))", "(math.sqrt(self.k) / 2)", "ledger: sensitivity"),
    moments(ClassMoments.answers, "spending.sigma", "spending.sigma / 2", "noise halved"),
    moments(ClassMoments.answers, 'noisy_counts(ensemble.votes(images), "gaussian", spending.sigma, noise)',
        "ensemble.votes(images)", "no noise"),
    moments(ClassMoments.answers, "sigma, noise)", f"sigma, {SEEDED})", "noise used again in every call"),
    moments(ClassMoments._with_votes, "self.evidence(counts, spending)",
        "self.evidence(ensemble.votes(drawn), spending)", "student of the exact votes"),
    moments(Spending.ledger, "(Unit.EXAMPLE, 1, self.queries)", "(Unit.EXAMPLE, 1, self.queries - 1)",
        "ledger: one query less"),
]  # fmt: skip

response = partial(Mutant, plug_in="rr", options=LABEL)
debiased = partial(Mutant, plug_in="rr-debiased", options=LABEL)
two_stages = partial(Mutant, plug_in="lp-2st", options=LABEL)
bayes = partial(Mutant, plug_in="alibi", options={"label_epsilon": 3})
gaussian_bayes = partial(Mutant, plug_in="alibi", options={"label_epsilon": 3, "noise": "gaussian"})
clusters = partial(
    Mutant, plug_in="cluster-rr", options={"label_epsilon": 1.5, "share": 0.5, "tau": 0.1, "features": "pixels"}
)

LABELS = [
    response(label_privacy.respond, "epsilon, source)", "2 * epsilon, source)", "epsilon doubled"),
    response(label_privacy.respond, "epsilon, source)", f"epsilon, {SEEDED})", "noise used again for every part"),
    response(label_privacy.respond, "randomised_response(part, every.expand(len(part), -1), epsilon, source)", "part",
        "labels as they are"),
    response(mechanisms.randomised_response, "flip_probability(epsilon, k)", "flip_probability(epsilon, 2)",
        "kept as among two classes, for any k"),
    response(mechanisms.randomised_response, "noise.integers(1, max(k, 2), n)", "(0 * noise.bits(n) + 1)",
        "always the next class"),
    response(mechanisms.randomised_response, "noise.chance(flip_probability(epsilon, k), n)",
        "noise.chance(flip_probability(epsilon, k), 1).expand(n)", "one coin for all labels"),
    response(rr.Rr.convert, "cross_entropy(noisy)", "cross_entropy(labels)", "student of the true labels"),
    response(rr.Rr.convert, "respond(labels, teacher.classes, epsilon,",
        "respond(labels, teacher.classes, 2 * epsilon,", "epsilon doubled"),
    debiased(rr_debiased.RrDebiased.convert, "debiased_loss(noisy,", "debiased_loss(labels,",
        "student of the true labels"),
    debiased(rr_debiased.RrDebiased.convert, "response_event(epsilon, teacher.classes)",
        "response_event(epsilon / 2, teacher.classes)", "ledger: half of epsilon"),
    debiased(rr_debiased.RrDebiased.convert, "debiased_loss(noisy,",
        'debiased_loss(respond(labels, teacher.classes, epsilon, ctx.privacy_noise("again")),',
        "every label answered twice"),
    two_stages(lp_2st.rr_with_prior, "epsilon, source)", "2 * epsilon, source)", "epsilon doubled"),
    two_stages(lp_2st.rr_with_prior, "candidates(p, epsilon)", "candidates(p, epsilon).scatter(1, y[:, None], True)",
        "the label is always a candidate"),
    two_stages(lp_2st.rr_with_prior, "epsilon, source)", f"epsilon, {SEEDED})", "noise used again in every call"),
    two_stages(lp_2st.stages, "order[size:]", "order[size - 1 :]", "one record in both stages"),
    two_stages(lp_2st.Lp2st.convert, 'cross_entropy(noisy), ctx, "LP-2ST, stage 1"',
        'cross_entropy(labels), ctx, "LP-2ST, stage 1"', "first student of the true labels"),
    two_stages(mechanisms.selective_response, "flip_probability(epsilon, k)", "flip_probability(epsilon, 2)",
        "kept as among two classes, for any k"),
    two_stages(mechanisms.selective_response, "torch.where(inside & (~flip | (choices == 0)), labels, other)",
        "torch.where(~flip | (choices == 0), labels, other)", "a label outside the candidates is kept"),
    bayes(alibi.Alibi._noisy, ".double(), scale)", ".double(), scale / 2)", "noise halved"),
    bayes(alibi.Alibi._noisy, "Noise.of(source)", f"Noise.of({SEEDED})", "noise used again in every call"),
    bayes(alibi.Alibi._noisy, "return add(F.one_hot(labels, classes).double(), scale)",
        "return add(F.one_hot(labels, classes).double(), scale) * F.one_hot(labels, classes)",
        "noise on the label's own coordinate only"),
    bayes(alibi.Alibi._ledger, "count=2", "count=1", "ledger: one coordinate"),
    gaussian_bayes(alibi.Alibi._noisy, ".double(), scale)", ".double(), scale / 2)", "noise halved"),
    gaussian_bayes(alibi.Alibi._noisy, "F.one_hot(labels, classes)", "2 * F.one_hot(labels, classes)",
        "doubled vector"),
    clusters(cluster_rr.ClusterRr._scale, "2 / first", "0.5 / first", "noise quartered"),
    clusters(cluster_rr.ClusterRr.randomise, "floored_shares(noisy, tau)",
        "floored_shares(counts(cluster, labels, classes), tau)", "shares of the exact counts"),
    clusters(cluster_rr.ClusterRr.randomise, "(1 - self.share) * epsilon", "2 * epsilon", "epsilon_2 too large"),
    clusters(cluster_rr.ClusterRr.randomise, "counts(cluster, labels, classes)", "3 * counts(cluster, labels, classes)",
        "labels counted three times"),
    clusters(cluster_rr.draw_again, "noise.chance(rare, n)", "noise.chance(rare / 4, n)", "labels kept too often"),
    clusters(cluster_rr.draw_again, "torch.where(again, drawn, labels)",
        "torch.where(again & (q.gather(1, labels[:, None])[:, 0] < 0.5), drawn, labels)",
        "a likely label is never drawn again"),
    clusters(cluster_rr.floored_shares, "tau + (1 - tau * noisy.shape[1]) * excess / sums.clamp_min(1e-300)",
        "above / total.clamp_min(1e-300)", "shares without a floor"),
    clusters(cluster_rr.ClusterRr._ledger, "count=2", "count=1", "ledger: one count"),
    clusters(cluster_rr.ClusterRr.convert, "make_loss(noisy,", "make_loss(labels,", "student of the true labels"),
]  # fmt: skip
