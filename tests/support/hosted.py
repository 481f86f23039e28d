"""Tiny detectors of Hugging Face with random weights, in folders as `save_pretrained` writes them."""

from pathlib import Path
from typing import Any


def save_detector(folder: Path, kind: str, *, weights: bool = False) -> Path:
    """Write a tiny detector's configuration, and perhaps its weights; kinds are transformers' own names of them."""
    transformers: Any = __import__("transformers")
    small: dict[str, Any] = {"d_model": 16, "num_queries": 6, "decoder_layers": 2, "decoder_ffn_dim": 16}
    if kind in ("rt_detr", "d_fine"):
        resnet = {"rt_detr": transformers.RTDetrResNetConfig, "d_fine": transformers.HGNetV2Config}[kind]
        sizes = {"hidden_sizes": [8, 8, 8, 8], "out_features": ["stage2", "stage3", "stage4"]}
        if kind == "rt_detr":
            backbone = resnet(embedding_size=8, depths=[1, 1, 1, 1], layer_type="basic", **sizes)
        else:
            backbone = resnet(
                stem_channels=[3, 4, 8],
                stage_in_channels=[8, 8, 8, 8],
                stage_mid_channels=[4, 4, 4, 4],
                stage_out_channels=[8, 8, 8, 8],
                stage_num_blocks=[1, 1, 1, 1],
                stage_numb_of_layers=[1, 1, 1, 1],
                **sizes,
            )
        made = {"rt_detr": transformers.RTDetrConfig, "d_fine": transformers.DFineConfig}[kind]
        config = made(
            backbone_config=backbone,
            encoder_in_channels=[8, 8, 8],
            decoder_in_channels=[16, 16, 16],
            encoder_hidden_dim=16,
            encoder_ffn_dim=16,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            num_denoising=4,
            **small,
        )
    else:
        sizes = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "out_features": ["stage1", "stage2"],
        }
        backbone = {"model_type": "rf_detr_dinov2", "image_size": 64, "patch_size": 16, "num_windows": 2, **sizes}
        config = transformers.RfDetrConfig(
            backbone_config=backbone,
            decoder_self_attention_heads=2,
            decoder_cross_attention_heads=2,
            group_detr=2,
            c2f_num_blocks=1,
            **small,
        )
    folder.mkdir(parents=True, exist_ok=True)
    if weights:
        transformers.AutoModelForObjectDetection.from_config(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return folder
