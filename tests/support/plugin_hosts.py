"""Tiny hosts that plug-ins are attached to, of every kind, and their inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

from saccade.models import cvt, glnet, nommer, sot, t2t  # noqa: F401 (registers the backbones)

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
DROPLESS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def images(model: nn.Module, batch: int = 2, size: tuple[int, int] = (32, 32)) -> dict[str, Tensor]:
    x = torch.randn(batch, 3, *size, dtype=next(model.parameters()).dtype)
    return {"pixel_values" if hasattr(model, "config") else "x": x}


def words(model: nn.Module, batch: int = 2) -> dict[str, Tensor]:
    mask = torch.ones(batch, 7, dtype=torch.long)
    mask[-1, 5:] = 0
    return {"input_ids": torch.randint(3, 40, (batch, 7)), "attention_mask": mask}


def words_and_images(model: nn.Module, batch: int = 2) -> dict[str, Tensor]:
    return {**words(model, batch), **images(model, batch)}


def sequences(model: nn.Module, batch: int = 2) -> dict[str, Tensor]:
    padding = words(model, batch)["attention_mask"] == 0
    return {"src": torch.randn(batch, 7, 16, dtype=next(model.parameters()).dtype), "src_key_padding_mask": padding}


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    inputs: Callable[..., dict[str, Tensor]] = images


def column(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
    return partial(timm.create_model, name, **{"num_classes": 5, **size, **kwargs})


def own(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    return partial(timm.create_model, name, num_classes=5, **kwargs)


SWIN = {"patch_size": 2, "embed_dim": 8, "depths": (1, 1, 2), "num_heads": (1, 2, 2), "window_size": 4}
PIT = {"patch_size": 8, "stride": 4, "base_dims": [8, 8], "depth": [1, 2], "heads": [2, 4], "mlp_ratio": 2}
CONVNEXT = {"depths": (1, 1, 1, 2), "dims": (8, 8, 16, 16)}
VILT = {"image_size": 32, "patch_size": 8, "vocab_size": 50, "max_position_embeddings": 10}


def hugging_face(kind: str, config: str, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**kwargs))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True), 3)


HOSTS = {
    "vit": Case(column("vit_tiny_patch16_224")),
    "deit_distilled": Case(column("deit_tiny_distilled_patch16_224")),
    "swin": Case(partial(timm.create_model, "swin_tiny_patch4_window7_224", num_classes=5, img_size=32, **SWIN)),
    "pit": Case(partial(timm.create_model, "pit_ti_224", num_classes=5, img_size=32, **PIT)),
    "mixer": Case(partial(MlpMixer, num_classes=5, img_size=32, patch_size=8, embed_dim=24, num_blocks=3)),
    "convnext": Case(partial(timm.create_model, "convnext_atto", num_classes=5, **CONVNEXT)),
    "resnet50": Case(partial(timm.create_model, "resnet50", num_classes=5, layers=(1, 1, 1, 1))),
    "cait": Case(column("cait_xxs24_224")),
    "eva02": Case(column("eva02_tiny_patch14_224", mlp_ratio=2)),
    "vit_features": Case(column("vit_tiny_patch16_224", num_classes=0, features_only=True, out_indices=(0, 2))),
    "swin_features": Case(
        partial(timm.create_model, "swin_tiny_patch4_window7_224", features_only=True, img_size=32, **SWIN)
    ),
    "convnext_features": Case(partial(timm.create_model, "convnext_atto", features_only=True, **CONVNEXT)),
    "nommer": Case(own("nommer_tiny", embed_dim=16, depths=(1, 1, 1, 2))),
    "nommer_features": Case(
        partial(timm.create_model, "nommer_tiny", features_only=True, embed_dim=16, depths=(1, 1, 1, 1))
    ),
    "glnet": Case(own("glnet_4g", dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2))),
    "sot": Case(own("sot_7", img_size=32, embed_dim=24, num_heads=2, depth=3)),
    "cvt": Case(own("cvt_13", dims=(8, 8, 16), depths=(1, 1, 2), num_heads=(1, 1, 2), head_dim=8)),
    "t2t": Case(own("t2t_vit_7", img_size=32, embed_dim=24, num_heads=2, depth=3)),
    "hf_vit": Case(hugging_face("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **SMALL)),
    "vilt": Case(hugging_face("ViltModel", "ViltConfig", **VILT, **SMALL, **DROPLESS), words_and_images),
    "bert": Case(
        hugging_face("BertForSequenceClassification", "BertConfig", vocab_size=50, **SMALL, **DROPLESS), words
    ),
    "roberta": Case(
        hugging_face("RobertaForSequenceClassification", "RobertaConfig", vocab_size=50, **SMALL, **DROPLESS), words
    ),
    "gpt2": Case(
        hugging_face(
            *("GPT2LMHeadModel", "GPT2Config"),
            **{
                "vocab_size": 50,
                "n_embd": 16,
                "n_layer": 3,
                "n_head": 2,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "use_cache": False,
            },
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        ),
        words,
    ),
    "torch_encoder": Case(encoder, sequences),
}


def build(host: str, seed: int = 0) -> nn.Module:
    """A tiny host whose every parameter matters: none is zero or nearly so."""
    torch.manual_seed(seed)
    model = HOSTS[host].build()
    stir(list(model.parameters()))
    return model.eval()


def stir(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for p in parameters:
            p.add_(0.1 * torch.randn_like(p))


def run(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """One tensor of all a host returns; ViLT chooses patches at random, the same ones here."""
    torch.manual_seed(3)
    args, kwargs = arguments(inputs)
    output = model(*args, **kwargs)
    output = getattr(output, "logits", getattr(output, "last_hidden_state", output))
    parts = output if isinstance(output, list | tuple) else [output]
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def arguments(inputs: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments: images of timm models go by position."""
    rest = {name: value for name, value in inputs.items() if name != "x"}
    return ((inputs["x"],) if "x" in inputs else ()), rest
