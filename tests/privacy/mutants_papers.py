"""Faults planted into the mechanisms by which the papers' methods query teachers; see test_mutants.py."""

from __future__ import annotations

from functools import partial

from mutation import Mutant

from bench.distillation import noisy_labels
from bench.privacy import mechanisms
from methods.dp_dfd import accounting, dp_dfd
from methods.dp_dfd.working import DpDfdWorking
from methods.dpdfd import dpdfd
from methods.dpdfd.dpdfd import Dpdfd
from methods.dpdfd.working import WorkingDpdfd
from methods.dpsd import working as dpsd_working
from methods.dpsd.dpsd import Dpsd
from methods.dpsd.working import WorkingDpsd
from methods.fed_dpsd import fed_dpsd
from methods.fed_dpsd import working as fed_working
from methods.fed_dpsd.fed_dpsd import FedDpsd
from methods.fed_dpsd.working import WorkingFedDpsd

SEEDED = '__import__("torch").Generator().manual_seed(0)'
SMALL = {"committee": 1, "student_steps": 4}

data = partial(Mutant, plug_in="dpsd", options={"sigma": 2, "k": 2, "iterations": 2}, variant="printed")
label = partial(
    Mutant, plug_in="dpsd", options={"mode": "label", "k": 3, "iterations": 2, "answer_epsilon": 2}, variant="printed"
)
working = partial(Mutant, plug_in="dpsd", options=SMALL | {"sigma": 2}, variant="working")
working_label = partial(
    Mutant, plug_in="dpsd", options=SMALL | {"mode": "label", "k": 3, "answer_epsilon": 2}, variant="working"
)
shared_mean = partial(Mutant, plug_in="dpdfd", options={"sigma": 2, "batch": 4, "iterations": 2}, variant="printed")
many = partial(
    Mutant,
    plug_in="dpdfd",
    options={"sigma": 2, "batch": 4, "teachers": 3, "iterations": 2},
    variant="printed",
)
working_mean = partial(Mutant, plug_in="dpdfd", options=SMALL | {"sigma": 2}, variant="working")
working_shared = partial(Mutant, plug_in="dpdfd", options=SMALL | {"sigma": 2, "shared": 4}, variant="working")
working_many = partial(
    Mutant, plug_in="dpdfd", options=SMALL | {"sigma": 2, "teachers": 3, "teacher_nets": "shard-cnn"}, variant="working"
)
fed = partial(Mutant, plug_in="fed-dpsd", options={"sigma": 2, "iterations": 2}, variant="printed")
fed_by_client = partial(
    Mutant, plug_in="fed-dpsd", options={"sigma": 2, "iterations": 2, "noise_by": "client"}, variant="printed"
)
fed_label = partial(
    Mutant, plug_in="fed-dpsd", options={"mode": "label", "answer_epsilon": 2, "iterations": 2}, variant="printed"
)
working_fed = partial(Mutant, plug_in="fed-dpsd", options=SMALL | {"sigma": 2}, variant="working")
working_fed_label = partial(
    Mutant, plug_in="fed-dpsd", options=SMALL | {"mode": "label", "k": 3, "answer_epsilon": 2}, variant="working"
)
selective = partial(
    Mutant, plug_in="dp-dfd", options={"beta": 0, "answer_epsilon": 2, "threshold": 0.1}, variant="printed"
)
working_selective = partial(
    Mutant, plug_in="dp-dfd", options=SMALL | {"answer_epsilon": 2, "threshold": 0.1}, variant="working"
)

BOUND = 'clip_rows(g, parameters.beta) if self.bound == "clip" else normalise_rows(g, parameters.beta, H)'

