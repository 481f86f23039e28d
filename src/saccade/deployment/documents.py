"""Writers of one JSON document: COCO's detections and VQAv2's results; written incrementally."""

import json
from collections.abc import Sequence
from typing import Any, TextIO

from ..report.plain import to_json
from .predict import Prediction

IDS = "predict VQAv2's own file of questions, such as v2_OpenEnded_mscoco_test2015_questions.json"


class CocoWriter:
    """A COCO JSON file: images, categories (ids from 1), objects with scores; bad files as `problems`.

    Objects are written incrementally, and `finish` adds the rest.
    """

    def __init__(self, file: TextIO, outputs: Sequence[str]) -> None:
        self.file, self.outputs, self.count = file, outputs, 0
        self.images: list[dict[str, Any]] = []
        self.problems: list[dict[str, Any]] = []
        file.write('{"annotations": [')

    def __call__(self, prediction: Prediction) -> None:
        """Write the objects of one image."""
        if prediction.answer is None:
            self.problems.append({"file_name": prediction.name, "problem": prediction.problem})
            return
        record = prediction.answer.record
        number, (height, width) = len(self.images) + 1, record["size"]
        self.images.append({"id": number, "file_name": prediction.name, "height": height, "width": width})
        for one in record["objects"]:
            left, top, right, bottom = one["box"]
            box = [left, top, round(right - left, 2), round(bottom - top, 2)]
            kept = {"id": self.count + 1, "image_id": number, "category_id": one["index"] + 1, "score": one["score"]}
            kept |= {"bbox": box, "area": round(box[2] * box[3], 2), "iscrowd": 0}
            kept |= {"segmentation": one["segmentation"]} if "segmentation" in one else {}
            self.file.write((",\n" if self.count else "\n") + json.dumps(to_json(kept)))
            self.count += 1

    def finish(self) -> None:
        """Write images and categories."""
        categories = [{"id": place, "name": name} for place, name in enumerate(self.outputs, 1)]
        rest = {"images": self.images, "categories": categories, "problems": self.problems}
        self.file.write("],\n" + json.dumps(rest)[1:] + "\n")


class VqaWriter:
    """VQAv2's results: a JSON list of question ids, which are the names, and answers; of a bad image, an empty one."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.between = file, "[\n"

    def __call__(self, prediction: Prediction) -> None:
        """Write one answer."""
        if not prediction.name.isdecimal():
            raise ValueError(f"--form vqa needs the ids of questions, but one is named {prediction.name!r}; {IDS}")
        said = "" if prediction.answer is None else prediction.answer.record["answer"]
        self.file.write(self.between + json.dumps({"question_id": int(prediction.name), "answer": said}))
        self.between = ",\n"

    def finish(self) -> None:
        """End the list."""
        self.file.write("\n]\n")
