"""Faults in the code of clipped gradients and noisy statistics of private records."""

from __future__ import annotations

from functools import partial
from typing import Any

from mutation import Mutant

from baselines import dp_blsgd, dp_kernel, dp_ntk, gep, label_protocol, rgp, spectral_dp, topagg
from baselines.dp_feta import central_images
from baselines.dp_gan import dp_gan
from baselines.dp_sinkhorn import dp_sinkhorn
from baselines.geddp import Codes
from baselines.gs_wgan import gs_wgan
from baselines.p3gm import mixture, network
from baselines.psg import psg
from baselines.sim_pe import voting
from bench.distillation.class_moments import noisy_moments
from bench.dp_training import (
    clipped_sums,
    clipping,
    dp_sgd,
    linear_head,
    mean_embedding,
    private_diffusion,
    private_gradient,
    whitening,
)

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
CENTRAL: Options = {"central_noise": 1.0, "central_records": 20, "multiplier": 50.0, "batch": 20}
SINKHORN: Options = {"sigma": 0.5, "batch": 20}
LABELS: Options = {"epochs": 1, "batch": 20, "network": "student"}
LAST: Options = {"epochs": 1, "batch": 20, "network": "scatter-linear"}
BLIND = "Noise('cpu', 0)"

sgd = partial(Mutant, plug_in="dp-sgd", options=ONE)
sgd_wide = partial(Mutant, plug_in="dp-sgd", options={**ONE, "clip": 10.0})
modes = partial(Mutant, plug_in="gm-dp", options=ONE)
student = partial(Mutant, plug_in="dp-sgd", options={"batch": 40, "network": "student"})
wrn = partial(Mutant, plug_in="dp-wrn", options={**ONE, "views": 8})
wrn_plain = partial(Mutant, plug_in="dp-wrn", options={**ONE, "views": 1})
embedding = partial(Mutant, plug_in="gep", options=GEP)
carriers = partial(Mutant, plug_in="rgp", options=ONE)
spectral = partial(Mutant, plug_in="spectral-dp", options=ONE)
top_votes = partial(Mutant, plug_in="topagg", options=ONE)
codes = partial(Mutant, plug_in="geddp", options=ONE)
search = partial(Mutant, plug_in="dp-blsgd", options=SEARCH)
synthetic = partial(Mutant, plug_in="psg", options=ONE)
dcgan = partial(Mutant, plug_in="dp-gan", options={**ONE, "network": "dcgan"})
mlp = partial(Mutant, plug_in="dp-gan", options={**ONE, "network": "mlp"})
mlp_clipped = partial(Mutant, plug_in="dp-gan", options={**ONE, "network": "mlp", "clip": 0.1})
sinkhorn = partial(Mutant, plug_in="dp-sinkhorn", options=SINKHORN)
critics = partial(Mutant, plug_in="gs-wgan", options={"sigma": 1.0})
phases = partial(Mutant, plug_in="p3gm", options=PHASES)
steps = partial(Mutant, plug_in="p3gm", options=STEPS)
denoising = partial(Mutant, plug_in="dpdm", options={"multiplier": 1.0, "batch": 40, "steps": 4})
central = partial(Mutant, plug_in="dp-feta", options=CENTRAL)
features = partial(Mutant, plug_in="dp-merf", options={"sigma": 1.0})
tangents = partial(Mutant, plug_in="dp-ntk", options={"sigma": 1.0})
mixed = partial(Mutant, plug_in="dp-kernel", options={"sigma": 1.0})
evolution = partial(Mutant, plug_in="sim-pe", options={"sigma": 1.0})
head = partial(Mutant, plug_in="private-features", options=HEAD)
head_steps = partial(Mutant, plug_in="private-features", options={"multiplier": 1.0})
moment = partial(Mutant, plug_in="private-features", options=MOMENT)
per_class = partial(Mutant, plug_in="class-moments", options={"second_moments": "per-class"})
pooled = partial(Mutant, plug_in="class-moments", options={"second_moments": "pooled"})
labels = partial(Mutant, plug_in="label-protocol", options=LABELS)
last = partial(Mutant, plug_in="label-protocol", options=LAST)

