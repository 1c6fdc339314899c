"""Faults in the code of clipped gradients and noisy statistics of private records."""

from __future__ import annotations

from typing import Any

from mutation import Mutant

from baselines import dp_blsgd, dp_merf, gep, label_protocol, rgp, spectral_dp, topagg
from baselines.dp_gan import dp_gan
from baselines.dp_sinkhorn import dp_sinkhorn
from baselines.geddp import Codes
from baselines.gs_wgan import gs_wgan
from baselines.p3gm import mixture, network
from baselines.psg import psg
from bench.distillation.class_moments import noisy_moments
from bench.dp_training import clipped_sums, clipping, dp_sgd, linear_head, private_gradient, whitening

Options = dict[str, Any]
ONE: Options = {"multiplier": 1.0, "batch": 20}
GEP: Options = {"multiplier": 2**0.5, "batch": 20}
MOMENT: Options = {"steps": 1, "multiplier": 3.0, "share": 0.9}
HEAD: Options = {"steps": 1, "multiplier": 1.0, "share": 0.1}
SEARCH: Options = {
    "multiplier": 20.0, "search": 20.0, "batch": 20, "trials": 3, "rate": 50.0, "loss_bound": 1.0, "steps": 6,
}  # fmt: skip
PHASES: Options = {
    "mean": "noisy", "components": 3, "noise_mean": 2.0, "noise_components": 2.0, "noise_mixture": 4.0,
    "noise_steps": 50.0, "batch": 20,
}  # fmt: skip
STEPS: Options = {"components": 1, "noise_components": 50.0, "noise_mixture": 50.0, "noise_steps": 1.0, "batch": 20}
SINKHORN: Options = {"sigma": 0.5, "batch": 20}
LABELS: Options = {"epochs": 1, "batch": 20, "network": "student"}
LAST: Options = {"epochs": 1, "batch": 20, "network": "scatter-linear"}
BLIND = "Noise('cpu', 0)"

