"""The recipe of texts: every row of SoT's Table S-4 as an optimizer, its decay groups and its schedule."""

import pytest
import torch
import transformers

from saccade.tasks.text.task import ClassifyText
from saccade.training.optim import build_optimizer, rate_at
from saccade.training.recipes import configure

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SMALL |= {"vocab_size": 12, "max_position_embeddings": 16}
GPT = transformers.OpenAIGPTConfig(vocab_size=12, n_positions=16, n_embd=16, n_layer=1, n_head=2)
BERT = transformers.BertConfig(**SMALL)
# Folder, configuration, batch, highest rate, betas, eps, decay, as the table has them.
ROWS = [
    ("gpt", GPT, 32, 6.25e-5, (0.9, 0.999), 1e-8, 0.01),
    ("bert", BERT, 24, 2e-5, (0.9, 0.999), 1e-8, 0.0),
    ("spanbert", BERT, 32, 2e-5, (0.9, 0.999), 1e-6, 0.01),
    ("roberta", transformers.RobertaConfig(**SMALL), 32, 2e-5, (0.9, 0.98), 1e-6, 0.1),
]


def made(folder, config):
    config.save_pretrained(folder)
    settings = configure("text", {"model.name": str(folder)})
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    return settings, model, build_optimizer(ClassifyText(model), settings.optim, device=torch.device("cpu"))


@pytest.mark.parametrize(("name", "config", "batch", "rate", "betas", "eps", "decay"), ROWS, ids=[r[0] for r in ROWS])
def test_optimizer_of_every_row_of_the_table(tmp_path, name, config, batch, rate, betas, eps, decay):
    settings, model, optimizer = made(tmp_path / name, config)
    assert type(optimizer) is torch.optim.AdamW
    assert (settings.optim.batch_size, settings.schedule.epochs) == (batch, 10)
    assert all((group["lr"], group["betas"], group["eps"]) == (rate, betas, eps) for group in optimizer.param_groups)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for path, p in model.named_parameters():
        plain = path.endswith(".bias") or "LayerNorm" in path or ".ln_" in path
        assert decays[id(p)] == (0.0 if plain else decay), path


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
    settings, _, _ = made(tmp_path / "gpt", GPT)
    rates = [rate_at(step, steps_per_epoch=11, peak=1.0, schedule=settings.schedule) for step in (0, 5, 11, 60.5, 110)]
    assert rates == pytest.approx([1 / 12, 6 / 12, 1.0, 0.5, 0.0])