DP_SGD = [
    sgd(clipping.add_noise, "z * group.bound", "0.5 * z * group.bound", "noise halved"),
    sgd(clipping.add_noise, "z * group.bound", "0.7 * z * group.bound", "noise times 0.7"),
    sgd_wide(clipping.add_noise, "z * group.bound", "z", "noise without the clipping norm"),
    modes(clipping.add_noise, "math.sqrt(group.share)", "1", "noise without the group's share"),
    sgd(clipping.add_noise, "total[name] = part.view_as(total[name])",
        "total[name] = (part if name == group.names[0] else total[name]).view_as(total[name])",
        "noise on the first tensor only"),
    sgd(clipping.add_clipped, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped"),
    sgd(clipping.add_clipped, "broken = ~norms",
        "norms = norms.nanmean().expand_as(norms); factor = (ROOM * group.bound / norms).clamp(max=1.0); broken "
        "= ~norms", "one clipping factor for the batch"),
    sgd(clipping.add_clipped, "for row in rows for piece", "for row in rows[:1] for piece",
        "norm of the first tensor only"),
    sgd(clipping.add_clipped, "_sum(factor, clean, together)", "2 * _sum(factor, clean, together)",
        "every record twice"),
    sgd(clipping.poisson_sample, "Noise.of(source).sample(records, probability)", "torch.arange(records)",
        "all records in every sample"),
    sgd(clipping.noisy_mean, "multiplier, source)", f"multiplier, {BLIND})", "noise of one seed"),
    sgd(dp_sgd.NoisyGradients.noisy_mean, "q * self.units, self.noise", "max(len(chosen), 1), self.noise",
        "mean over the records drawn"),
    sgd(dp_sgd.NoisyGradients.noisy_mean, "self.coding.groups(), z, q",
        "self.coding.groups(), z * min(len(chosen), 1), q", "no noise for an empty sample"),
    student(dp_sgd.train_without_dropout, "layer.train(any(True for _ in layer.parameters()))", "layer.train()",
        "dropout by a record's place"),
    wrn(clipped_sums.ClippedSums.__call__, "self.gradients(seen, labels[part])",
        "self.gradients(seen, labels[part].repeat_interleave(self.views))", "each view of a record clipped"),
    wrn_plain(dp_sgd.train, "average.update()",
        "kept = [p.detach().clone() for p in average.parameters]; exact = noisy.sums((noisy.images, "
        "noisy.labels), torch.arange(len(noisy.images)), None, 1).values(); [p.data.sub_(g.to(p), alpha=1e-3) "
        "for p, g in zip(average.parameters, exact)]; average.update(); [p.data.copy_(k) for p, k in "
        "zip(average.parameters, kept)]", "average of weights without noise"),
]  # fmt: skip

CODINGS = [
    embedding(gep.Embedding.groups, "1 / len(bounds)", "1.0", "a whole share for each part"),
    embedding(gep.Embedding.encode, '"residual": rows}', '"residual": rows + rows.nansum(0)}',
        "residuals that hold the batch's sum"),
    embedding(gep.Embedding.encode, 'return {"embedding": torch.cat(w, 1), "residual": rows}',
        'w = torch.cat(w, 1); return {"embedding": w + w.nansum(0), "residual": rows}',
        "embeddings that hold the batch's sum"),
    carriers(rgp.Carriers.groups, "[ClippingGroup(tuple(self.zeros()), self.by.clip, 1.0)]",
        "[ClippingGroup((name,), self.by.clip, 1.0) for name in self.zeros()]", "each part clipped to C"),
    carriers(rgp.Carriers.groups, "self.by.clip, 1.0", "self.by.clip, 4.0", "a share of 4"),
    carriers(rgp.Carriers.encode, "g = given.double()", "g = given.double(); g = g + 0.1 * g.nansum(0)",
        "gradients that hold the batch's sum"),
    spectral(spectral_dp.Spectrum.groups, "return self.clipped",
        "return [ClippingGroup(g.names, g.bound, 1.0) for g in self.clipped]", "a whole share for each layer"),
    spectral(spectral_dp.Spectrum.groups, "return self.clipped",
        "return [ClippingGroup(g.names, g.bound, 2.0) for g in self.clipped]", "noise halved"),
    spectral(spectral_dp.Spectrum.encode, "rows[name] = self._laid_out(rows[name]) @ matrix.T",
        "rows[name] = self._laid_out(rows[name]) @ matrix.T; rows[name] = rows[name] + 0.1 * rows[name].nansum(0)",
        "frequencies that hold the batch's sum"),
    top_votes(topagg.Votes.groups, '("votes",), math.sqrt(self.k), 1.0', '("votes",), math.sqrt(self.k), 4.0',
        "noise halved"),
    top_votes(topagg.Votes.groups, "math.sqrt(self.k), 1.0", "math.sqrt(self.k), float(self.k)",
        "noise as for one vote"),
    top_votes(topagg.Votes.encode, "self.of_records[self.now], self.of_columns)}",
        "self.of_records[self.now], self.of_columns) + rows.nansum(0).sign()}", "votes that hold the batch's signs"),
    codes(Codes.groups, "self.by.clip, 1.0", "self.by.clip, 4.0", "noise halved"),
    codes(Codes.encode, "rows = clip_rows(rows, ROOM * self.by.clip)",
        "rows = clip_rows(rows, ROOM * self.by.clip); rows = rows + rows.nansum(0)", "codes of the batch's sum"),
    codes(Codes.groups, "self.by.clip, 1.0", "self.by.clip, float(self.blocks)", "noise as for one block"),
]  # fmt: skip

SEARCHES = [
    search(dp_blsgd.Search.choose, "noise.laplace(decrease, 4 * unit)", "decrease", "decreases without noise"),
    search(dp_blsgd.Search.choose, "self.bound / self.epsilon", "self.bound / self.epsilon / 2", "noise halved"),
    search(dp_blsgd.Search.choose, "torch.zeros_like(decrease), 2 * unit", "torch.zeros_like(decrease), 0.0",
        "threshold without noise"),
    search(dp_blsgd.Descent.losses, ".clamp(0, most)", "", "losses not clipped"),
    search(dp_blsgd.Descent.gradient, "self.parameters.multiplier, ", "self.parameters.multiplier / 2, ",
        "gradient's noise halved"),
]  # fmt: skip

GENERATORS = [
    synthetic(private_gradient.PrivateGradient.released, "self.multiplier,", "self.multiplier / 2,", "noise halved"),
    synthetic(private_gradient.PrivateGradient.__call__, "add_clipped(total, found, groups, batch)",
        "[total.__setitem__(k, total[k] + v.nan_to_num(0).sum(0)) for k, v in found.items()]", "no clipping"),
    synthetic(psg.Psg.noisy_gradient, "mechanism.sample(len(private[0]), sampling)", "torch.arange(len(private[0]))",
        "all records in every sample"),
    synthetic(psg.Psg.noisy_gradient, "rows, len(private[0]), noise)", "rows, max(len(batch), 1), noise)",
        "mean over the records drawn"),
    synthetic(psg.Psg.noisy_gradient, "rows = (", "batch = batch.repeat(2); rows = (", "every record twice"),
    dcgan(dp_gan.Training.noisy_gradient, "self.mechanism.sample(len(images), sampling)", "torch.arange(len(images))",
        "all records in every sample"),
    dcgan(dp_gan.Training.noisy_gradient, "rows = (", "chosen = chosen.repeat(2); rows = (", "every record twice"),
    dcgan(dp_gan.Training.noisy_gradient, "self.gradient(self.mechanism,", "self.gradient(self.clipping,",
        "the mechanism without noise"),
    mlp(dp_gan.ghost_gradient, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped"),
    mlp(dp_gan.ghost_gradient, "(a.square().sum(1) + 1)", "1", "norm without the layers' inputs"),
    mlp_clipped(dp_gan.ghost_gradient, 'total[f"{name}.bias"] = scaled.sum(0)',
        'total[f"{name}.bias"] = d.nan_to_num(0).sum(0).double()', "biases not clipped"),
    sinkhorn(dp_sinkhorn.DpSinkhorn.noisy_gradients, "2 * self.clip * parameters.sigma", "self.clip * parameters.sigma",
        "noise for half the sensitivity"),
    sinkhorn(dp_sinkhorn.clipped, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped"),
    sinkhorn(dp_sinkhorn.clipped, "gradient.flatten() if", "gradient.flatten(1) if", "each image clipped to C"),
    sinkhorn(dp_sinkhorn.DpSinkhorn.noisy_gradients, "found[0] = noisy(bounded", "found[0] = noisy(found[0]",
        "the gradient before clipping"),
    critics(gs_wgan.sanitise, "2 * clip * sigma", "clip * sigma", "noise for half the sensitivity"),
    critics(gs_wgan.sanitise, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped"),
    critics(gs_wgan.sanitise, '1 if clipping == "batch" else len(gradients)', "len(gradients)",
        "each image clipped to C"),
    critics(gs_wgan.sanitise, "Noise.of(source)", BLIND, "noise of one seed"),
    phases(mixture.private_mean, "math.sqrt(d) / 2", "1 / 4", "wrong sensitivity of the mean"),
    phases(mixture.private_mean, "Noise.of(source).gaussian(total, multiplier * math.sqrt(d) / 2)", "total",
        "mean without noise"),
    phases(mixture.noisy_gram, "clipped(part.double(), mean.double(), scale)",
        "(part.double() - mean.double()) / scale", "records not clipped"),
    phases(mixture.noisy_gram, "gaussian(gram[row, column], multiplier)", "gaussian(gram[row, column], multiplier / 3)",
        "a third of the noise"),
    phases(mixture.noisy_gram, "torch.triu_indices(d, d, device", "torch.triu_indices(d, d, 1, device",
        "diagonal without noise"),
    phases(mixture.noisy_sums, "firsts = noise.gaussian(firsts, multiplier)", "pass", "first moments without noise"),
    phases(mixture.noisy_sums, "len(counts) > 1", "len(counts) < 1", "counts without noise"),
    phases(mixture.noisy_sums, "seconds = noise.gaussian(seconds, multiplier)",
        "seconds = noise.gaussian(seconds, multiplier / 3)", "a third of the noise"),
    steps(network._factors, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped"),
    steps(network.noisy_gradient, "poisson_sample(len(records), mechanism.sampling, sampling)",
        "torch.arange(len(records))", "all records in every sample"),
    steps(network.noisy_gradient, "secret.normal(len(records), codes.shape[1])",
        "torch.randn(len(records), codes.shape[1], generator=torch.Generator().manual_seed(len(chosen)))",
        "codes drawn by the sample's size"),
    features(mean_embedding.noisy_embedding, "multiplier / len(images)", "multiplier / len(images) / 2",
        "noise halved"),
    features(mean_embedding.RandomFeatures.__call__, " * math.sqrt(1 / len(self.frequencies))", "",
        "features not of norm 1"),
    features(mean_embedding.mean_embedding, "phi.sums(", "2 * phi.sums(", "every record twice"),
    tangents(mean_embedding.noisy_embedding, "multiplier / len(images)", "multiplier / len(images) / 2",
        "noise halved"),
    tangents(dp_ntk.TangentFeatures.layers, "[w * b for b in slopes]", "slopes", "gradients not normalised"),
    tangents(dp_ntk.TangentFeatures.layers, "for h, b in zip(inputs, slopes, strict=True)]",
        "for h, b in zip(inputs[-1:], slopes[-1:], strict=True)]", "norm of the last layer only"),
    mixed(mean_embedding.noisy_embedding, "multiplier / len(images)", "multiplier / len(images) / 2", "noise halved"),
    mixed(dp_kernel.MixedFeatures.sums, " / math.sqrt(len(self.kernels))", "", "features of norm sqrt(5)"),
    evolution(voting.noisy_votes, '"gaussian", sigma', '"gaussian", sigma / 2', "noise halved"),
    evolution(voting.noisy_votes, ', source)', ", torch.Generator().manual_seed(0))", "noise of one seed"),
    evolution(voting.votes, "torch.bincount(chosen, minlength=each)", "2 * torch.bincount(chosen, minlength=each)",
        "every record twice"),
    evolution(voting.votes, "torch.bincount(chosen, minlength=each)",
        "torch.bincount(chosen, minlength=each) + len(chosen)", "a vote for every candidate"),
    denoising(private_diffusion.DenoiserTraining.noisy_gradient, "mechanism.sample(len(images), sampling)",
        "torch.arange(len(images))", "all records in every sample"),
    denoising(private_diffusion.DenoiserTraining.noisy_gradient, "rows = (",
        "chosen = chosen.repeat_interleave(self.by.copies); rows = (", "each copy of a record clipped"),
    denoising(private_diffusion.DenoiserTraining.noisy_gradient, "rows, len(images), noise)",
        "rows, max(len(chosen), 1), noise)", "mean over the records drawn"),
    denoising(private_diffusion.DenoiserTraining.noisy_gradient, "keys[chosen]", "keys[: len(chosen)]",
        "copies by a record's place in the sample"),
    central(central_images.central_round, "gaussian_rows(sums, multiplier * bound, noise) / expected",
        "gaussian_rows(sums / torch.bincount(labels[chosen], minlength=classes).clamp_min(1)[:, None], multiplier * "
        "bound / expected, noise)", "means over the records drawn, noise for the expected ones"),
    central(central_images.central_round, "multiplier * bound", "multiplier * bound / 2", "noise halved"),
    central(central_images.central_round, "clip or largest_norm(small.shape[1])", "clip or 1.0",
        "noise for one pixel"),
    central(central_images.central_round, "poisson_sample(len(images), sampling, samples)",
        "torch.arange(len(images))", "all records in every sample"),
]  # fmt: skip

FEATURES = [
    head(linear_head.noisy_gradient, "std)", "std / 2)", "noise halved"),
    head(linear_head.clipped_sum, ".clamp(max=1.0)", ".clamp(min=1.0)", "long gradients not clipped"),
    head(linear_head.clipped_sum, "norm = off.norm(dim=2, keepdim=True)",
        "norm = off.norm(dim=2, keepdim=True).mean().expand_as(off[..., :1]) / 4", "one clipping factor for the batch"),
    head(linear_head.clipped_sum, "(off * factor)", "(2 * off * factor)", "every record twice"),
    head_steps(linear_head.noisy_descent, "noisy_gradient(rows, labels, weight, settings.clip, std, noise, groups)",
        "noisy_gradient(rows, labels, weight, settings.clip, std * (step == 0), noise, groups)",
        "noise in the first step only"),
    moment(whitening.noisy_second_moment, "std / ROOM", "std / 2", "noise halved"),
    moment(whitening.noisy_second_moment, "* math.sqrt(2)])", "* 2])", "entries above the diagonal count twice"),
    moment(whitening.noisy_second_moment, "vector[: len(moment)].diag()", "moment.diagonal().diag()",
        "diagonal without noise"),
    moment(whitening.second_moment, "scaled[:, low:high].T @ parts[:, low:]",
        "2 * scaled[:, low:high].T @ parts[:, low:]", "every record twice"),
    per_class(noisy_moments.noisy_moments, "multiplier * SENSITIVITY", "0.5 * multiplier * SENSITIVITY",
        "noise halved"),
    pooled(noisy_moments._sums, "F.normalize(part.to(basis.device).double().flatten(1), dim=1)",
        "(part.to(basis.device).double().flatten(1) / 255)", "images not of norm 1"),
    per_class(noisy_moments.coordinates, "scale * second", "2 * second", "wrong sensitivity of second moments"),
    pooled(noisy_moments.noisy_moments, "first = noisy[: classes * d].view(classes, d) / math.sqrt(weight)",
        "first = first", "first moments without noise"),
    per_class(noisy_moments._sums, "u = F.normalize(part.to(basis.device).double().flatten(1), dim=1) @ wide",
        "u = part.to(basis.device).double().flatten(1) @ wide; u = u / u.norm(dim=1).amax().clamp_min(1e-9) * 2",
        "length of the longest image"),
]  # fmt: skip

LABEL_PROTOCOL = [
    labels(label_protocol.noisy_parts, "std)", "std / 2)", "noise halved"),
    labels(label_protocol.noisy_parts, "return clear, noise.gaussian(secret, std)",
        "noise.gaussian(secret, std); return clear, secret", "noise on a copy"),
    labels(label_protocol.factors, ".clamp(max=1.0)", ".clamp(min=1.0)", "long Jacobians not clipped"),
    labels(label_protocol.parts, "F.one_hot(labels, p.shape[1])", "2 * F.one_hot(labels, p.shape[1])",
        "every label twice"),
    last(label_protocol.of_last_layer, "math.sqrt(2) * longer", "longer", "wrong sensitivity of a label"),
    last(label_protocol.of_last_layer, ".clamp(max=1.0)", ".clamp(min=1.0)", "long rows not clipped"),
    last(label_protocol.of_last_layer, "secret += (factor * F", "secret += (F", "secret part not clipped"),
    last(label_protocol.of_last_layer, "clear += (factor * head(part).softmax(1)).T",
        "clear += (factor * (head(part).softmax(1) - 0.1 * F.one_hot(own, head.out_features))).T",
        "labels in the clear part"),
]  # fmt: skip

TRAINING = [*DP_SGD, *CODINGS, *SEARCHES, *GENERATORS, *FEATURES, *LABEL_PROTOCOL]
