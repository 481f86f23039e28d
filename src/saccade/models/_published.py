"""What was published: what the papers say their networks weigh and cost, and what their code calls the weights."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A paper's own numbers: millions of parameters, billions of multiply-adds, at an image side."""

    params: float
    gmacs: float | None
    img_size: int = 224


PUBLISHED = {
    "nommer_tiny": Figure(22, 5.4),
    "nommer_small": Figure(42, 10.1),
    "nommer_base": Figure(73, 17.6),
    "glnet_stl": Figure(30.3, 4.4),
    "glnet_stl_paramslot": Figure(30.5, 4.4),
    "glnet_4g": Figure(27, 4.5),
    "glnet_9g": Figure(61, 9.7),
    "glnet_16g": Figure(106, 16.7),
    "glnet_4g_tl": Figure(27, 4.5),
    "glnet_9g_tl": Figure(61, 9.7),
    "sot_7": Figure(5.44, None, 112),
    "sot_tiny": Figure(7.7, 2.5),
    "sot_small": Figure(26.9, 5.8),
    "sot_base": Figure(76.8, 14.5),
    "cvt_13": Figure(20, 4.5),
    "t2t_vit_7": Figure(4.3, 1.1),
    "t2t_vit_12": Figure(6.9, 1.8),
    "t2t_vit_14": Figure(21.5, 4.8),
    "t2t_vit_24": Figure(64.1, 13.8),
}

# What the published code calls its weights, as patterns of names and what they are called here.
GLNET_NAMES = [
    (r"\.slot_scale$", ".mixer.global_branch.scale"),
    (r"\.init_slots$", ".mixer.global_branch.init_slots"),
    (r"\.relation_mha\.", ".mixer.global_branch.attn."),
    (r"\.mha_op\.", ".mixer.attn."),
    (r"\.in_proj_(weight|bias)$", r".qkv.\1"),
    (r"\.out_proj\.", ".proj."),
    (r"\.feature_conv\.0\.", ".mixer.local_branch.pointwise1."),
    (r"\.feature_conv\.1\.", ".mixer.local_branch.depthwise."),
    (r"\.feature_conv\.2\.", ".mixer.local_branch.pointwise2."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.1\.", ".mlp.depthwise."),
    (r"\.mlp\.[23]\.", ".mlp.fc2."),
]
GLNET_POINTWISE = ("fc1.weight", "fc2.weight", "pointwise1.weight", "pointwise2.weight")
GLNET_OVERLAPPING = [
    (r"^downsample_layers\.0\.1\.", "stem.conv1."),
    (r"^downsample_layers\.0\.2\.", "stem.norm1."),
    (r"^downsample_layers\.0\.4\.", "stem.conv2."),
    (r"^downsample_layers\.0\.5\.", "stem.norm2."),
    (r"^downsample_layers\.(\d+)\.0\.", r"stages.\1.downsample.conv."),
    (r"^downsample_layers\.(\d+)\.1\.", r"stages.\1.downsample.norm."),
]
GLNET_PATCHES = [
    (r"^downsample_layers\.0\.0\.", "stem.conv."),
    (r"^downsample_layers\.0\.1\.", "stem.norm."),
    (r"^downsample_layers\.(\d+)\.0\.", r"stages.\1.downsample.norm."),
    (r"^downsample_layers\.(\d+)\.1\.", r"stages.\1.downsample.conv."),
]
NOMMER_CONSTANTS = (".dct_conv_8x8.weight", ".idct_conv.0.weight", ".relative_position_index")
NOMMER_NAMES = (
    (r"^pos_embedding$", "stages.2.pos_embed"),
    (r"^cls_token$", "stages.3.cls_token"),
    (r"^cnn1\.", "stem.conv."),
    (r"^bn1\.", "stem.norm."),
    (r"^mlp_head\.0\.", "norm."),
    (r"^mlp_head\.1\.", "head."),
    (r"^merge([123])\.", r"stages.\1.merge."),
    (r"^transformer([1-4])\.layers\.(\d+)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.{m[2]}."),
    (r"(blocks\.\d+)\.0\.norm\.", r"\1.norm1."),
    (r"(blocks\.\d+)\.1\.norm\.", r"\1.norm2."),
    (r"(blocks\.\d+)\.0\.fn\.", r"\1.mixer."),
    (r"(blocks\.\d+)\.1\.fn\.net\.0\.", r"\1.mlp.fc1."),
    (r"(blocks\.\d+)\.1\.fn\.net\.3\.", r"\1.mlp.fc2."),
    (r"mixer\.attention\.", "mixer.window."),
    (r"mixer\.attentionG\.", "mixer.dct."),
    (r"mixer\.fc\.", "mixer.nominator.fc."),
    (r"mixer\.to_", "mixer.attn.to_"),
    (r"dct\.dw\.", "dct.perceive."),
    (r"dct\.bn1\.", "dct.norm."),
    (r"dct\.up\.", "dct.restore."),
    (r"attn\.to_qkv\.", "attn.qkv."),
    (r"attn\.to_out\.0\.", "attn.proj."),
)
