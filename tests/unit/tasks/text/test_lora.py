"""A decoder of today, in small: LoRA and the second-order head trained, resumed, compared, exported, served."""

import httpx
import pytest
import torch
import transformers

import saccade
from saccade.building.build import load_model
from saccade.deployment.app import create_app
from saccade.deployment.predict import predict
from saccade.deployment.serve import _open
from saccade.plugins import LoRA, attach
from saccade.training.loop import Interrupted, Loop
from support.serving import running
from support.texts import make_model, sentences, write_tsv

LAYERS = 1
HEAD = "second_order:num_heads=1,head_dim=4,drop_rate=0.3"
ADAPTERS = "lora:rank=2,alpha=8,drop_rate=0.2"
PAIRS = ["the film is good\ta song", "a dull song , and very bad\ta film", "good\tthe film is good"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = [[text, "a film", label] for text, label in sentences(32)]
    return write_tsv(tmp_path_factory.mktemp("rte") / "train.tsv", ["sentence1", "sentence2", "label"], rows).parent


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    words = ["[UNK]", *sorted({word for text, _ in sentences(200) for word in text.split()})]  # no class token
    return make_model(tmp_path_factory.mktemp("llama"), "llama", vocabulary=words, layers=LAYERS)


def train(data, model, out, **more):
    options = {"epochs": 2, "batch_size": 8, "lr": 1e-2, "device": "cpu", "quiet": True, **more}
    options.setdefault("plugins", [ADAPTERS, HEAD])
    return saccade.train(str(data), task="text", model=str(model), out=out, **options)


@pytest.fixture(scope="module")
def run(data, llama, tmp_path_factory):
    return train(data, llama, tmp_path_factory.mktemp("lora") / "run").path


def shares(target):
    return [dict(one.answers) for one in predict(target, PAIRS)]


def test_adapters_move_and_the_decoders_own_weights_do_not(run, llama):
    model, _ = load_model(run)
    own = transformers.LlamaModel.from_pretrained(llama).state_dict()
    body = {name: value for name, value in model.model.state_dict().items() if ".lora." not in name}
    assert body.keys() == own.keys()
    for name, value in own.items():  # in front of the rows of [CLS] and [SEP]
        assert torch.equal(body[name][: len(value)], value), name
    assert len(body["embed_tokens.weight"]) == len(own["embed_tokens.weight"]) + 2
    adapters = {name: value for name, value in model.state_dict().items() if name.endswith("lora_B.weight")}
    assert len(adapters) == LAYERS * 7
    assert all(value.abs().max() > 1e-4 for value in adapters.values())
    assert (model.model.embed_tokens.lora.weight.abs().amax(1) > 1e-4).all()
    assert {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"model", "score"}


def test_a_run_stopped_midway_and_resumed_equals_one_that_was_not(run, data, llama, tmp_path, monkeypatch):
    look = Loop._checkpoint_or_stop

    def stop(self):
        if self.step == 4:
            self.stop_signal = 15
        look(self)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_checkpoint_or_stop", stop)
        with pytest.raises(Interrupted):
            train(data, llama, tmp_path / "parted")
    saccade.train(resume=tmp_path / "parted", quiet=True)
    one, two = (load_model(path)[0].state_dict() for path in (run, tmp_path / "parted"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_all_weights_and_adapters_are_compared(data, llama, tmp_path):
    options = {"epochs": 1, "batch_size": 8, "device": "cpu", "seeds": 2, "quiet": True}
    arms = ["base", f"lora:={ADAPTERS}+{HEAD}"]
    result = saccade.compare(str(data), task="text", model=str(llama), arms=arms, out=tmp_path / "out", **options)
    assert result.metric == "accuracy"
    base, lora = (load_model(path)[0] for path in sorted((tmp_path / "out" / "runs").glob("*/seed-0")))
    assert all(p.requires_grad for p in base.parameters())
    assert not lora.model.layers[0].self_attn.q_proj.weight.requires_grad


def test_an_exported_graph_answers_as_the_run(run, tmp_path):
    done = saccade.export(run, out=tmp_path / "made")
    assert done.files[0].parity.same == 1
    for got, want in zip(shares(done.files[0].path), shares(run), strict=True):
        assert got == pytest.approx(want, abs=1e-5)


def test_the_server_answers_evaluation_and_explanation_read_it(run):
    with running(create_app([_open(run, device="cpu", trust=False)])) as address:
        texts = {name: (None, text) for name, text in zip(("text", "pair"), PAIRS[0].split("\t"), strict=True)}
        answer = httpx.post(f"{address}/predict", files=texts, timeout=60).json()
    assert answer["share"] == pytest.approx(max(shares(run)[0].values()), abs=1e-5)
    assert 0 <= saccade.evaluate(run, quiet=True).runs["run"].metrics["accuracy"].value <= 1
    (view,) = saccade.explain(run, PAIRS[0], views=["words"], method="integrated").samples[0].views
    assert [entry["word"] for entry in view.figures[0].numbers["words"]][-1] == "[CLS]"


def test_a_folder_with_adapters_is_opened_and_trained_on(run, data, llama, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(llama, num_labels=2)
    attach(model, LoRA(rank=2))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.lora.lora_B.weight.fill_(0.5)
    model.save_pretrained(tmp_path / "kept")
    transformers.AutoTokenizer.from_pretrained(llama).save_pretrained(tmp_path / "kept")
    again = saccade.from_pretrained(tmp_path / "kept")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    train(data, tmp_path / "kept", tmp_path / "run", plugins=["lora:rank=2"], lr=1e-12, epochs=1)
    begun = load_model(tmp_path / "run")[0].model.layers[0].mlp.up_proj
    torch.testing.assert_close(begun.lora.lora_B.weight, torch.full((24, 2), 0.5))
    torch.testing.assert_close(begun.weight, model.model.layers[0].mlp.up_proj.weight)
