"""Explain a model's answers to questions about images."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..building.loading import LoadedModel
from ..data.image import decode
from ..data.source import Sample
from ..kernels import removed
from ..report.markup import shorten
from ..tasks.classification.task import read_logits
from ..tasks.text.tables import ENDINGS, read_columns
from ..tasks.vqa.data import read_questions
from .opening import SpecTokenizer
from .outputs import name_answers
from .recording import eval_mode
from .request import Method, Options, ViewRequest, choose_views
from .result import Explanation
from .view import ExplainedSample, shares_of
from .views.regions import METHODS as REGIONS

MAX_NAME = 60  # most characters of a name


def explain_questions(
    loaded: LoadedModel,
    asked: Any,
    *,
    views: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    method: Method = "gradient",
    progress: Callable[[str], None] | None = None,
) -> Explanation:
    """Explain answers by the words of questions and the regions of images.

    Args:
        loaded: a run that answers questions.
        asked: one or several: tables with the columns image and question, or an image's path, a tab and a question.
        views: keys of views; default: "words" and "regions".
        layers: not used by these views, so refused.
        method: "gradient" times input, or "integrated" gradients.
        progress: prints progress.
    """
    chosen = choose_views(views, reads="questions")
    if layers is not None:
        raise ValueError("layers was given, but the views of questions are of the whole model; remove it")
    if method not in REGIONS:
        raise ValueError(
            f"method={method!r} is for texts; answers to questions are explained by {' or '.join(REGIONS)}"
        )
    given = [asked] if isinstance(asked, str | Path) else list(asked)
    model, codec = loaded.model, loaded.task.codec(loaded.spec)
    encode, tokenizer = codec.encoder(), SpecTokenizer(loaded.spec)
    explained = []
    with removed(model):
        for path, question in _read(given):
            name = shorten(f"{path.name}: {question}", MAX_NAME)
            if progress is not None:
                progress(name)
            image = decode(path, name=path.name)
            sample = Sample({"image": image, "text": question}, None, path.name)
            batch = {key: part.to(loaded.device) for key, part in encode.collate([encode(sample)]).items()}
            batch["image"] = loaded.normalize(batch["image"])
            with torch.no_grad(), eval_mode(model):
                logits = read_logits(codec.ask(model, batch))
            answers = name_answers(logits, loaded, [image.shape[:2]])
            request = ViewRequest(
                model,
                1,
                Options(method=method),
                loaded=loaded,
                inputs=batch,
                answers=answers,
                tokenizer=tokenizer,
                classes=loaded.spec.outputs,
            )
            shown = [view for kind in chosen.values() for view in kind.make(request)]
            explained.append(ExplainedSample(name, None, shares_of(answers[0]), shown))
    if not explained:
        raise ValueError("no question was given; give at least one")
    return Explanation(loaded.name, explained, outputs=loaded.task.presenter.outputs_key)


def _read(given: Sequence[Any]) -> Iterator[tuple[Path, str]]:
    """Yield images and questions; paths in a table are relative to it."""
    for one in given:
        image, tab, question = str(one).partition("\t")
        if not tab and Path(image).suffix.lower() in ENDINGS:
            for name, text in read_questions(read_columns(Path(image)), Path(image)):
                yield Path(image).parent / name, text
        elif tab and image.strip() and question.strip():
            yield Path(image.strip()), question.strip()
        else:
            raise ValueError(
                f"{shorten(str(one), MAX_NAME)!r} is not an image with a question; give a table with the columns image "
                "and question, or an image's path, a tab and a question"
            )
