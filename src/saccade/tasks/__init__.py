"""What a model is trained for: forward and loss in one module."""

from .classify import Classify
from .distill import Distillation
from .drloc import RelativeLocalization
from .label_maps import LabelMaps, make_label_maps, save_label_maps
from .task import Task
from .teacher import SoftLabels, TeacherLabels
from .token_label import TokenLabelling

__all__ = [
    "Classify",
    "Distillation",
    "LabelMaps",
    "RelativeLocalization",
    "SoftLabels",
    "Task",
    "TeacherLabels",
    "TokenLabelling",
    "make_label_maps",
    "save_label_maps",
]
