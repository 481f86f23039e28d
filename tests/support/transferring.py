"""Helpers that several files of the tests of transfer use."""

import torch

from saccade.building.build import build_model, is_task
from saccade.data.spec import InputSpec
from saccade.plugins import PLUGINS, attached
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig

VARIANTS = {  # beside the defaults of each registered plug-in
    "broadcast": ["scale=true", "scale=true,layers=all,position=both", "scale=true,spare_pyramid=true"],
    "extra_block": ["kind=mlp,position=1"],
    "lora": ["rank=2,norms=true"],
    "second_order": ["beside=true", "fusion=late", "pooling=gcp"],
    "squeeze": ["reduction=4,position=mlp_mid"],
    "token_embedding": ["kind=resnet", "norm=true", "kind=linear"],
    "uniform": ["variant=B,layers=upper", "variant=C"],
}
ON_MODELS = [name for name in PLUGINS if not is_task(PLUGINS[name])]
ALL = ON_MODELS + [f"{name}:{more}" for name in ON_MODELS for more in VARIANTS.get(name, [])]
HEADS = {"classify": None, "segment": "fpn:width=16,inner=32", "detect": "retinanet:width=16,depth=1"}


def is_head(plugin):
    """Whether a plug-in stands in the place of a classifier, which no dense task has."""
    return plugin.startswith("second_order")


def config_for(task, plugins, file=None, host="test_vit"):
    return ModelConfig(name=host, head=HEADS[task], plugins=list(plugins), checkpoint=file and str(file))


def spec_for(task, outputs="abc", size=32):
    return InputSpec(tuple(outputs), 3, size, [0.5] * 3, [0.5] * 3, task=task, extra={"fit": True})


def trained(tmp_path, task, *plugins, host="test_vit", **spec):
    """Write the weights of a run that moved every parameter, and return the file and its model."""
    made, config = spec_for(task, **spec), config_for(task, plugins, host=host)
    model = build_model(config, made, seed=3)
    torch.manual_seed(11)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.02)
        for name, value in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                value.add_(torch.rand_like(value))
    file = tmp_path / f"{task}.safetensors"
    save_model(file, model.state_dict(), config, made)
    return file, model.eval()


def started(file, task, *plugins, host="test_vit", **spec):
    made = spec_for(task, **spec)
    return build_model(config_for(task, plugins, file, host=host), made, seed=0).eval(), made.notes


def of_backbone(model):
    """Return a model's tensors by the names that they have in the backbone."""
    found = model.state_dict()
    if any(name.startswith("backbone.") for name in found):
        found = {name.removeprefix("backbone."): v for name, v in found.items() if name.startswith("backbone.")}
    return found


def of_plugins(model):
    """Return the names, in the model, of the tensors that its plug-ins brought."""
    paths = {id(module): name for name, module in model.named_modules()}
    roots = [paths[id(module)] for handle in attached(model) for module in handle.modules()]
    return [key for key in model.state_dict() if any(key.startswith(f"{root}.") for root in roots)]


def assert_carried(model, source, *, but=()):
    """Every tensor of a plug-in, and every one of a shape that the backbone keeps, is the source's."""
    own, others = of_backbone(model), of_backbone(source)
    plugins = {name.removeprefix("backbone.") for name in of_plugins(model)}
    for name in plugins:
        assert torch.equal(own[name], others[name]), name
    for name, value in own.items():
        same = name in others and others[name].shape == value.shape
        if same and not name.startswith(("head", "fc", "second_order", *but)):
            assert torch.equal(value, others[name]), name
    return plugins
