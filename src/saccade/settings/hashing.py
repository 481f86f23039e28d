"""Hashes of settings, by which later versions find the runs and trials of earlier ones."""

import hashlib
import json
from collections.abc import Collection, Mapping

from .schema import TrainConfig, flatten


def _dotted(groups: Mapping[str, str]) -> frozenset[str]:
    return frozenset(f"{group}.{name}".lstrip(".") for group, names in groups.items() for name in names.split())


# The settings that there were when comparisons, and later trials of a search, were first hashed. They are never added
# to: any other setting is hashed only where it differs from its default, so that what was hashed before it is found.
OF_COMPARISONS = _dotted(
    {
        "data": "path val val_share split_seed img_size mean std workers buffer train_limit",
        "model": "name options plugins drop_path pretrained checkpoint probe",
        "augment": "crop pad scale ratio flip rand_ops rand_magnitude rand_spread jitter erase mixup cutmix mix_prob "
        "switch_prob repeats off_epochs",
        "optim": "name lr lr_batch batch_size least_steps accumulate weight_decay momentum betas eps layer_decay clip",
        "schedule": "epochs warmup warmup_lr min_lr patience",
        "loss": "smoothing class_weights",
        "engine": "precision compile graphs channels_last grad_checkpointing parallel",
        "keep": "ema evaluate_every",
    }
)
OF_TRIALS = OF_COMPARISONS | _dotted(
    {
        "": "seed requires_checkpoint task",
        "data": "resident bad_limit columns group folds fold",
        "model": "freeze keep_statistics head",
        "augment": "rand_kind rand_prob rand_interpolation erase_kind full_epochs",
        "optim": "new_scale",
        "schedule": "curve power falls steps warmup_steps head_epochs",
    }
)


def hash_settings(config: TrainConfig, *, first: Collection[str], aside: tuple[str, ...], length: int) -> str:
    """Return a hash of settings.

    Args:
        first: settings that are hashed at their defaults too.
        aside: beginnings of the names of settings that are not hashed.
        length: number of letters.
    """
    defaults = flatten(TrainConfig())
    leaves = {
        name: value
        for name, value in flatten(config).items()
        if not name.startswith(aside) and (name in first or value != defaults[name])
    }
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()[:length]