PAPERS = [
    data(Dpsd._annotate, "parameters.sigma *", "parameters.sigma / 2 *", "noise halved"),
    data(Dpsd._annotate, "parameters.sigma * parameters.beta", "parameters.sigma * parameters.beta**2", "beta twice"),
    data(Dpsd._annotate, "parameters.sigma * parameters.beta, noise)\n",
        "parameters.sigma * parameters.beta, noise)\n    g = g * (self._bounded_gradient(ours, theirs, "
        "parameters) != 0)\n", "noise on kept entries only"),
    data(Dpsd._annotate, "g = gaussian_rows(", "g = (lambda g, std, noise: g + gaussian_rows(0 * g[:1], std, noise))(",
        "one draw for all rows"),
    data(Dpsd._annotate, "parameters.beta, noise)", f"parameters.beta, {SEEDED})", "noise used again in every batch"),
    data(Dpsd._annotate, "ours.softmax(1) - self.gamma_s * g",
        "ours.softmax(1) - self.gamma_s * g + 0.01 * theirs.softmax(1)", "the teacher's probabilities added"),
    data(Dpsd._bounded_gradient, BOUND, "g", "no normalisation"),
    data(Dpsd._bounded_gradient, BOUND, "normalise_rows(g, parameters.beta, H) * 2", "bound doubled"),
    data(Dpsd._bounded_gradient, BOUND, "parameters.beta * g / g.norm(dim=1).mean()", "normalised per batch"),
    data(mechanisms.normalise_rows, "bound * torch.minimum(1 / (norms + h), shrink / norms)", "bound / norms.mean()",
        "normalised per batch"),
    data(noisy_labels.AnnotationMechanism._spend_gradients, "gaussian_event(parameters.sigma / 2)",
        "gaussian_event(parameters.sigma)", "ledger: wrong sensitivity"),
    label(Dpsd._responses, "ours.topk(parameters.k, 1).indices, parameters.answer_epsilon",
        "theirs.topk(parameters.k, 1).indices, parameters.answer_epsilon", "candidates of the teacher"),
    label(Dpsd._responses, "parameters.answer_epsilon\n", "2 * parameters.answer_epsilon\n", "epsilon doubled"),
    label(Dpsd._responses, "return randomised_response(r, candidates, epsilon, noise)",
        "return torch.where(ours.argmax(1) == r, r, randomised_response(r, candidates, epsilon, noise))",
        "the truth where the student agrees"),
    label(Dpsd._annotate, "F.one_hot(self._responses(ours, theirs, parameters, noise), ours.shape[1]).float()",
        "(F.one_hot(self._responses(ours, theirs, parameters, noise), ours.shape[1]) + theirs.softmax(1)) / 2",
        "soft label"),
    label(mechanisms.randomised_response, "(position + shift) % k, position), anywhere)",
        "(position + shift) % k, position), 0 * anywhere)", "a label outside the candidates gets the first one"),
    working(WorkingDpsd._query_teacher, "parameters.sigma * parameters.beta", "parameters.sigma / 2 * parameters.beta",
        "noise halved"),
    working(WorkingDpsd._query_teacher, "parameters.beta, noise)", f"parameters.beta, {SEEDED})",
        "noise used again in every batch"),
    working(WorkingDpsd._query_teacher, "gradient_log_likelihood(g,", "gradient_log_likelihood(bounded(at, theirs),",
        "likelihood of the exact gradient"),
    working(WorkingDpsd._query_teacher, "gaussian_rows(bounded(at, theirs),",
        "gaussian_rows(bounded(at, theirs).mean(0, keepdim=True).expand_as(ours) + bounded(at, theirs),",
        "every row twice"),
    working(WorkingDpsd._bounded_gradient, BOUND, "g", "no normalisation"),
    working(WorkingDpsd._bounded_gradient, BOUND, "parameters.beta * g / g.norm(dim=1).mean()", "normalised per batch"),
    working_label(dpsd_working._response, "ours.topk(k, 1)", "theirs.topk(k, 1)", "candidates of the teacher"),
    working_label(dpsd_working._response, "epsilon, noise)", "2 * epsilon, noise)", "epsilon doubled"),
    working_label(dpsd_working._response, "epsilon, noise)", f"epsilon, {SEEDED})", "noise used again in every batch"),
    working_label(WorkingDpsd._query_teacher, "response_log_likelihood(o,", "response_log_likelihood(theirs.argmax(1),",
        "likelihood of the teacher's own class"),
    shared_mean(Dpdfd._noisy_mean, "parameters.sigma *", "parameters.sigma / 2 *", "noise halved"),
    shared_mean(Dpdfd._noisy_mean, "parameters.beta, noise)", f"parameters.beta, {SEEDED})", "noise used again"),
    shared_mean(Dpdfd._bounded, "normalise_rows(g, bound, E)", "g", "no normalisation"),
    shared_mean(mechanisms.gaussian_shared_mean, "gaussian(rows.double().sum(0), std) / len(rows)",
        "gaussian(rows.double().sum(0), std / len(rows)) / len(rows)", "noise divided by the batch twice"),
    many(dpdfd.noisy_mean_of_teachers, "parameters.sigma *", "parameters.sigma / 2 *", "noise halved"),
    many(dpdfd.noisy_mean_of_teachers, ".double().sum(0)", ".double().sum(0) * 2", "every teacher counted twice"),
    many(dpdfd.noisy_mean_of_teachers, "parameters.beta, noise)", f"parameters.beta, {SEEDED})", "noise used again"),
    many(dpdfd.noisy_mean_of_teachers, "parameters.sigma * parameters.beta",
        "parameters.sigma * parameters.beta / len(theirs)", "noise divided by the teachers twice"),
    many(Dpdfd._bounded, "normalise_rows(g, bound, E)", "g", "no normalisation"),
    many(Dpdfd._annotate, "ours.softmax(1) - self.gamma * g",
        "ours.softmax(1) - self.gamma * g + 0.01 * theirs.mean(0).softmax(1)", "the teachers' probabilities added"),
    many(noisy_labels.AnnotationMechanism._spend_sums, "(1, self.batch * parameters.iterations)",
        "(1, max(1, self.batch * parameters.iterations - 1))", "ledger: one answer less"),
    many(noisy_labels.AnnotationMechanism._spend_sums, "gaussian_event(parameters.sigma / (2 * moved))",
        "gaussian_event(parameters.sigma / moved)", "ledger: wrong sensitivity"),
    working_mean(WorkingDpdfd._noisy, "parameters.sigma *", "parameters.sigma / 2 *", "noise halved"),
    working_mean(WorkingDpdfd._noisy, "std, noise)\n    means", f"std, {SEEDED})\n    means", "noise used again"),
    working_mean(WorkingDpdfd._noisy, "return gaussian_rows(g, std, noise)",
        "return g + gaussian_rows(0 * g[:1], std, noise)", "one draw for all rows"),
    working_mean(WorkingDpdfd._bounded, "normalise_rows(g, bound, E)", "g", "no normalisation"),
    working_mean(WorkingDpdfd._query_teacher, "gradient_log_likelihood(g,",
        "gradient_log_likelihood(g + bounded(at, phi_t(images)),", "the exact gradient added to the noisy one"),
    working_shared(WorkingDpdfd._noisy, "parameters.sigma *", "parameters.sigma / 2 *", "noise halved"),
    working_many(WorkingDpdfd._query_teacher, "noisy_mean_of_teachers(at, phi_t(images), bounded,",
        "noisy_mean_of_teachers(at, 2 * phi_t(images), lambda a, b: 2 * bounded(a, b),", "bound doubled"),
    fed(fed_dpsd.noisy_mean, "parameters.sigma *", "parameters.sigma / 2 *", "noise halved"),
    fed(fed_dpsd.noisy_mean, "rows.double().sum(0), std", "rows.double().sum(0), std / len(rows)",
        "noise divided twice"),
    fed(fed_dpsd.noisy_mean, "gaussian_rows(rows.double().sum(0), std, noise)",
        f"gaussian_rows(rows.double().sum(0), std, {SEEDED})", "noise used again in every batch"),
    fed_by_client(fed_dpsd.noisy_mean, "gaussian_rows(rows.flatten(0, 1), std, noise)",
        "gaussian_rows(rows.flatten(0, 1), std / 2, noise)", "noise halved"),
    fed(fed_dpsd._bounded_gradient, "bound, H)", "2 * bound, H)", "bound doubled"),
    fed(FedDpsd._annotate, "noisy_mean(answers, parameters, self.noise_by, noise)",
        "(noisy_mean(answers, parameters, self.noise_by, noise) + answers.mean(0))",
        "the exact mean added to the noisy one"),
    fed_label(fed_dpsd._responses, "ours.topk(", "theirs.topk(", "candidates of the client"),
    fed_label(fed_dpsd._responses, "parameters.answer_epsilon, noise)", "2 * parameters.answer_epsilon, noise)",
        "epsilon doubled"),
    fed_label(fed_dpsd._responses, "parameters.answer_epsilon, noise)", f"parameters.answer_epsilon, {SEEDED})",
        "one seed for all clients"),
    fed_label(FedDpsd._fed_flexper, "F.one_hot(responses, ours.shape[1]).float()",
        "F.one_hot(responses, ours.shape[1]).float() + 0.01 * theirs.softmax(1)", "soft label"),
    working_fed(WorkingFedDpsd._query_clients, "for each in clients(images)])", "for each in clients(images)]) * 2",
        "every client counted twice"),
    working_fed(fed_working._bounded_gradient, "bound, H)", "2 * bound, H)", "bound doubled"),
    working_fed(WorkingFedDpsd._query_clients, "gradient_log_likelihood(\n        g,",
        "gradient_log_likelihood(\n        g + bounded(ours, clients(images)[0]),", "a client's exact gradient added"),
    working_fed_label(fed_working._response, "ours.topk(k, 1)", "theirs.topk(k, 1)", "candidates of the client"),
    working_fed_label(fed_working._response, "epsilon, noise)", "2 * epsilon, noise)", "epsilon doubled"),
    working_fed_label(WorkingFedDpsd._responses, "_response(ours, each, parameters.k, epsilon, noise)",
        f"_response(ours, each, parameters.k, epsilon, {SEEDED})", "one seed for all clients"),
    selective(dp_dfd.respond, "selective_response(r, allowed, epsilon, noise)",
        "selective_response(r, allowed, 2 * epsilon, noise)", "epsilon doubled"),
    selective(dp_dfd.respond, "allowed, epsilon, noise)", f"allowed, epsilon, {SEEDED})",
        "noise used again in every batch"),
    selective(dp_dfd.DpDfd.label, "candidates(y_s, plan.threshold)", "candidates(y_t.softmax(1), plan.threshold)",
        "candidates of the teacher"),
    selective(dp_dfd.respond, " if soft else onehot", "", "soft label"),
    selective(mechanisms.selective_response, "flip_probability(epsilon, k)", "flip_probability(epsilon, k - 1)",
        "one candidate too few is counted"),
    working_selective(DpDfdWorking.query_teacher, "response_log_likelihood(answered.argmax(1),",
        "response_log_likelihood(phi_t(images).argmax(1),", "likelihood of the teacher's own class"),
    working_selective(DpDfdWorking.query_teacher, "candidates(ours.softmax(1), plan.threshold)",
        "candidates(phi_t(images).softmax(1), plan.threshold)", "candidates of the teacher"),
    working_selective(DpDfdWorking.query_teacher, "plan.answer_epsilon, noise)", "2 * plan.answer_epsilon, noise)",
        "epsilon doubled"),
    working_selective(accounting.response_ledger, "event, why = randomised_response_event(plan.answer_epsilon, 2)",
        "event, why = randomised_response_event(plan.answer_epsilon / 2, 2)", "ledger: half of epsilon"),
]  # fmt: skip
