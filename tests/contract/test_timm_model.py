"""What timm's own tests ask of a model beyond its methods: data settings, levels of features, graphs."""

import pytest
import timm
import torch
from timm.models import create_feature_extractor, get_notrace_functions, get_notrace_modules
from torchvision.models import feature_extraction

from support.backbones import COLUMNS, FAMILIES, NAMES, PYRAMIDS, shallow

every_name = pytest.mark.parametrize("name", NAMES)
full = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "glnet_nano" else [pytest.mark.slow]) for name in NAMES]
)
each_family_or_slow = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAMILIES else [pytest.mark.slow]) for name in NAMES]
)


def leaves():
    return {
        "leaf_modules": get_notrace_modules(),
        "autowrap_functions": get_notrace_functions(),
        "param_shapes_constant": True,
    }


@pytest.mark.parametrize("name", PYRAMIDS)
def test_pool_size_is_that_of_the_unpooled_map(name):
    model = shallow(name, num_classes=7).eval()
    side = model.default_cfg["input_size"][-1]
    with torch.inference_mode():
        features = model.forward_features(torch.randn(1, 3, side, side))
        assert features.shape[1:] == (model.num_features, *model.default_cfg["pool_size"])
        model.reset_classifier(0, "")
        assert model(torch.randn(1, 3, side, side)).shape[2:] == model.default_cfg["pool_size"]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_no_pool_size(name):
    assert timm.models.get_pretrained_cfg(name).pool_size is None


@every_name
def test_without_classes_num_features_is_the_width_of_the_answer(name):
    model = shallow(name, num_classes=0).eval()
    with torch.inference_mode():
        assert model(torch.randn(1, 3, 64, 64)).shape == (1, model.num_features)
    assert model.num_features == model.head_hidden_size


@pytest.mark.parametrize("name", COLUMNS)
def test_features_only_gives_the_last_three_levels_of_a_column(name):
    model = shallow(name, depth=4, features_only=True).eval()
    assert model.feature_info.module_name() == ["blocks.1", "blocks.2", "blocks.3"]
    with torch.inference_mode():
        maps = model(torch.randn(1, 3, 64, 64))
    assert len(maps) == 3
    assert {tuple(x.shape) for x in maps} == {tuple(maps[0].shape)}
    assert len(shallow(name, depth=2, features_only=True).feature_info.channels()) == 2


@each_family_or_slow
@pytest.mark.parametrize("size", [(64, 64), (72, 100), (20, 33)], ids=str)
def test_a_traced_graph_answers_like_the_model(name, size):
    model = shallow(name, num_classes=7).eval()
    nodes = feature_extraction.get_graph_node_names(model, tracer_kwargs=leaves())[1]
    graph = feature_extraction.create_feature_extractor(model, [nodes[-1]], tracer_kwargs=leaves())
    x = torch.randn(2, 3, *size)
    with torch.inference_mode():
        torch.testing.assert_close(graph(x)[nodes[-1]], model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_graph_gives_a_block_inside_the_network(name):
    model = shallow(name, num_classes=7).eval()
    path = "stages.1.blocks.0" if name in PYRAMIDS else "blocks.1"
    heard = []
    model.get_submodule(path).register_forward_hook(lambda _module, _args, out: heard.append(out))
    x = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        model(x)
        graph = create_feature_extractor(model, {path: "block"})
        torch.testing.assert_close(graph(x)["block"], heard[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_traced_graph_trains_every_parameter(name):
    model = shallow(name, num_classes=7).train()
    nodes = feature_extraction.get_graph_node_names(model, tracer_kwargs=leaves())[0]
    graph = feature_extraction.create_feature_extractor(model, [nodes[-1]], tracer_kwargs=leaves()).train()
    graph(torch.randn(2, 3, 64, 64))[nodes[-1]].square().mean().backward()
    assert all(p.grad is not None for p in graph.parameters())


@full
def test_a_whole_variant_is_traced(name):
    model = timm.create_model(name).eval()
    side = min(128, model.default_cfg["input_size"][-1])
    nodes = feature_extraction.get_graph_node_names(model, tracer_kwargs=leaves())[1]
    graph = feature_extraction.create_feature_extractor(model, [nodes[-1]], tracer_kwargs=leaves())
    x = torch.randn(1, 3, side, side)
    with torch.inference_mode():
        torch.testing.assert_close(graph(x)[nodes[-1]], model(x), rtol=1e-4, atol=1e-5)
