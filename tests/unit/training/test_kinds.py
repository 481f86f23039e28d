"""A recipe's numbers for a model of Hugging Face are those of the kind its configuration tells, however it is named."""

import json
import os

import pytest

from saccade.settings.recipes import choose_variants
from saccade.tasks.identity import identify
from saccade.training.recipes import configure, grid_of, variant_names, variant_notes

OF_KIND = {
    "bert": "bert-base-uncased",
    "roberta": "roberta-base",
    "xlm-roberta": "roberta-base",
    "gpt2": "openai-gpt",
    "openai-gpt": "openai-gpt",
}
SPELLED = ["./{}", "{}", "{}/", "../{here}/{}", "{root}/{}", "{root}/v1.0/../{}"]
FOLDERS = ["plain", "roberta-base", "bert-base-uncased", "gpt", "spanish", "v1.0", "best.model"]


def write_config(folder, **values):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def numbers(model):
    config = configure("text", {"model.name": model})
    return config.optim, grid_of(config)


@pytest.mark.parametrize("kind", OF_KIND)
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_spelling_of_a_path_changes_nothing(tmp_path, monkeypatch, kind, folder):
    write_config(tmp_path / folder, model_type=kind)
    (tmp_path / "v1.0").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    expected = numbers(OF_KIND[kind])
    for spelled in SPELLED:
        name = spelled.format(folder, here=tmp_path.name, root=tmp_path)
        assert numbers(name) == expected, name
        assert not variant_notes(configure("text", {"model.name": name}))


def test_spanbert_is_a_bert_whose_name_tells_it(tmp_path):
    expected = numbers("SpanBERT/spanbert-base-cased")
    assert expected != numbers("bert-base-uncased")
    assert numbers(str(write_config(tmp_path / "SpanBERT-large", model_type="bert"))) == expected
    saved = write_config(tmp_path / "best", model_type="bert", _name_or_path="SpanBERT/spanbert-base-cased")
    assert numbers(str(saved)) == expected
    assert numbers(str(write_config(tmp_path / "spanbert-of-roberta", model_type="roberta"))) == numbers("roberta-base")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": 3}', '{"model_type": ""}', "{" * 10_000])
def test_where_no_configuration_can_be_read_the_name_is_taken_and_said(tmp_path, text):
    folder = tmp_path / "roberta-large"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    assert numbers(str(folder)) == numbers("roberta-base")
    (note,) = variant_notes(configure("text", {"model.name": str(folder)}))
    assert "roberta, judging by its name" in note


def test_a_model_in_the_hubs_cache_is_known_by_its_configuration(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    made = write_config(tmp_path / "snapshot", model_type="gpt2")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: os.fspath(made / file))
    assert identify("someone/bertish").kind == "gpt2"
    assert numbers("someone/bertish") == numbers("openai-gpt")


def test_models_of_timm_are_known_by_their_names():
    assert variant_names("segment", "swin_tiny_patch4_window7_224.ms_in1k") == ("swin_tiny_patch4_window7_224",)
    assert choose_variants({"swin_*": {"seed": 1}}, "swin_tiny") == [{"seed": 1}]
