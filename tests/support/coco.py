"""Average precision by pycocotools, which is independent of the package's own."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def coco_stats(
    truth: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], kind: Literal["bbox", "segm"]
) -> np.ndarray:
    """Return the twelve numbers of pycocotools for annotations and answers in COCO's format."""
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = dict(truth)
        known.createIndex()
        measured = COCOeval(known, known.loadRes(list(answers)), kind)
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    found: np.ndarray = measured.stats
    return found
