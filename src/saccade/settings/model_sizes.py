"""Sizes of the backbones, the papers' and those counted here, without building a model."""

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


class Count(NamedTuple):
    """What a backbone is: trainable parameters, and multiply-adds of one image with attention's, at an image side."""

    params: int
    macs: int
    img_size: int


COUNTED = {
    "cvt_13": Count(19_936_296, 4_543_682_816, 224),
    "glnet_4g": Count(27_001_593, 4_482_122_752, 224),
    "glnet_4g_tl": Count(27_514_593, 4_507_210_752, 224),
    "glnet_9g": Count(60_010_617, 9_588_155_904, 224),
    "glnet_9g_tl": Count(60_779_617, 9_625_787_904, 224),
    "glnet_16g": Count(106_055_161, 16_604_170_240, 224),
    "glnet_nano": Count(3_108_590, 123_078_656, 32),
    "glnet_stl": Count(30_296_786, 4_347_432_960, 224),
    "glnet_stl_paramslot": Count(30_481_106, 4_347_432_960, 224),
    "nommer_base": Count(73_404_900, 17_464_791_552, 224),
    "nommer_small": Count(41_532_388, 10_036_350_336, 224),
    "nommer_tiny": Count(22_455_804, 5_464_695_936, 224),
    "sot_7": Count(5_443_422, 1_200_633_556, 112),
    "sot_base": Count(76_774_966, 15_523_963_108, 224),
    "sot_small": Count(27_010_856, 6_214_753_936, 224),
    "sot_tiny": Count(7_983_550, 2_752_730_836, 224),
    "t2t_vit_7": Count(4_255_694, 1_146_863_616, 224),
    "t2t_vit_12": Count(6_887_374, 1_762_638_336, 224),
    "t2t_vit_14": Count(21_465_806, 4_783_468_544, 224),
    "t2t_vit_24": Count(64_000_974, 13_661_874_688, 224),
}
