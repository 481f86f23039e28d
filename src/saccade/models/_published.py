"""What the papers say their networks weigh and cost, to print beside what we count."""

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
