"""Training on texts: tokens counted once, batches by length, exact resume, three heads, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

import saccade
from saccade.building.build import load_model
from saccade.data.draws import GroupOrder
from saccade.runs.run import Run
from saccade.settings import ConfigError
from saccade.tasks.text import hosts
from saccade.tasks.text.metrics import matthews
from saccade.tasks.text.tokens import Reading, TextError
from saccade.training.loop import Interrupted, Loop
from support.texts import GOOD, PLAIN, WORDS, make_model, sentences, write_cola, write_tsv

HEADS = {
    "ClassT": (),
    "WordT": ("second_order:class_token=none,num_heads=1,head_dim=4",),
    "ClassT+WordT": ("second_order:num_heads=1,head_dim=4,drop_rate=0.5",),
}
QUICK = {"epochs": 2, "batch_size": 8, "lr": 3e-3, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def cola(tmp_path_factory):
    return write_cola(tmp_path_factory.mktemp("cola"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("gpt"), "gpt")


def train(data, model, out, **options):
    return saccade.train(str(data), task="text", model=str(model), out=out, **{**QUICK, **options})


@pytest.mark.parametrize("host", ["bert", "gpt"])
@pytest.mark.parametrize("head", HEADS)
def test_heads_train_and_come_back_with_their_tokenizer(cola, request, tmp_path, host, head):
    done = train(cola, request.getfixturevalue(host), tmp_path / "run", plugins=HEADS[head])
    assert done.metric == "matthews"
    scores = Run.open(tmp_path / "run").scores()
    assert scores.columns["pair"].shape == (12, 2)
    assert done.score == pytest.approx(matthews(scores.columns["pair"]))
    model, spec = load_model(tmp_path / "run")
    reading = Reading.of(spec)
    data = saccade.tasks.ClassifyText.reader_for().open(Run.open(tmp_path / "run").config().data)
    encode = saccade.tasks.ClassifyText.codec(spec).encoder()
    task = saccade.tasks.ClassifyText.build(model, spec).eval()
    batch = encode.collate([encode(data.val.sample(n)) for n in range(len(data.val))])
    with torch.no_grad():
        together = task.answer(batch)["output"]
        alone = torch.cat([task.answer(encode.collate([encode(data.val.sample(n))]))["output"] for n in range(12)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert (together.argmax(1).numpy() == scores.columns["pair"][:, 1]).all()
    assert reading.limit == 32


def test_a_model_learns_which_words_count(cola, bert, tmp_path):
    data = write_cola(tmp_path / "more", train=400, dev=80)
    done = train(data, bert, tmp_path / "run", plugins=HEADS["WordT"], epochs=8, lr=1e-2, batch_size=16)
    assert done.score > 0.9


def test_runs_of_a_text_model_have_a_mean_that_answers(cola, bert, tmp_path):
    runs = [train(cola, bert, tmp_path / f"run{seed}", seed=seed, epochs=1).path for seed in (0, 1)]
    mean = saccade.average_weights(runs, tmp_path / "mean.safetensors")
    own, others = load_model(mean)[0].state_dict(), [load_model(run)[0].state_dict() for run in runs]
    assert all(torch.allclose(own[name], (others[0][name] + others[1][name]) / 2) for name in own if "_ids" not in name)
    found = saccade.evaluate(mean, data=str(cola), quiet=True)
    assert 0 <= next(iter(found.runs.values())).metrics["accuracy"].value <= 1


def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(cola, bert, tmp_path, monkeypatch):
    settings = {"keep.every_steps": 1}
    train(cola, bert, tmp_path / "whole", plugins=HEADS["ClassT+WordT"], settings=settings)
    look = Loop._checkpoint_or_stop

    def stop(self):
        if self.step == 7:
            self.stop_signal = 15
        look(self)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_checkpoint_or_stop", stop)
        with pytest.raises(Interrupted):
            train(cola, bert, tmp_path / "parted", plugins=HEADS["ClassT+WordT"], settings=settings)
    saccade.train(resume=tmp_path / "parted", quiet=True)
    one, two = (load_model(tmp_path / name)[0].state_dict() for name in ("whole", "parted"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_texts_that_changed_are_not_resumed(bert, tmp_path):
    data = write_cola(tmp_path / "data")
    train(data, bert, tmp_path / "run", epochs=1)
    file = data / "dev.tsv"
    file.write_text(file.read_text().replace("film", "song"))
    with pytest.raises(ValueError, match=r"names, labels or contents of the .* validation samples changed"):
        saccade.train(resume=tmp_path / "run", quiet=True)


def test_pairs_are_told_apart(bert, tmp_path):
    rows = [[str(n), text, "a film", label] for n, (text, label) in enumerate(sentences(40))]
    write_tsv(tmp_path / "rte" / "train.tsv", ["index", "sentence1", "sentence2", "label"], rows)
    done = train(tmp_path / "rte", bert, tmp_path / "run", epochs=1)
    assert done.metric == "accuracy"
    spec = load_model(tmp_path / "run")[1]
    encode = saccade.tasks.ClassifyText.codec(spec).encoder()
    batch = encode.collate([{"ids": t.ids, "kinds": t.kinds} for t in [Reading.of(spec).encode([("good", "a film")])]])
    assert batch["input_ids"][0, :6].tolist() == [2, 4, 3, WORDS.index("a"), WORDS.index("film"), 3]
    assert batch["token_type_ids"][0, :6].tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(TextError, match="trained on two texts, a pair"):
        Reading.of(spec).encode([("good",)])


def test_batches_are_of_like_length_and_an_epoch_holds_each_text_once():
    lengths = torch.randint(2, 60, (203,), generator=torch.Generator().manual_seed(0))
    order = GroupOrder(length=203, batch_size=16, seed=5, groups=lengths)
    index, _ = order.epoch(0)
    assert len(set(index.tolist())) == len(index) == order.steps * 16
    spread = [int(np.ptp(lengths[index[part]].numpy())) for part in order.batches(start=0)]
    assert np.mean(spread) < 8 < np.ptp(lengths.numpy())
    means = [float(lengths[index[part]].float().mean()) for part in order.batches(start=0)]
    assert means != sorted(means)
    assert torch.equal(order.epoch(3)[0], GroupOrder(length=203, batch_size=16, seed=5, groups=lengths).epoch(3)[0])
    assert not torch.equal(order.epoch(0)[0], order.epoch(1)[0])


def test_a_set_smaller_than_a_batch_is_one_batch():
    order = GroupOrder(length=5, batch_size=16, seed=0, groups=torch.ones(5))
    assert sorted(order.epoch(0)[0].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "rows", [[[0, 0], [1, 1]], [[0, 1], [1, 0]], [[0, 0], [1, 0]], [[2, 2], [1, 0], [0, 0], [2, 1]]]
)
def test_matthews_is_that_of_scikit_learn(rows):
    judged = pytest.importorskip("sklearn.metrics")
    pairs = np.array(rows * 3 + [[0, 0]])
    assert matthews(pairs) == pytest.approx(judged.matthews_corrcoef(pairs[:, 0], pairs[:, 1]))


def test_long_texts_are_refused_or_cut_and_told(bert, tmp_path, capsys):
    long = " ".join([*PLAIN * 6, GOOD[0]])
    rows = [*([list(row) for row in sentences(20)]), [long, "good"]]
    write_tsv(tmp_path / "a.tsv", ["sentence", "label"], rows)
    told = r"1 of \d+ texts have more tokens than the maximum of 32: \w+\[20\] \(45 tokens\).*truncate=true"
    with pytest.raises(ValueError, match=told):
        train(tmp_path / "a.tsv", bert, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    options = {**QUICK, "epochs": 1, "quiet": False}
    saccade.train(str(tmp_path / "a.tsv"), task="text:truncate=true", model=str(bert), out=tmp_path / "run", **options)
    assert "cut to 32 tokens" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="at most 32 tokens"):
        saccade.train(str(tmp_path / "a.tsv"), task="text:max_length=64", model=str(bert), quiet=True)


def test_half_a_letter_is_refused(bert, tmp_path):
    rows = [json.dumps({"text": text, "label": label}) for text, label in [*sentences(20), ("\ud800 film", "good")]]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    with pytest.raises(TextError, match="an incomplete character"):
        train(tmp_path / "a.jsonl", bert, tmp_path / "run")


def test_a_tokenizer_of_another_model_is_refused(cola, tmp_path):
    model = make_model(tmp_path / "model", vocab_size=9)
    with pytest.raises(ConfigError, match="they do not belong together"):
        train(cola, model, tmp_path / "run")


def test_a_folder_without_tokenizer_or_model_is_refused(cola, bert, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text((bert / "config.json").read_text())
    with pytest.raises(ConfigError, match="tokenizer of"):
        train(cola, alone, tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot be opened"):
        train(cola, tmp_path / "nothing", tmp_path / "run")


@pytest.fixture
def stranger(bert, tmp_path):
    folder = tmp_path / "stranger"
    shutil.copytree(bert, folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    return folder


@pytest.mark.parametrize("kind", ["bert", "unheard_of"])
def test_code_in_a_strangers_folder_is_neither_run_nor_asked_about(cola, stranger, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    for name in ("config.json", "tokenizer_config.json"):
        told = json.loads((stranger / name).read_text())
        told |= {"model_type": kind, "auto_map": {f"Auto{part}": "evil.Evil" for part in ("Config", "Model")}}
        told["auto_map"] |= {"AutoModelForSequenceClassification": "evil.Evil", "AutoTokenizer": ["evil.T", "evil.T"]}
        (stranger / name).write_text(json.dumps(told))
    if kind == "bert":
        train(cola, stranger, tmp_path / "run", epochs=1)
    else:
        with pytest.raises(ConfigError, match="cannot be opened"):
            train(cola, stranger, tmp_path / "run")
    assert not (tmp_path / "ran").exists()


def test_pickled_and_damaged_weights_are_refused(cola, stranger, tmp_path):
    weights = stranger / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="cannot be opened"):
        train(cola, stranger, tmp_path / "run")
    weights.unlink()
    torch.save({"a": torch.zeros(1)}, stranger / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="are a pickle"):
        train(cola, stranger, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_of_another_kind_are_refused(cola, bert, gpt, tmp_path):
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for file in bert.iterdir():
        (mixed / file.name).write_bytes(((gpt if file.suffix == ".safetensors" else bert) / file.name).read_bytes())
    with pytest.raises(ConfigError, match=r"lacks .* weights of a bert"):
        train(cola, mixed, tmp_path / "run")


def test_a_text_that_ends_with_what_stands_for_padding_is_refused_without_a_class_token(gpt, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "mark_spec", lambda spec, reading, **_: reading)  # as in runs of earlier versions
    rows = [*([list(row) for row in sentences(20)]), ["good unheard", "good"]]
    write_tsv(tmp_path / "a.tsv", ["sentence", "label"], rows)
    with pytest.raises(ValueError, match="serves as padding"):
        train(tmp_path / "a.tsv", gpt, tmp_path / "run")


def test_the_seed_draws_the_head_and_scratch_the_rest(cola, bert, tmp_path):
    states = {}
    for name, seed, task in (("a", 0, "text"), ("b", 1, "text"), ("c", 7, "text:scratch=true")):
        options = {**QUICK, "epochs": 1, "lr": 1e-9, "seed": seed}
        saccade.train(str(cola), task=task, model=str(bert), out=tmp_path / name, **options)
        states[name] = load_model(tmp_path / name)[0].state_dict()
    body, head = "bert.embeddings.word_embeddings.weight", "classifier.weight"
    torch.testing.assert_close(states["a"][body], states["b"][body], atol=1e-6, rtol=0)
    assert not torch.allclose(states["a"][head], states["b"][head], atol=1e-3)
    assert not torch.allclose(states["a"][body], states["c"][body], atol=1e-3)


def test_a_strangers_file_names_no_other_weights_and_builds_no_unknown_model(cola, bert, tmp_path):
    train(cola, bert, tmp_path / "run", epochs=1)
    spec = load_model(tmp_path / "run")[1]
    for broken in (
        {"host": {"model_type": "timm_wrapper", "config": {}}},
        {"host": {"model_type": "bert", "config": {"hidden_size": "x", "id2label": {"0": "a", "1": "b"}}}},
        {"tokens": {**spec.extra["tokens"], "limit": 0}},
        {"tokens": {}},
        {"metric": "magic"},
        {"columns": 3},
    ):
        wrong = type(spec)(**{**vars(spec), "extra": {**spec.extra, **broken}})
        with pytest.raises(ValueError, match=r"its spec|spec"):
            saccade.tasks.ClassifyText.check_spec(wrong)


def test_late_fusion_and_broadcast_train_on_texts(cola, bert, tmp_path):
    plugins = ("broadcast:scale=true", "second_order:fusion=late,num_heads=1,head_dim=4")
    train(cola, bert, tmp_path / "run", plugins=plugins, epochs=1)
    assert load_model(tmp_path / "run")[0].training is False
    settings = (tmp_path / "run" / "report.html").read_text().partition("Differences from the recipe")[2]
    assert "schedule." in settings
    assert "img_size" not in settings.partition("All settings")[0]


@pytest.mark.slow
def test_heads_are_compared_by_matthews(cola, bert, tmp_path):
    arms = ["base", f"WordT:={HEADS['WordT'][0]}"]
    options = {**QUICK, "epochs": 1, "out": tmp_path / "out", "seeds": 2}
    result = saccade.compare(str(cola), task="text", model=str(bert), arms=arms, **options)
    assert result.metric == "matthews"
    assert (tmp_path / "out" / "report.html").is_file()
