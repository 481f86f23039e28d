"""Tiny detectors and segmenters of Hugging Face with random weights, in folders as `save_pretrained` writes them."""

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
    elif kind == "deformable_detr":
        resnet = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "layer_type": "basic"}
        stages = ["stage2", "stage3", "stage4"]
        config = transformers.DeformableDetrConfig(
            backbone_config=transformers.ResNetConfig(embedding_size=8, out_features=stages, **resnet),
            use_timm_backbone=False,
            encoder_layers=1,
            encoder_ffn_dim=16,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            **small | {"d_model": 64},  # its normalisation has 32 groups, of more than one value each
        )
    else:
        sizes = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "out_features": ["stage1", "stage2"],
        }
        backbone = {"image_size": 64, "patch_size": 16, **sizes}
        backbone |= (
            {"model_type": "rf_detr_dinov2", "num_windows": 2}
            if kind == "rf_detr"
            else {"model_type": "lw_detr_vit", "num_windows": 4, "pretrain_image_size": 64, "window_block_indices": [0]}
        )
        scales = {} if kind == "rf_detr" else {"projector_scale_factors": [1.0]}
        made = transformers.RfDetrConfig if kind == "rf_detr" else transformers.LwDetrConfig
        config = made(
            backbone_config=backbone,
            decoder_self_attention_heads=2,
            decoder_cross_attention_heads=2,
            group_detr=2,
            c2f_num_blocks=1,
            **scales,
            **small,
        )
    return _save(folder, config, transformers.AutoModelForObjectDetection if weights else None)


def save_segmenter(folder: Path, kind: str, *, weights: bool = False) -> Path:
    """Write a tiny segmenter likewise: "mask2former" or "maskformer"."""
    transformers: Any = __import__("transformers")
    small: dict[str, Any] = {"image_size": 64, "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}
    swin = transformers.SwinConfig(window_size=4, out_features=["stage1", "stage2", "stage3", "stage4"], **small)
    if kind == "mask2former":
        config = transformers.Mask2FormerConfig(
            backbone_config=swin,
            feature_size=32,  # its normalisation has groups
            mask_feature_size=16,
            hidden_dim=32,
            encoder_feedforward_dim=16,
            dim_feedforward=16,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            num_queries=6,
            train_num_points=64,
        )
    else:
        decoder: dict[str, Any] = {"d_model": 16, "num_queries": 6, "decoder_layers": 1, "decoder_ffn_dim": 16}
        heads = {"decoder_attention_heads": 2, "encoder_attention_heads": 2, "encoder_layers": 0}
        config = transformers.MaskFormerConfig(
            backbone_config=swin,
            decoder_config=transformers.DetrConfig(**decoder, **heads),
            fpn_feature_size=32,
            mask_feature_size=16,
        )
    return _save(folder, config, transformers.AutoModelForUniversalSegmentation if weights else None)


def _save(folder: Path, config: Any, model: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (config if model is None else model.from_config(config)).save_pretrained(folder)
    return folder
