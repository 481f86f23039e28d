"""Images of noise with objects, and torchvision's own Mask R-CNN on them; timed by `detection.py`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SWIN, SWIN_S = "swin_tiny_patch4_window7_224", "swin_small_patch4_window7_224"
OBJECTS = 10  # in an image of noise


def draw_boxes(draws: np.random.Generator, side: int) -> np.ndarray:
    """Return boxes of an image of noise: x, y, width, height."""
    sides = draws.uniform(0.08, 0.5, (OBJECTS, 2)) * side
    return np.concatenate([draws.uniform(0, 1, (OBJECTS, 2)) * (side - sides), sides], axis=1).round()


def make_noise(root: Path, *, count: int, side: int) -> None:
    """Write images, boxes and masks to train on for the clock's sake."""
    draws = np.random.default_rng(0)
    for part, number in (("train", count), ("val", 2)):
        (root / part).mkdir(parents=True)
        listed: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": [], "categories": []}
        listed["categories"] = [{"id": kind + 1, "name": f"class {kind}"} for kind in range(80)]
        for place in range(number):
            small = Image.fromarray(draws.integers(0, 255, (16, 16, 3), dtype=np.uint8))
            small.resize((side, side)).save(root / part / f"{place}.jpg")
            listed["images"].append({"id": place, "file_name": f"{place}.jpg", "width": side, "height": side})
            for x, y, wide, high in draw_boxes(draws, side).tolist():
                corners = [x, y, x + wide, y, x + wide, y + high, x, y + high]
                listed["annotations"].append(
                    {
                        "id": len(listed["annotations"]) + 1,
                        "image_id": place,
                        "category_id": int(draws.integers(1, 81)),
                        "bbox": [x, y, wide, high],
                        "area": wide * high,
                        "iscrowd": 0,
                        "segmentation": _runs(corners, side),
                    }
                )
        (root / f"{part}.json").write_text(json.dumps(listed), encoding="utf-8")


def _runs(corners: list[float], side: int) -> dict[str, Any]:
    """Return a rectangle as runs down the columns."""
    mask = np.zeros((side, side), dtype=bool)
    left, top, right, bottom = (int(corners[place]) for place in (0, 1, 4, 5))
    mask[top:bottom, left:right] = True
    flat = mask.T.ravel()
    ends = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *ends, flat.size]).tolist()
    return {"size": [side, side], "counts": [0, *counts] if flat[0] else counts}


class Theirs:
    """torchvision's Mask R-CNN on the same backbone, in the loop of its tutorial, images already on the device."""

    def __init__(self, device: torch.device, side: int, batch: int, steps: int, *, compiled: bool) -> None:
        from torchvision.models.detection import MaskRCNN

        self.device, self.steps, self.batch = device, steps, batch
        pyramid = Pyramid(side)
        if compiled:
            pyramid.body.compile()
        model = MaskRCNN(pyramid, 81, min_size=side, max_size=side, rpn_post_nms_top_n_train=1000)
        self.model = model.to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        draws = np.random.default_rng(0)
        self.images = [torch.rand(3, side, side, device=device) for _ in range(batch)]
        self.targets = []
        for _ in range(batch):
            boxes = torch.from_numpy(draw_boxes(draws, side)).float()
            boxes[:, 2:] += boxes[:, :2]
            masks = torch.zeros(OBJECTS, side, side, dtype=torch.uint8)
            for place, (left, top, right, bottom) in enumerate(boxes.int().tolist()):
                masks[place, top:bottom, left:right] = 1
            kinds = torch.from_numpy(draws.integers(1, 81, OBJECTS))
            self.targets.append({"boxes": boxes.to(device), "labels": kinds.to(device), "masks": masks.to(device)})

    def epoch(self, number: int) -> int:  # noqa: ARG002
        for _ in range(self.steps):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = torch.stack(list(self.model(self.images, self.targets).values())).sum()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return self.steps * self.batch


class Pyramid(nn.Module):
    """timm's backbone under torchvision's FPN."""

    out_channels = 256

    def __init__(self, side: int) -> None:
        import timm
        from torchvision.ops import FeaturePyramidNetwork
        from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

        super().__init__()
        self.body = timm.create_model(SWIN, pretrained=False, features_only=True, img_size=side)
        channels = self.body.feature_info.channels()
        self.fpn = FeaturePyramidNetwork(channels, self.out_channels, extra_blocks=LastLevelMaxPool())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = [one.permute(0, 3, 1, 2).contiguous() for one in self.body(x)]
        return self.fpn({str(number): one for number, one in enumerate(maps)})