DP_SGD = [
    Mutant(clipping.add_noise, "z * group.bound", "0.5 * z * group.bound", "noise halved", "dp-sgd", ONE),
    Mutant(clipping.add_noise, "z * group.bound", "0.7 * z * group.bound", "noise times 0.7", "dp-sgd", ONE),
    Mutant(clipping.add_noise, "z * group.bound", "z", "noise without the clipping norm", "dp-sgd", {**ONE,
           "clip": 10.0}),
    Mutant(clipping.add_noise, "math.sqrt(group.share)", "1", "noise without the group's share", "gm-dp", ONE),
    Mutant(clipping.add_noise, "total[name] = part.view_as(total[name])",
           "total[name] = (part if name == group.names[0] else total[name]).view_as(total[name])",
           "noise on the first tensor only", "dp-sgd", ONE),
    Mutant(clipping.add_clipped, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped", "dp-sgd", ONE),
    Mutant(clipping.add_clipped, "broken = ~norms", "norms = norms.nanmean().expand_as(norms); factor = (ROOM * "
           "group.bound / norms).clamp(max=1.0); broken = ~norms", "one clipping factor for the batch", "dp-sgd", ONE),
    Mutant(clipping.add_clipped, "for row in rows for piece", "for row in rows[:1] for piece",
           "norm of the first tensor only", "dp-sgd", ONE),
    Mutant(clipping.add_clipped, "_sum(factor, clean, together)", "2 * _sum(factor, clean, together)",
           "every record twice", "dp-sgd", ONE),
    Mutant(clipping.poisson_sample, "Noise.of(source).sample(records, probability)", "torch.arange(records)",
           "all records in every sample", "dp-sgd", ONE),
    Mutant(clipping.noisy_mean, "multiplier, source)", f"multiplier, {BLIND})", "noise of one seed", "dp-sgd", ONE),
    Mutant(dp_sgd.NoisyGradients.noisy_mean, "q * self.units, self.noise", "max(len(chosen), 1), self.noise",
           "mean over the records drawn", "dp-sgd", ONE),
    Mutant(dp_sgd.NoisyGradients.noisy_mean, "self.coding.groups(), z, q", "self.coding.groups(), "
           "z * min(len(chosen), 1), q", "no noise for an empty sample", "dp-sgd", ONE),
    Mutant(dp_sgd.train_without_dropout, "layer.train(any(True for _ in layer.parameters()))", "layer.train()",
           "dropout by a record's place", "dp-sgd", {"batch": 40, "network": "student"}),
    Mutant(clipped_sums.ClippedSums.__call__, "self.gradients(seen, labels[part])",
           "self.gradients(seen, labels[part].repeat_interleave(self.views))", "each view of a record clipped",
           "dp-wrn", {**ONE, "views": 8}),
    Mutant(dp_sgd.train, "average.update()", "kept = [p.detach().clone() for p in average.parameters]; exact = "
           "noisy.sums((noisy.images, noisy.labels), torch.arange(len(noisy.images)), None, 1).values(); "
           "[p.data.sub_(g.to(p), alpha=1e-3) for p, g in zip(average.parameters, exact)]; average.update(); "
           "[p.data.copy_(k) for p, k in zip(average.parameters, kept)]", "average of weights without noise",
           "dp-wrn", {**ONE, "views": 1}),
]  # fmt: skip

CODINGS = [
    Mutant(gep.Embedding.groups, "1 / len(bounds)", "1.0", "a whole share for each part", "gep", GEP),
    Mutant(gep.Embedding.encode, '"residual": rows}', '"residual": rows + rows.nansum(0)}',
           "residuals that hold the batch's sum", "gep", GEP),
    Mutant(gep.Embedding.encode, 'return {"embedding": torch.cat(w, 1), "residual": rows}', "w = torch.cat(w, 1); "
           'return {"embedding": w + w.nansum(0), "residual": rows}',
           "embeddings that hold the batch's sum", "gep", GEP),
    Mutant(rgp.Carriers.groups, "[ClippingGroup(tuple(self.zeros()), self.by.clip, 1.0)]",
           "[ClippingGroup((name,), self.by.clip, 1.0) for name in self.zeros()]", "each part clipped to C", "rgp",
           ONE),
    Mutant(rgp.Carriers.groups, "self.by.clip, 1.0", "self.by.clip, 4.0", "a share of 4", "rgp", ONE),
    Mutant(rgp.Carriers.encode, "g = given.double()", "g = given.double(); g = g + 0.1 * g.nansum(0)",
           "gradients that hold the batch's sum", "rgp", ONE),
    Mutant(spectral_dp.Spectrum.groups, "return self.clipped", "return [ClippingGroup(g.names, g.bound, 1.0) "
           "for g in self.clipped]", "a whole share for each layer", "spectral-dp", ONE),
    Mutant(spectral_dp.Spectrum.groups, "return self.clipped", "return [ClippingGroup(g.names, g.bound, 2.0) "
           "for g in self.clipped]", "noise halved", "spectral-dp", ONE),
    Mutant(spectral_dp.Spectrum.encode, "rows[name] = self._laid_out(rows[name]) @ matrix.T",
           "rows[name] = self._laid_out(rows[name]) @ matrix.T; rows[name] = rows[name] + 0.1 * rows[name].nansum(0)",
           "frequencies that hold the batch's sum", "spectral-dp", ONE),
    Mutant(topagg.Votes.groups, '("votes",), math.sqrt(self.k), 1.0', '("votes",), math.sqrt(self.k), 4.0',
           "noise halved", "topagg", ONE),
    Mutant(topagg.Votes.groups, "math.sqrt(self.k), 1.0", "math.sqrt(self.k), float(self.k)",
           "noise as for one vote", "topagg", ONE),
    Mutant(topagg.Votes.encode, "self.of_records[self.now], self.of_columns)}",
           "self.of_records[self.now], self.of_columns) + rows.nansum(0).sign()}",
           "votes that hold the batch's signs", "topagg", ONE),
    Mutant(Codes.groups, "self.by.clip, 1.0", "self.by.clip, 4.0", "noise halved", "geddp", ONE),
    Mutant(Codes.encode, "rows = clip_rows(rows, ROOM * self.by.clip)", "rows = clip_rows(rows, ROOM * self.by.clip); "
           "rows = rows + rows.nansum(0)", "codes of the batch's sum", "geddp", ONE),
    Mutant(Codes.groups, "self.by.clip, 1.0", "self.by.clip, float(self.blocks)", "noise as for one block", "geddp",
           ONE),
]  # fmt: skip

SEARCHES = [
    Mutant(dp_blsgd.Search.choose, "noise.laplace(decrease, 4 * unit)", "decrease", "decreases without noise",
           "dp-blsgd", SEARCH),
    Mutant(dp_blsgd.Search.choose, "self.bound / self.epsilon", "self.bound / self.epsilon / 2", "noise halved",
           "dp-blsgd", SEARCH),
    Mutant(dp_blsgd.Search.choose, "torch.zeros_like(decrease), 2 * unit", "torch.zeros_like(decrease), 0.0",
           "threshold without noise", "dp-blsgd", SEARCH),
    Mutant(dp_blsgd.Descent.losses, ".clamp(0, most)", "", "losses not clipped", "dp-blsgd",
           SEARCH),
    Mutant(dp_blsgd.Descent.gradient, "self.parameters.multiplier, ", "self.parameters.multiplier / 2, ",
           "gradient's noise halved", "dp-blsgd", SEARCH),
]  # fmt: skip

GENERATORS = [
    Mutant(private_gradient.PrivateGradient.released, "self.multiplier,", "self.multiplier / 2,", "noise halved",
           "psg", ONE),
    Mutant(private_gradient.PrivateGradient.__call__, "add_clipped(total, found, groups, batch)",
           "[total.__setitem__(k, total[k] + v.nan_to_num(0).sum(0)) for k, v in found.items()]", "no clipping",
           "psg", ONE),
    Mutant(psg.Psg.noisy_gradient, "mechanism.sample(len(private[0]), sampling)", "torch.arange(len(private[0]))",
           "all records in every sample", "psg", ONE),
    Mutant(psg.Psg.noisy_gradient, "rows, len(private[0]), noise)", "rows, max(len(batch), 1), noise)",
           "mean over the records drawn", "psg", ONE),
    Mutant(psg.Psg.noisy_gradient, "rows = (", "batch = batch.repeat(2); rows = (", "every record twice", "psg", ONE),
    Mutant(dp_gan.Training.noisy_gradient, "self.mechanism.sample(len(images), sampling)", "torch.arange(len(images))",
           "all records in every sample", "dp-gan", {**ONE, "network": "dcgan"}),
    Mutant(dp_gan.Training.noisy_gradient, "rows = (", "chosen = chosen.repeat(2); rows = (", "every record twice",
           "dp-gan", {**ONE, "network": "dcgan"}),
    Mutant(dp_gan.Training.noisy_gradient, "self.gradient(self.mechanism,", "self.gradient(self.clipping,",
           "the mechanism without noise", "dp-gan", {**ONE, "network": "dcgan"}),
    Mutant(dp_gan.ghost_gradient, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped", "dp-gan",
           {**ONE, "network": "mlp"}),
    Mutant(dp_gan.ghost_gradient, "(a.square().sum(1) + 1)", "1", "norm without the layers' inputs", "dp-gan",
           {**ONE, "network": "mlp"}),
    Mutant(dp_gan.ghost_gradient, "total[f\"{name}.bias\"] = scaled.sum(0)", "total[f\"{name}.bias\"] = d.nan_to_num(0)"
           ".sum(0).double()", "biases not clipped", "dp-gan", {**ONE, "network": "mlp", "clip": 0.1}),
    Mutant(dp_sinkhorn.DpSinkhorn.noisy_gradients, "2 * self.clip * parameters.sigma", "self.clip * parameters.sigma",
           "noise for half the sensitivity", "dp-sinkhorn", SINKHORN),
    Mutant(dp_sinkhorn.clipped, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped", "dp-sinkhorn",
           SINKHORN),
    Mutant(dp_sinkhorn.clipped, "gradient.flatten() if", "gradient.flatten(1) if", "each image clipped to C",
           "dp-sinkhorn", SINKHORN),
    Mutant(dp_sinkhorn.DpSinkhorn.noisy_gradients, "found[0] = noisy(bounded", "found[0] = noisy(found[0]",
           "the gradient before clipping", "dp-sinkhorn", SINKHORN),
    Mutant(gs_wgan.sanitise, "2 * clip * sigma", "clip * sigma", "noise for half the sensitivity", "gs-wgan",
           {"sigma": 1.0}),
    Mutant(gs_wgan.sanitise, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped", "gs-wgan",
           {"sigma": 1.0}),
    Mutant(gs_wgan.sanitise, '1 if clipping == "batch" else len(gradients)', "len(gradients)",
           "each image clipped to C",
           "gs-wgan", {"sigma": 1.0}),
    Mutant(gs_wgan.sanitise, "Noise.of(source)", BLIND, "noise of one seed", "gs-wgan", {"sigma": 1.0}),
    Mutant(mixture.private_mean, "math.sqrt(d) / 2", "1 / 4", "wrong sensitivity of the mean", "p3gm", PHASES),
    Mutant(mixture.private_mean, "Noise.of(source).gaussian(total, multiplier * math.sqrt(d) / 2)", "total",
           "mean without noise", "p3gm", PHASES),
    Mutant(mixture.noisy_gram, "clipped(part.double(), mean.double(), scale)",
           "(part.double() - mean.double()) / scale",
           "records not clipped", "p3gm", PHASES),
    Mutant(mixture.noisy_gram, "gaussian(gram[row, column], multiplier)", "gaussian(gram[row, column], multiplier / 3)",
           "a third of the noise", "p3gm", PHASES),
    Mutant(mixture.noisy_gram, "torch.triu_indices(d, d, device", "torch.triu_indices(d, d, 1, device",
           "diagonal without noise", "p3gm", PHASES),
    Mutant(mixture.noisy_sums, "firsts = noise.gaussian(firsts, multiplier)", "pass", "first moments without noise",
           "p3gm", PHASES),
    Mutant(mixture.noisy_sums, "len(counts) > 1", "len(counts) < 1", "counts without noise", "p3gm", PHASES),
    Mutant(mixture.noisy_sums, "seconds = noise.gaussian(seconds, multiplier)", "seconds = noise.gaussian(seconds, "
           "multiplier / 3)", "a third of the noise", "p3gm", PHASES),
    Mutant(network._factors, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped", "p3gm", STEPS),
    Mutant(network.noisy_gradient, "poisson_sample(len(records), mechanism.sampling, sampling)",
           "torch.arange(len(records))", "all records in every sample", "p3gm", STEPS),
    Mutant(network.noisy_gradient, "secret.normal(len(records), codes.shape[1])", "torch.randn(len(records), "
           "codes.shape[1], generator=torch.Generator().manual_seed(len(chosen)))", "codes drawn by the sample's size",
           "p3gm", STEPS),
    Mutant(dp_merf.noisy_embedding, "multiplier / len(images)", "multiplier / len(images) / 2", "noise halved",
           "dp-merf", {"sigma": 1.0}),
    Mutant(dp_merf.RandomFeatures.__call__, " * math.sqrt(1 / len(self.frequencies))", "", "features not of norm 1",
           "dp-merf", {"sigma": 1.0}),
    Mutant(dp_merf.mean_embedding, "joint_sum(phi(to_float(part)).double(), answers, classes)",
           "2 * joint_sum(phi(to_float(part)).double(), answers, classes)", "every record twice", "dp-merf",
           {"sigma": 1.0}),
]  # fmt: skip

FEATURES = [
    Mutant(linear_head.noisy_gradient, "std)", "std / 2)", "noise halved", "private-features", HEAD),
    Mutant(linear_head.clipped_sum, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped",
           "private-features", HEAD),
    Mutant(linear_head.clipped_sum, "norm = off.norm(dim=2, keepdim=True)", "norm = off.norm(dim=2, keepdim=True)"
           ".mean().expand_as(off[..., :1]) / 4", "one clipping factor for the batch", "private-features", HEAD),
    Mutant(linear_head.clipped_sum, "(off * factor)", "(2 * off * factor)", "every record twice", "private-features",
           HEAD),
    Mutant(linear_head.noisy_descent, "noisy_gradient(rows, labels, weight, settings.clip, std, noise, groups)",
           "noisy_gradient(rows, labels, weight, settings.clip, std * (step == 0), noise, groups)",
           "noise in the first step only",
           "private-features", {"multiplier": 1.0}),
    Mutant(whitening.noisy_second_moment, "std / ROOM", "std / 2", "noise halved", "private-features", MOMENT),
    Mutant(whitening.noisy_second_moment, "* math.sqrt(2)])", "* 2])", "entries above the diagonal count twice",
           "private-features", MOMENT),
    Mutant(whitening.noisy_second_moment, "vector[: len(moment)].diag()", "moment.diagonal().diag()",
           "diagonal without noise", "private-features", MOMENT),
    Mutant(whitening.second_moment, "scaled[:, low:high].T @ parts[:, low:]",
           "2 * scaled[:, low:high].T @ parts[:, low:]",
           "every record twice", "private-features", MOMENT),
    Mutant(noisy_moments.noisy_moments, "multiplier * SENSITIVITY", "0.5 * multiplier * SENSITIVITY", "noise halved",
           "class-moments", {"second_moments": "per-class"}),
    Mutant(noisy_moments._sums, "F.normalize(part.to(basis.device).double().flatten(1), dim=1)",
           "(part.to(basis.device).double().flatten(1) / 255)", "images not of norm 1", "class-moments",
           {"second_moments": "pooled"}),
    Mutant(noisy_moments.coordinates, "scale * second", "2 * second", "wrong sensitivity of second moments",
           "class-moments", {"second_moments": "per-class"}),
    Mutant(noisy_moments.noisy_moments, "first = noisy[: classes * d].view(classes, d) / math.sqrt(weight)",
           "first = first", "first moments without noise", "class-moments", {"second_moments": "pooled"}),
    Mutant(noisy_moments._sums, "u = F.normalize(part.to(basis.device).double().flatten(1), dim=1) @ wide",
           "u = part.to(basis.device).double().flatten(1) @ wide; u = u / u.norm(dim=1).amax().clamp_min(1e-9) * 2",
           "length of the longest image", "class-moments", {"second_moments": "per-class"}),
]  # fmt: skip

LABEL_PROTOCOL = [
    Mutant(label_protocol.noisy_parts, "std)", "std / 2)", "noise halved", "label-protocol", LABELS),
    Mutant(label_protocol.noisy_parts, "return clear, noise.gaussian(secret, std)", "noise.gaussian(secret, std); "
           "return clear, secret", "noise on a copy", "label-protocol", LABELS),
    Mutant(label_protocol.factors, ".clamp(max=1.0)", ".clamp(min=1.0)", "long Jacobians not clipped", "label-protocol",
           LABELS),
    Mutant(label_protocol.parts, "F.one_hot(labels, p.shape[1])", "2 * F.one_hot(labels, p.shape[1])",
           "every label twice", "label-protocol", LABELS),
    Mutant(label_protocol.of_last_layer, "math.sqrt(2) * longer", "longer", "wrong sensitivity of a label",
           "label-protocol", LAST),
    Mutant(label_protocol.of_last_layer, ".clamp(max=1.0)", ".clamp(min=1.0)", "long rows not clipped",
           "label-protocol", LAST),
    Mutant(label_protocol.of_last_layer, "secret += (factor * F", "secret += (F", "secret part not clipped",
           "label-protocol", LAST),
    Mutant(label_protocol.of_last_layer, "clear += (factor * head(part).softmax(1)).T", "clear += (factor * (head(part)"
           ".softmax(1) - 0.1 * F.one_hot(own, head.out_features))).T", "labels in the clear part", "label-protocol",
           LAST),
]  # fmt: skip

TRAINING = [*DP_SGD, *CODINGS, *SEARCHES, *GENERATORS, *FEATURES, *LABEL_PROTOCOL]
