"""Several models' attributions of the same images or texts on one page (SoT, Figures S-4 and S-5)."""

import json

import numpy as np
import pytest
import torch

import saccade
from saccade.cli import main
from saccade.explanation.explain import explain
from support.explaining import photo, views_of, vit
from support.texts import make_model, write_cola

PARTS = {"ClassT": {"pooling": "none"}, "WordT": {"class_token": "none"}, "ClassT+WordT": {}}
TEXTS = ["the film is good", "the song was very bad"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    data, bert = write_cola(folder / "cola"), make_model(folder / "bert")
    for name, options in PARTS.items():
        own = ",".join(f"{key}={value}" for key, value in {"num_heads": 1, "head_dim": 4, **options}.items())
        more = {"plugins": [f"second_order:{own}"], "epochs": 1, "batch_size": 8, "device": "cpu", "quiet": True}
        saccade.train(str(data), task="text", model=str(bert), out=folder / name, **more)
    return [str(folder / name) for name in PARTS]


@pytest.mark.parametrize("method", ["gradient", "relevance"])
def test_three_runs_show_their_own_words_side_by_side(runs, tmp_path, capsys, method):
    first, *others = runs
    beside = [flag for run in others for flag in ("--beside", run)]
    assert main(["explain", first, *TEXTS, *beside, "--method", method, "--out", str(tmp_path / "page")]) == 0
    samples = json.loads((tmp_path / "page" / "numbers.json").read_text())["samples"]
    alone = [explain(run, TEXTS, views=["words"], method=method) for run in runs]
    for place, sample in enumerate(samples):
        assert list(sample["views"]) == ["words"]
        figures = sample["views"]["words"]["figures"]
        assert [one["numbers"]["model"] for one in figures.values()] == list(PARTS)
        for figure, one in zip(figures.values(), alone, strict=True):
            whole = one.samples[place].views[0].figures[0]
            assert figure["numbers"]["words"] == whole.numbers["words"]
            label, share = one.samples[place].answer[0]
            assert figure["caption"].startswith(f"{figure['numbers']['model']} predicts {label} ({share:.1%}). ")
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.count('<div class="row">') == len(TEXTS)
    assert all(f"{name} predicts" in page for name in PARTS)


def test_images_have_a_map_of_each_model(tmp_path):
    models = [vit() for _ in PARTS]
    for model, options in zip(models, ({"pooling": None}, {"class_token": None}, {}), strict=True):
        saccade.attach(model, saccade.SecondOrderHead(num_classes=4, **options))
    found = explain(models[0], [photo(), photo()], beside=models[1:])
    (view,) = found.samples[1].views
    assert (view.key, view.row, len(view.figures)) == ("gradcam", True, 3)
    for figure, model in zip(view.figures, models, strict=True):
        alone = views_of(explain(model, photo(), views=["gradcam"]))["gradcam"].figures[0]
        assert alone.key == "gradcam"  # of the whole prediction
        assert np.array_equal(figure.pixels, alone.pixels)
    streamed = explain(models[0], iter([photo(), photo()]), beside=models[1:])
    assert len(streamed.samples[1].views[0].figures) == 3
    names = [figure.numbers["model"] for figure in view.figures]
    assert names == [f"vit_tiny_patch16_224 ({place})" for place in (1, 2, 3)]
    assert found.save(tmp_path / "page").exists()


def test_a_model_without_the_view_is_named():
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4))
    spec = saccade.InputSpec(("a", "b", "c", "d"), in_chans=3, img_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    found = explain(vit(), photo(), beside=[plain], shape=spec)
    (view,) = found.samples[0].views
    assert len(view.figures) == 1
    assert "Sequential: " in view.about


def test_what_is_of_one_model_is_refused(runs):
    with pytest.raises(ValueError, match="data was given with beside"):
        explain(vit(), photo(), beside=[vit()], data="run")
    with pytest.raises(ValueError, match="heads, estimator was given with beside"):
        explain(vit(), photo(), beside=[vit()], heads="all", estimator="biased")
    with pytest.raises(ValueError, match=r"views = attention was given with beside, which shows gradcam of images"):
        explain(vit(), photo(), beside=[vit()], views=["attention"])
    with pytest.raises(ValueError, match="which shows words of texts"):
        explain(runs[0], TEXTS, beside=runs[1:], views=["density"])
