"""Tasks: each is a folder with the roles reader, codec, task, metrics, presenter and hosts."""

from .answer import Answer
from .auxiliary import (
    Distillation,
    LabelMaps,
    RelativeLocalization,
    SoftLabels,
    TeacherLabels,
    TokenLabelling,
    make_label_maps,
    save_label_maps,
)
from .classification import Classify
from .codec import Codec
from .detection import Detect
from .hosts import Hosts
from .metric import Metrics, MetricSpec
from .multilabel import Multilabel
from .numbers import NumberMetrics
from .presenter import Presenter, RankedPresenter
from .reader import Reader
from .registering import TASKS, register_task
from .regression import Regress
from .segmentation import Segment
from .task import Task
from .text import ClassifyText
from .vqa import AnswerQuestions

__all__ = [
    "TASKS",
    "Answer",
    "AnswerQuestions",
    "Classify",
    "ClassifyText",
    "Codec",
    "Detect",
    "Distillation",
    "Hosts",
    "LabelMaps",
    "MetricSpec",
    "Metrics",
    "Multilabel",
    "NumberMetrics",
    "Presenter",
    "RankedPresenter",
    "Reader",
    "Regress",
    "RelativeLocalization",
    "Segment",
    "SoftLabels",
    "Task",
    "TeacherLabels",
    "TokenLabelling",
    "make_label_maps",
    "register_task",
    "save_label_maps",
]
