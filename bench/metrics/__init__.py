"""Metrics: functions over tensors and arrays, and the table that explains their numbers (`table`).

| module          | numbers                                                                                |
|-----------------|----------------------------------------------------------------------------------------|
| `proportions`   | accuracy, Clopper-Pearson interval                                                     |
| `inception`     | inception score                                                                        |
| `inversion`     | attack accuracy, distance of reconstructions to the nearest private image              |
| `pairs`         | SSIM and PSNR                                                                          |
| `distribution`  | Fréchet distance, precision, recall, density, coverage                                 |
| `identity`      | person on a reconstructed face, by `face_descriptor`                                   |
| `retrieval`     | gain of an attack over retrieval among the attacker's own images                       |
| `power`         | whether an attack is strong enough for a claim about a defence (thresholds: `levels`)  |
| `membership`    | AUC, rates at a threshold, an indicative epsilon                                       |
| `image_metrics` | plug-in metrics of reconstructed images                                                |

No module here trains a model; only `face_descriptor` loads one. A metric that cannot be computed raises ValueError with
the reason.
"""
