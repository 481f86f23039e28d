"""Answers to questions are explained by the words of the question and the regions of the image."""

import numpy as np
import pytest
import torch
from torch import nn

import saccade
from saccade.building.loading import open_model
from saccade.cli import main
from saccade.data.source import Sample
from saccade.explanation.views.regions import colour_regions, compute_regions
from saccade.explanation.views.words import AGAINST, FOR
from saccade.runs.run import Run
from saccade.tasks.vqa.patches import split_patches
from support.questions import make_vilt, questions, write_questions


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vqa")
    write_questions(folder, list(questions(20)))
    (folder / "asked.csv").write_text("image,question\nbright.png,is the film bright\ndark.png,is it\n")
    return folder / "asked.csv"


@pytest.fixture(scope="module", params=[True, False], ids=["aspect", "square"])
def run(request, table, tmp_path_factory):
    vilt = make_vilt(tmp_path_factory.mktemp("vilt"))
    options = {"epochs": 2, "batch_size": 8, "img_size": 32, "lr": 1e-2, "device": "cpu", "workers": 0, "quiet": True}
    options["settings"] = {"data.keep_aspect": request.param}
    out = tmp_path_factory.mktemp("run") / "run"
    return saccade.train(str(table.parent / "questions.csv"), task="vqa", model=str(vilt), out=out, **options).path


WEIGHTS = torch.tensor([[1.0, -2.0, 0.0], [0.5, 3.0, -1.0]])  # of 2 x 3 patches


def linear(_model, batch):
    """Score an image by the sums of its patches."""
    image = batch["image"]
    sums = (image if "grid" in batch else split_patches(image, 4)).sum((2, 3, 4))[:, :6]
    score = (sums * WEIGHTS.flatten()).sum(1)
    return torch.stack([score, torch.full_like(score, -1e9)], dim=1)


@pytest.mark.parametrize("method", ["gradient", "integrated"])
@pytest.mark.parametrize("patches", [False, True])
def test_regions_of_a_linear_score_are_its_terms(method, patches):
    image = torch.randn(1, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    batch = {"image": image}
    want = split_patches(image, 4).sum((2, 3, 4)).view(2, 3) * WEIGHTS
    if patches:
        padding = torch.zeros(1, 2, 3, 4, 4)
        batch = {"image": torch.cat([split_patches(image, 4), padding], dim=1), "grid": torch.tensor([[2, 3]])}
    found = compute_regions(nn.Identity(), linear, batch, patch=4, method=method)
    np.testing.assert_allclose(found.influence, want.numpy(), rtol=1e-4, atol=1e-4)
    assert found.score == pytest.approx(want.sum().item(), abs=1e-3)


def test_patches_are_coloured_by_sign_and_strength():
    found = colour_regions(np.full((4, 8, 3), 100, np.uint8), np.array([[2.0, -1.0]]))
    np.testing.assert_array_equal(found[0, 0], np.rint(25 + 0.75 * np.array(FOR)))
    np.testing.assert_array_equal(found[3, 7], np.rint(62.5 + 0.375 * np.array(AGAINST)))


def figures(sample):
    return {view.key: view.figures[0].numbers for view in sample.views}


def test_words_and_regions_of_a_runs_answers(run, table):
    found = saccade.explain(run, str(table), method="integrated")
    assert [one.name for one in found.samples] == ["bright.png: is the film bright", "dark.png: is it"]
    told = [one.answer.rows[0][0] for one in saccade.predict(run, table)]
    for sample, answer in zip(found.samples, told, strict=True):
        assert sample.answer[0][0] == answer
        assert {view.key: view.numbers["class"] for view in sample.views} == {"words": answer, "regions": answer}
    words = figures(found.samples[0])["words"]["words"]
    assert [one["word"] for one in words] == ["[CLS]", "is", "the", "film", "bright", "[SEP]"]
    assert all(one["influence"] != 0 for one in words)
    # Images of 24 x 40 pixels: with their aspect ratio the shorter side has 32 pixels, 4 patches of 8.
    shape = np.array(figures(found.samples[0])["regions"]["influence"]).shape
    assert shape == ((4, 6) if Run.open(run).config().data.keep_aspect else (4, 4))


def test_integrated_influences_of_regions_sum_to_the_change_of_the_score(run, table):
    loaded = open_model(run)
    codec = loaded.task.codec(loaded.spec)
    image = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    batch = codec.encoder().collate([codec.encoder()(Sample({"image": image, "text": "is it"}, None, "a"))])
    batch["image"] = loaded.normalize(batch["image"])
    loaded.model.eval()
    found = compute_regions(loaded.model, codec.ask, batch, patch=8, method="integrated", steps=64)
    with torch.no_grad():
        grey = codec.ask(loaded.model, {**batch, "image": torch.zeros_like(batch["image"])}).logits[0, found.target]
    assert found.influence.sum() == pytest.approx(
        found.score - grey.item(), abs=0.02 * float(np.abs(found.influence).sum())
    )


def test_the_command_writes_a_page(run, table, tmp_path, capsys):
    main(["explain", str(run), f"{table.parent / 'dark.png'}\tis it", "--out", str(tmp_path / "page")])
    text = (tmp_path / "page" / "index.html").read_text()
    assert "Which words the prediction comes from" in text
    assert "Which regions the answer comes from" in text
    assert list((tmp_path / "page").rglob("*.png"))


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        ("dark.png", {}, "is not an image with a question"),
        ("dark.png\t ", {}, "is not an image with a question"),
        ([], {}, "no question was given"),
        ("dark.png\tis it", {"layers": ["vilt"]}, "layers was given"),
        ("dark.png\tis it", {"against": "RUN"}, "against applies to images only, and this model reads questions"),
        ("dark.png\tis it", {"views": ["gradcam"]}, "no view 'gradcam' for questions.*words, regions"),
    ],
)
def test_what_cannot_be_explained_is_told(run, given, options, told):
    with pytest.raises(ValueError, match=told):
        saccade.explain(run, given, **options)
