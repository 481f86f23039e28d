"""The recipes of texts: every row of SoT's Table S-4, and what authors of later models name, as an optimizer."""

import pytest
import torch
import transformers

from saccade.tasks.text.task import ClassifyText
from saccade.training.optim import build_optimizer, rate_at, warmup_of
from saccade.training.recipes import configure

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SMALL |= {"vocab_size": 12, "max_position_embeddings": 16}
GPT = transformers.OpenAIGPTConfig(vocab_size=12, n_positions=16, n_embd=16, n_layer=1, n_head=2)
BERT = transformers.BertConfig(**SMALL)
MODERN = transformers.ModernBertConfig(**SMALL, pad_token_id=0, cls_token_id=1, sep_token_id=2)
DEBERTA = transformers.DebertaV2Config(**SMALL)
LLAMA = transformers.LlamaConfig(**SMALL, num_key_value_heads=1)
# Folder, configuration, batch, highest rate, betas, eps, decay, as the table has them; warm-up and largest gradient
# norm as the code has them that the paper names.
ROWS = [
    ("gpt", GPT, 32, 6.25e-5, (0.9, 0.999), 1e-8, 0.01, 0.002, 1.0),
    ("bert", BERT, 24, 2e-5, (0.9, 0.999), 1e-8, 0.0, 0.1, 1.0),
    ("spanbert", BERT, 32, 2e-5, (0.9, 0.999), 1e-6, 0.01, 0.1, 1.0),
    ("roberta", transformers.RobertaConfig(**SMALL), 32, 2e-5, (0.9, 0.98), 1e-6, 0.1, 0.06, None),
]
# Folder, configuration, recipe, as above, epochs, steps of warm-up of 1000 and of 100,000 steps: as their authors' code
# has them. A recipe that is not named is the default.
LATER = [
    ("modernbert", MODERN, "modernbert", 32, 8e-5, (0.9, 0.98), 1e-6, 8e-6, 2, 0, 0),
    ("deberta-v3-base", DEBERTA, "deberta", 64, 1.5e-5, (0.9, 0.999), 1e-6, 0.01, 3, 200, 1000),
    ("deberta-v3-small", DEBERTA, "deberta", 64, 4.5e-5, (0.9, 0.999), 1e-6, 0.01, 2, 200, 1000),
    ("deberta-v3-large", DEBERTA, "deberta", 64, 7e-6, (0.9, 0.999), 1e-6, 0.01, 2, 200, 500),
    ("llama", LLAMA, "decoder", 8, 2e-4, (0.9, 0.999), 1e-6, 0.01, 5, 200, 500),
]


def made(folder, config, recipe="text"):
    config.save_pretrained(folder)
    settings = configure(recipe, {"task": "text", "model.name": str(folder)})
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    return settings, model, build_optimizer(ClassifyText(model), settings.optim, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "config", "batch", "rate", "betas", "eps", "decay", "warmup", "clip"), ROWS, ids=[r[0] for r in ROWS]
)
def test_optimizer_of_every_row_of_the_table(tmp_path, name, config, batch, rate, betas, eps, decay, warmup, clip):
    settings, model, optimizer = made(tmp_path / name, config)
    assert type(optimizer) is torch.optim.AdamW
    assert (settings.optim.batch_size, settings.schedule.epochs, settings.optim.clip) == (batch, 10, clip)
    assert warmup_of(settings.schedule, 100) == round(1000 * warmup)
    assert all((group["lr"], group["betas"], group["eps"]) == (rate, betas, eps) for group in optimizer.param_groups)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for path, p in model.named_parameters():
        plain = path.endswith(".bias") or "LayerNorm" in path or ".ln_" in path
        assert decays[id(p)] == (0.0 if plain else decay), path


@pytest.mark.parametrize("row", LATER, ids=[row[0] for row in LATER])
def test_later_models_have_their_authors_settings(tmp_path, row):
    name, config, recipe, batch, rate, betas, eps, decay, epochs, few, many = row
    settings, model, optimizer = made(tmp_path / name, config, "decoder" if recipe == "decoder" else None)
    assert settings.recipe == recipe
    assert type(optimizer) is torch.optim.AdamW
    assert (settings.optim.batch_size, settings.schedule.epochs) == (batch, epochs)
    assert settings.optim.clip == (None if recipe == "decoder" else 1.0)
    assert all((group["lr"], group["betas"], group["eps"]) == (rate, betas, eps) for group in optimizer.param_groups)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert all(decays[id(p)] == (decay if p.ndim == 2 else 0.0) for p in model.parameters())
    for steps, warmup in ((1000, few), (100_000, many)):
        each = steps / epochs
        rates = [rate_at(n, steps_per_epoch=each, peak=1.0, schedule=settings.schedule) for n in (0, warmup, steps)]
        assert rates == pytest.approx([1 / (warmup + 1), 1.0, 0.0])


def test_a_decoder_is_trained_by_adapters_of_its_attention_and_smoothed_labels(tmp_path):
    settings, _, _ = made(tmp_path / "llama", LLAMA, "decoder")
    assert settings.model.plugins == ["lora:rank=4,alpha=32,drop_rate=0.1,targets=attention"]
    assert settings.loss.smoothing == 0.1
    assert made(tmp_path / "other", LLAMA, None)[0].recipe == "text"  # all weights, without the extra


def test_a_modernbert_whose_configuration_cannot_be_read_is_known_by_its_name():
    given = {"task": "text", "model.name": "answerdotai/ModernBERT-base-that-is-not-here"}
    assert configure(None, given).recipe == "modernbert"


def test_decay_is_decoupled_from_the_gradient(tmp_path):
    _, model, optimizer = made(tmp_path / "roberta", ROWS[3][1])
    weight = model.classifier.out_proj.weight
    with torch.no_grad():
        weight.fill_(0.05)
    for _ in range(2000):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    want = torch.full_like(weight, 0.05 * (1 - 2e-5 * 0.1) ** 2000)  # 0.0498
    torch.testing.assert_close(weight.detach(), want, rtol=1e-4, atol=0)


def test_rate_rises_over_a_tenth_and_falls_in_a_straight_line_to_zero(tmp_path):
    settings, _, _ = made(tmp_path / "bert", BERT)
    rates = [rate_at(step, steps_per_epoch=11, peak=1.0, schedule=settings.schedule) for step in (0, 5, 11, 60.5, 110)]
    assert rates == pytest.approx([1 / 12, 6 / 12, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("epochs", [15, 20, 30])
def test_the_warm_up_is_the_same_share_of_the_tables_longer_trainings(tmp_path, epochs):
    BERT.save_pretrained(tmp_path)
    given = {"model.name": str(tmp_path), "schedule.epochs": epochs}
    assert warmup_of(configure("text", given).schedule, 100) == 10 * epochs
    assert warmup_of(configure("text", {**given, "schedule.warmup": 2}).schedule, 100) == 200
    assert warmup_of(configure("text", {**given, "schedule.warmup_steps": 7}).schedule, 100) == 7
