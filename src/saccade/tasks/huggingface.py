"""Hugging Face models: opened by folder or name for training, and rebuilt from a spec."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.spec import InputSpec
from ..plugins.pretrained import import_transformers
from ..settings import ConfigError, ModelConfig

# Configuration entries that open files or networks, or are specific to a machine.
DROPPED = (
    "_name_or_path", "auto_map", "quantization_config", "torch_dtype", "dtype", "architectures", "transformers_version",
    "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "use_pretrained_backbone",
    "backbone", "saccade_plugins",
)  # fmt: skip


def refuse_checkpoint(config: ModelConfig) -> None:
    """Refuse checkpoints, since Hugging Face models start from their own weights."""
    if config.checkpoint is not None:
        raise ConfigError(
            "model.checkpoint was given, but a Hugging Face model starts from the weights in its own folder; remove it"
        )


def describe_host(name: str, outputs: tuple[str, ...], *, kind: str) -> dict[str, Any]:
    """Return type and configuration of a model, as JSON values to rebuild it from.

    Args:
        name: a folder with `config.json`, or a name on Hugging Face.
        kind: transformers auto class, such as "SEQUENCE_CLASSIFICATION".
    """
    transformers = import_transformers()
    with explained(name), quietly():
        config = transformers.AutoConfig.from_pretrained(name, **safe(name))
    if config.model_type not in known_kinds(kind):
        allowed = f"; choose from {', '.join(sorted(known_kinds(kind)))}" if len(known_kinds(kind)) < 9 else ""
        raise ConfigError(
            f"{name} has the model type {config.model_type!r}, for which transformers has no suitable class{allowed}"
        )
    settings = {key: value for key, value in config.to_dict().items() if key not in DROPPED}
    settings["id2label"] = {str(n): output for n, output in enumerate(outputs)}
    settings["label2id"] = {output: n for n, output in enumerate(outputs)}
    return {"model_type": config.model_type, "config": json.loads(json.dumps(settings))}


def build_host(spec: InputSpec, *, kind: str, weights: str | None, whole: bool = False) -> nn.Module:
    """Build a model, with a new head if its weights have none for the classes.

    Args:
        spec: spec with the result of `describe_host`.
        kind: transformers auto class.
        weights: folder or name of initial weights; None: random.
        whole: refuse weights without a head for the classes.
    """
    transformers = import_transformers()
    config = read_config(spec, kind=kind)
    made = getattr(transformers, f"AutoModelFor{kind.title().replace('_', '')}")  # AutoModelForObjectDetection, ...
    added = spec.extra["host"].get("added_tokens", 0)  # for which the weights have no embeddings
    with quietly():
        if weights is None:
            with explained(config.model_type):
                model = made.from_config(config)
            model.added_tokens = added
            return model
        _refuse_pickles(Path(weights).expanduser())
        if added:
            config.get_text_config().vocab_size -= added
        with explained(weights):
            model, info = made.from_pretrained(
                weights,
                config=config,
                use_safetensors=True,
                **safe(weights),
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **{"dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype": torch.float32},
            )
    new = () if whole else ("classifier", "score", "head", "pre_classifier", *CLASSES.get(kind, ()))
    fresh = [key for key in info["missing_keys"] if not key.startswith(new)]
    body = [key for key in fresh if "pooler" not in key]
    if body:
        raise ConfigError(
            f"{weights} lacks {len(body)} weights of a {config.model_type} ({', '.join(sorted(body)[:3])}); give the "
            "folder of a complete model, or start from random weights with --task text:scratch=true"
        )
    if len(fresh) > len(body):
        spec.notes.append(f"{weights} has no trained pooler; the pooler is initialized randomly")
    if added:
        with quietly():
            model.resize_token_embeddings(config.get_text_config().vocab_size + added, mean_resizing=False)
    model.added_tokens = added
    return model.float()


def words_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a model's configuration that is about words; models of images too nest it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


CLASSES = {
    "OBJECT_DETECTION": (
        "class_embed", "model.decoder.class_embed", "model.enc_score_head", "model.denoising_class_embed"
    ),
    "UNIVERSAL_SEGMENTATION": ("class_predictor", "criterion"),
}  # fmt: skip
# Supported outputs: of VQA models only ViLT's (others generate text); detectors with independent class scores;
# segmenters with a class for each query.
READ = {
    "VISUAL_QUESTION_ANSWERING": {"vilt"},
    "OBJECT_DETECTION": {"rt_detr", "rt_detr_v2", "d_fine", "rf_detr", "lw_detr", "deformable_detr"},
    "UNIVERSAL_SEGMENTATION": {"mask2former", "maskformer"},
}


def known_kinds(kind: str) -> set[str]:
    """Return the supported model types of a transformers auto class."""
    from transformers.models.auto import modeling_auto

    known = set(getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES"))
    return known & READ.get(kind, known)


def read_config(spec: InputSpec, *, kind: str) -> Any:
    """Return the configuration in a spec, which may be untrusted, or raise ValueError."""
    transformers = import_transformers()
    host = spec.extra.get("host")
    if not isinstance(host, dict) or not isinstance(host.get("config"), dict):
        raise ValueError("its spec does not name the Hugging Face model")
    name = host.get("model_type")
    if not isinstance(name, str) or name not in known_kinds(kind):
        raise ValueError(
            f"its spec names the model type {str(name)[:60]!r}, for which transformers has no suitable class"
        )
    config = {key: value for key, value in host["config"].items() if key not in (*DROPPED, "model_type")}
    labels = config.pop("id2label", {})
    config.pop("label2id", None)
    try:
        found = transformers.AutoConfig.for_model(name, **config)
        found.id2label = {int(key): str(value) for key, value in labels.items()}
        found.label2id = {value: key for key, value in found.id2label.items()}
    except Exception as error:  # configurations raise many types
        raise ValueError(f"its spec's configuration of a {name} cannot be used: {str(error)[:200]}") from None
    if found.num_labels != len(spec.outputs):
        raise ValueError(f"its spec names {len(spec.outputs)} outputs, but its model has {found.num_labels}")
    return found


def safe(name: str) -> dict[str, bool]:
    """Return options that prevent remote code and files outside of the folder."""
    return {"local_files_only": Path(name).expanduser().is_dir(), "trust_remote_code": False}


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"the weights in {folder} are a pickle (.bin), which can run code and is not opened; convert them to "
            "safetensors: open the model with transformers on a machine where you trust it, and call its "
            "save_pretrained"
        )


@contextlib.contextmanager
def explained(name: str, what: str = "model") -> Iterator[None]:
    """Re-raise errors with the folder or name, and advice."""
    try:
        yield
    except Exception as error:  # transformers, safetensors and tokenizers have their own types
        if isinstance(error, ConfigError):
            raise
        detail = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"the {what} of {name!r} cannot be opened ({detail}); give a folder that save_pretrained wrote, with its "
            "tokenizer, or the name of a Hugging Face model that is cached or can be downloaded"
        ) from None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' warnings on new classifiers; notes report what matters."""
    from transformers.utils import logging as own

    level, bars = own.get_verbosity(), own.is_progress_bar_enabled()
    own.set_verbosity(logging.ERROR)
    own.disable_progress_bar()
    try:
        yield
    finally:
        own.set_verbosity(level)
        if bars:
            own.enable_progress_bar()
