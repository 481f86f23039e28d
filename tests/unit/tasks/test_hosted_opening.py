"""A text classifier of Hugging Face, named as hf:FOLDER, is asked as a run is."""

import json
import shutil

import pytest
import torch
import transformers

import saccade
from saccade.building.loading import find_target, open_model
from saccade.plugins import PLUGINS, attach
from saccade.settings import ConfigError
from support.texts import SIZE, WORDS, make_model, make_tokenizer, sentences, write_tsv


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder with a tiny classifier whose classes have names."""
    folder = tmp_path_factory.mktemp("hosted") / "judge"
    transformers.set_seed(1)
    labels = {0: "bad", 1: "good"}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, id2label=labels, **SIZE)
    model = transformers.BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def shares(classifier):
    """What transformers says itself of sentences."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier)

    def ask(texts):
        with torch.no_grad():
            return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits.softmax(1) for text in texts])

    return ask


def test_predict_says_what_transformers_says(classifier, shares):
    texts = [text for text, _ in sentences(6)]
    said = list(saccade.predict(f"hf:{classifier}", texts))
    for prediction, row in zip(said, shares(texts), strict=True):
        found = {name: share for name, _, share in prediction.answer.rows}
        assert found == pytest.approx({"bad": row[0].item(), "good": row[1].item()}, rel=1e-4)


def test_evaluate_measures_what_transformers_says(classifier, shares, tmp_path):
    rows = sentences(20)
    write_tsv(tmp_path / "held.tsv", ("sentence", "label"), rows)
    result = saccade.evaluate(f"hf:{classifier}", tmp_path / "held.tsv", quiet=True)
    said = shares([text for text, _ in rows]).argmax(1)
    right = sum(("bad", "good")[int(index)] == label for index, (_, label) in zip(said, rows, strict=True))
    assert result.metrics()["accuracy"] == pytest.approx(right / 20)


def test_explain_takes_one(classifier, shares):
    text = sentences(1)[0][0]
    explained = saccade.explain(f"hf:{classifier}", text)
    best = max(shares([text])[0].tolist())
    assert max(share for _, share in explained.samples[0].answer) == pytest.approx(best, rel=1e-4)


def test_its_name_and_classes_are_its_own(classifier):
    loaded = open_model(find_target(f"hf:{classifier}"))
    assert (loaded.name, loaded.origin, loaded.spec.outputs) == ("judge", "hf", ("bad", "good"))
    assert saccade.load_model(f"hf:{classifier}")[1].outputs == ("bad", "good")


def test_a_model_that_was_not_trained_to_classify_is_refused(tmp_path, classifier):
    with pytest.raises(ConfigError, match=r"is BertModel; only a trained text classifier .* can be used directly"):
        open_model(f"hf:{make_model(tmp_path / 'body')}")
    broken = tmp_path / "broken"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier)
    weights = {key: value for key, value in model.state_dict().items() if not key.startswith("classifier")}
    model.save_pretrained(broken, state_dict=weights)
    make_tokenizer().save_pretrained(broken)
    with pytest.raises(ConfigError, match="lacks 2 weights of a bert"):
        open_model(f"hf:{broken}")
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_model(f"hf:{tmp_path / 'nowhere'}")


def copied(classifier, folder, **settings):
    """Copy the classifier with other words in its configuration."""
    shutil.copytree(classifier, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def test_plugins_that_a_folder_records_are_on_the_model(classifier, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    attach(model, PLUGINS["squeeze"]())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(tmp_path / "more")
    make_tokenizer().save_pretrained(tmp_path / "more")
    opened = open_model(f"hf:{tmp_path / 'more'}").model
    tokens = make_tokenizer()(sentences(1)[0][0], return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(opened(**tokens).logits, model(**tokens).logits, atol=1e-5)
    assert len(list(saccade.predict(f"hf:{tmp_path / 'more'}", ["the film is good"]))) == 1
    damaged = copied(tmp_path / "more", tmp_path / "other", saccade_plugins=[{"name": "no_such", "options": {}}])
    with pytest.raises(ConfigError, match="with the plug-ins no_such"):
        open_model(f"hf:{damaged}")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type = 'multi_label_classification' and 2 labels"),
        ({"problem_type": "regression"}, "problem_type = 'regression' and 2 labels"),
        ({"id2label": {"0": "score"}}, "problem_type = 'None' and 1 label. Only a classifier that chooses one of two"),
        ({"id2label": {"0": "bad", "2": "good"}}, "from 0 without gaps"),
        ({"architectures": 5}, "architectures"),
        ({"architectures": [5]}, "5"),
        ({"id2label": 5}, "cannot be opened"),
        ({"id2label": {"a": "b", "1": "c"}}, "cannot be opened"),
    ],
)
def test_what_does_not_choose_one_of_several_labels_is_refused(classifier, tmp_path, settings, told):
    folder = copied(classifier, tmp_path / "other", **settings)
    with pytest.raises(ConfigError, match=told):
        open_model(f"hf:{folder}")


def test_a_tilde_stands_for_the_home_folder(classifier, monkeypatch):
    monkeypatch.setenv("HOME", str(classifier.parent))
    assert open_model("hf:~/judge").spec.outputs == ("bad", "good")
