"""Context Broadcasting's ablations: every arm of the table in docs/plugins.md is read, built and run."""

import re
from pathlib import Path

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import saccade
from saccade.building.build import parse_plugin
from saccade.comparison.plan.arms import parse_arm
from saccade.layers.broadcast import Broadcast

DOCS = Path(__file__).parents[3] / "docs" / "plugins.md"
PLUGINS = {
    "broadcast": saccade.ContextBroadcast,
    "extra_block": saccade.ExtraBlock,
    "squeeze": saccade.SqueezeExcite,
    "uniform": saccade.UniformHead,
}
SECTION = DOCS.read_text(encoding="utf-8").split("## Context Broadcasting's ablations as arms")[1].split("\n## ")[0]
ARMS = re.findall(r"\| `([^`]+)` \|$", SECTION, re.MULTILINE)


def build(text, **options):
    config = parse_arm(text).configure("deit", {})
    model = timm.create_model(config.model.name, **{**config.model.options, **options})
    for plugin in config.model.plugins:
        name, settings = parse_plugin(plugin)
        saccade.attach(model, PLUGINS[name](**settings))
    return model


def test_the_table_has_every_study():
    assert len(ARMS) == 22
    assert len(set(ARMS)) == 21  # the end of the MLP is in two tables


@pytest.mark.parametrize("text", sorted(set(ARMS)))
def test_arm_of_the_table_is_built_and_run(text):
    with torch.device("meta"):
        model = build(text)
        assert model(torch.randn(1, 3, 224, 224)).shape == (1, 1000)
    assert text.endswith("num_heads: 1}") or saccade.attached(model)


def test_an_extra_mlp_costs_what_an_extra_attention_does():
    attention, mlp, wide = (
        cost(build(text, num_classes=10))
        for text in (
            "model.options={depth: 8}+extra_block:kind=attention",
            "model.options={depth: 8}+extra_block:kind=mlp",
            "model.options={depth: 8}+extra_block:kind=mlp,mlp_ratio=2.51",
        )
    )
    base = cost(build("model.options={depth: 8}", num_classes=10))
    assert mlp[0] - base[0] == pytest.approx(attention[0] - base[0], rel=0.001)
    assert wide[1] - base[1] == pytest.approx(attention[1] - base[1], rel=0.01)


def cost(model):
    model = model.to("meta").eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, 224, 224, device="meta"))
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops()


def test_without_lambda_the_whole_mean_is_added():
    x = torch.randn(2, 5, 4)
    layer = Broadcast(4, scale="fixed")
    assert not list(layer.parameters())
    torch.testing.assert_close(layer(x), x + x.mean(1, keepdim=True))
    learned = Broadcast(4, scale=True)
    with torch.no_grad():
        learned.scale.fill_(1)
    torch.testing.assert_close(layer(x), learned(x))
    with pytest.raises(ValueError, match="scale='half'"):
        saccade.ContextBroadcast(scale="half")
