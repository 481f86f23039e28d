"""Auxiliary losses and teachers: DRLoc, distillation, token labelling."""

from .distill import Distillation
from .drloc import RelativeLocalization
from .label_maps import LabelMaps, make_label_maps, save_label_maps
from .teacher import SoftLabels, TeacherLabels
from .token_label import TokenLabelling

__all__ = [
    "Distillation",
    "LabelMaps",
    "RelativeLocalization",
    "SoftLabels",
    "TeacherLabels",
    "TokenLabelling",
    "make_label_maps",
    "save_label_maps",
]
