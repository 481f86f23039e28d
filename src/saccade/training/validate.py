"""Answers on the validation pictures, each counted once."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.augment import Normalize
from ..data.validation import Validation
from ..tasks.classify import read_logits
from .compilation import uncompiled
from .parallel import World

KEEP_LOGITS = 20_000_000  # numbers; beyond, a prediction file would be too large to be of use


@dataclass
class Answers:
    """What a model said to every picture, in the order of their places."""

    logits: Tensor  # N, classes, float32 on the CPU
    labels: Tensor  # N
    places: Tensor  # N

    def metrics(self) -> dict[str, float]:
        """Return loss, top-1 and top-5 accuracy."""
        loss = F.cross_entropy(self.logits, self.labels)
        found = {"val_loss": loss.item(), "val_top1": (self.predictions == self.labels).double().mean().item()}
        if self.logits.shape[1] > 5:
            top = self.logits.topk(5, dim=1).indices == self.labels[:, None]
            found["val_top5"] = top.any(1).double().mean().item()
        return found

    @property
    def predictions(self) -> Tensor:
        """The likeliest class of each picture; of equal logits, which half precision makes often, the first."""
        return self.logits.argmax(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return what is kept of them."""
        prediction = self.predictions
        kept = {
            "place": self.places,
            "label": self.labels,
            "prediction": prediction,
            "correct": (prediction == self.labels).to(torch.uint8),
            "confidence": self.logits.softmax(1).amax(1),
            "loss": F.cross_entropy(self.logits, self.labels, reduction="none"),
        }
        if self.logits.numel() <= KEEP_LOGITS:
            kept["logits"] = self.logits.half()
        return kept


@torch.no_grad()
def validate(model: nn.Module, validation: Validation, normalize: Normalize, world: World) -> Answers:
    """Ask a model about every validation picture; all processes call this."""
    was_training = model.training
    model.eval()
    logits, labels, places = [], [], []
    with uncompiled():
        for pictures, label, place in validation.batches():
            logits.append(read_logits(model(normalize(pictures))).float())
            labels.append(label)
            places.append(place)
    model.train(was_training)
    if logits:
        mine = (torch.cat(logits).cpu(), torch.cat(labels).cpu(), torch.cat(places))
    else:
        mine = (torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    parts = [found for found in world.gather(mine) if len(found[1])]
    if not parts:
        raise ValueError("no validation picture can be read; `saccade data check` names them")
    all_logits, all_labels, all_places = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    world.unite(validation.bad)
    order = all_places.argsort()
    return Answers(all_logits[order], all_labels[order], all_places[order])
