"""Public pretrained weights of a timm network: found in a file or in timm's local cache, and loaded into a backbone.

Nothing is downloaded. A file is safetensors or a torch state dict, which is read without running code. Its tensors must
have the names and shapes of the timm network; only those of its classification layer are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

import torch

from bench.errors import BadWeights, NotFound
from bench.nets import Classifier
from bench.nets.backbone import BackboneLinear, BackboneName
from bench.teachers.weight_files import Fit, Weights, checkpoint, differences, first_names, read_file

HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files in a model's folder of the Hugging Face cache, in timm's order."""
COUNTER = "num_batches_tracked"
"""A BatchNorm buffer that old files lack; a network in eval mode does not use it."""


@dataclass(frozen=True)
class PretrainedWeights:
    """Public pretrained weights: their network, their file, and the SHA-256 of its bytes."""

    name: BackboneName
    file: Path
    sha256: str

    @property
    def source(self) -> str:
        """The source as specs state it, such as "timm:resnet18#<SHA-256>"."""
        return f"timm:{self.name.timm}#{self.sha256}"


def find_pretrained(name: BackboneName, file: Path | None) -> Path:
    """Return the user's file of weights, or else the one in timm's local cache.

    Raises:
        BenchError: an unknown network, or no weights of it on this machine.
    """
    name.check()
    if file is not None:
        if not file.is_file():
            raise NotFound(f"--pretrained {file}: no such file; give a .safetensors or a torch state-dict file")
        return file
    found = cached_weights(name)
    if found is None:
        raise NotFound(
            f"--method.features timm:{name.timm}: no pretrained weights of it are in timm's cache, and nothing is "
            "downloaded; give --pretrained FILE, or fill the cache once with a network connection: "
            f"python -c \"import timm; timm.create_model('{name.timm}', pretrained=True)\""
        )
    return found


def cached_weights(name: BackboneName) -> Path | None:
    """Return the weight file that timm has downloaded for this network earlier; None without one."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    config = timm.get_pretrained_cfg(name.timm)
    if config is None:
        return None
    repository = config.hf_hub_id
    places = [try_to_load_from_cache(repository, file) for file in HUB_FILES] if repository else []
    files = [Path(place) for place in places if isinstance(place, str)]
    if config.url:
        files.append(Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(str(config.url)).path).name))
    return next((file for file in files if file.is_file()), None)


def load_pretrained(file: Path, network: Classifier, name: BackboneName) -> None:
    """Load pretrained weights into the backbone of a network that `bench.nets.build` made for `name`, in place.

    Raises:
        BenchError: not a weight file, values that are not finite, or names or shapes that are not the backbone's.
    """
    backbone = cast(BackboneLinear, network.body).backbone
    config = cast("Mapping[str, Any]", backbone.pretrained_cfg)
    state = checkpoint(file, read_file(file, safetensors=file.suffix.lower() == ".safetensors")).weights
    state = without_classifier(state, config.get("classifier") or ())
    state |= {key: value for key, value in backbone.state_dict().items() if key.endswith(COUNTER) and key not in state}
    state = resample_positions(state, backbone)
    fit = Fit(backbone, state, "", (), *differences(backbone, state))
    if fit.complaints:
        raise BadWeights(
            f"--pretrained {file}: {fit.complaints} names or shapes are not those of timm's {name.timm} at {name.size} "
            f"pixels ({fit.describe()}); give its own weights, with timm's names, or name their network"
        )
    broken = [key for key, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise BadWeights(f"--pretrained {file}: NaN or infinite values in {first_names(broken)}; give another file")
    backbone.load_state_dict(state)


def without_classifier(state: Weights, classifiers: str | tuple[str, ...]) -> Weights:
    """Leave out the tensors of the classification layers, which have these names."""
    names = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    prefixes = tuple(f"{name}." for name in names)
    return {key: value for key, value in state.items() if not (prefixes and key.startswith(prefixes))}


def resample_positions(state: Weights, backbone: torch.nn.Module) -> Weights:
    """Resize the position embedding of a vision transformer to the backbone's image size, as timm does."""
    key, own = "pos_embed", getattr(backbone, "pos_embed", None)
    given = state.get(key)
    if not isinstance(own, torch.Tensor) or given is None or given.ndim != 3 or given.shape == own.shape:
        return state
    grid = getattr(getattr(backbone, "patch_embed", None), "grid_size", None)
    prefix = 0 if getattr(backbone, "no_embed_class", False) else getattr(backbone, "num_prefix_tokens", 1)
    side = round(max(given.shape[1] - prefix, 0) ** 0.5)
    if grid is None or own.shape[2] != given.shape[2] or side**2 != given.shape[1] - prefix:
        return state  # the comparison of shapes reports it
    from timm.layers import resample_abs_pos_embed

    return state | {key: resample_abs_pos_embed(given, new_size=list(grid), num_prefix_tokens=prefix)}
