"""What a plug-in learned goes with its backbone into another model, or is named as left behind."""

import pytest
import torch

from saccade.building.build import build_model, parse_plugin
from saccade.data.spec import InputSpec
from saccade.models import CheckpointError
from saccade.plugins import PLUGINS
from saccade.plugins.pretrained import describe_plugin
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig
from saccade.tasks.opening import find_task
from support.transferring import ALL, HEADS, assert_carried, config_for, is_head, of_plugins, spec_for, started, trained

ROUND = [("classify", "segment"), ("segment", "detect"), ("detect", "classify")]  # each plug-in goes this way
WAYS = [(task, other) for task in HEADS for other in HEADS if (task, other) not in ROUND]


def assert_arrives(file, source, other, *plugins, but=()):
    """Start another model from a file, at another size and for other classes, and return it and its settings."""
    spec = spec_for(other, size=48, outputs="xy")
    config = config_for(other, plugins, file)
    model, notes = build_model(config, spec, seed=0), spec.notes
    carried = assert_carried(model, source, but=but)
    for plugin in plugins:
        if plugin not in WITHOUT_PARAMETERS:
            assert any(note.startswith(f"{plugin}: parameters loaded from {file.name}") for note in notes)
    assert not carried & {name.removeprefix("backbone.") for name in model.new_parameters}
    assert not [note for note in notes if "identity" in note or "changes the features" in note]
    assert not [note for note in notes if "not loaded" in note and any(name in note for name in carried)]
    return model, config, spec


WITHOUT_PARAMETERS = ("broadcast",)


@pytest.mark.parametrize("plugin", [one for one in ALL if not is_head(one)])
def test_what_a_plugin_learned_goes_through_every_task_at_other_sizes_and_back(plugin, tmp_path):
    spared = "spare_pyramid" in plugin  # a classifier feeds no pyramid
    file, source = trained(tmp_path, "segment" if spared else "classify", plugin)
    for number, other in enumerate(["detect", "segment"] if spared else ["segment", "detect", "classify"]):
        but = ["norm."] if number else []  # which dense tasks take off
        model, config, spec = assert_arrives(file, source, other, plugin, but=but)
        file = tmp_path / f"{number}.safetensors"
        save_model(file, model.state_dict(), config, spec)


@pytest.mark.parametrize(("task", "other"), WAYS)
def test_all_plugins_together_arrive_from_any_task_in_any_other(task, other, tmp_path):
    plugins = ("token_embedding", "broadcast:scale=true", "uniform", "squeeze:position=both", "extra_block")
    file, source = trained(tmp_path, task, *plugins)
    assert_arrives(file, source, other, *plugins)


@pytest.mark.parametrize("plugin", ALL)
def test_the_same_model_answers_as_the_run_it_starts_from(plugin, tmp_path):
    task = "segment" if "spare_pyramid" in plugin else "classify"
    file, source = trained(tmp_path, task, plugin)
    model, _ = started(file, task, plugin)
    assert model.new_parameters == frozenset()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), source(x))


@pytest.mark.parametrize("plugin", [one for one in ALL if is_head(one)])
def test_a_classification_head_keeps_what_does_not_depend_on_the_classes(plugin, tmp_path):
    file, source = trained(tmp_path, "classify", plugin)
    model, notes = started(file, "classify", plugin, outputs="xyz")  # as many, of other names
    own, others = model.state_dict(), source.state_dict()
    for name in of_plugins(model):
        of_classes = name.rpartition(".")[0].endswith(("class_fc", "word_fc"))
        assert torch.equal(own[name], others[name]) != of_classes, name
        assert (name in model.new_parameters) == of_classes
    assert any("was trained for 'a', 'b', 'c'" in note for note in notes)


@pytest.mark.parametrize("plugin", [one for one in ALL if is_head(one)])
def test_a_classification_head_follows_classes_in_another_order(plugin, tmp_path):
    file, source = trained(tmp_path, "classify", plugin)
    model, notes = started(file, "classify", plugin, outputs="cab")
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x), source(x)[:, [2, 0, 1]])
    assert any("in another order" in note for note in notes)


@pytest.mark.parametrize("other", ["segment", "detect"])
def test_a_dense_task_takes_the_backbone_and_names_the_classification_head_that_it_leaves(other, tmp_path):
    file, source = trained(tmp_path, "classify", "broadcast:scale=true", "second_order")
    model, notes = started(file, other, "broadcast:scale=true")
    assert assert_carried(model, source)
    assert any("second_order" in note and "not loaded" in note for note in notes)
    assert not any("--plugin second_order" in note for note in notes)  # which the task would refuse


@pytest.mark.parametrize("plugin", ALL)
def test_a_model_without_the_plugin_is_refused_or_says_so(plugin, tmp_path):
    task = "segment" if "spare_pyramid" in plugin else "classify"
    file, _ = trained(tmp_path, task, plugin)
    name = plugin.partition(":")[0]
    if name in ("token_embedding", "uniform"):  # which stand in the place of parts of the host
        with pytest.raises(CheckpointError, match=rf"trained with the plug-in {plugin}.*--plugin {plugin}"):
            started(file, task)
        return
    _, notes = started(file, task)
    assert any(f"was trained with {plugin}" in note and f"--plugin {plugin}" in note for note in notes)


FOLDERS = ["text", "vqa"]


@pytest.fixture(scope="module", params=FOLDERS)
def hosted(request, tmp_path_factory):
    """A folder of Hugging Face with plug-ins that learned, its model, and settings of a model that starts from it."""
    from saccade.tasks.huggingface import describe_host
    from support.questions import make_vilt
    from support.texts import make_model

    task, tmp_path = request.param, tmp_path_factory.mktemp("hosted")
    plain = (make_model if task == "text" else make_vilt)(tmp_path / "plain")
    kind = find_task(task).hosts.host_kind
    plugins = ["broadcast:scale=true", "squeeze:layers=[0,1],position=mlp_front,reduction=4"]
    plugins += ["second_order:head_dim=4,num_heads=2"] if task == "text" else []

    def build(folder, *plugins, outputs="ab"):
        spec = spec_for(task, outputs=outputs)
        spec.extra["host"] = describe_host(str(folder), spec.outputs, kind=kind)
        config = ModelConfig(name=str(folder), plugins=list(plugins), pretrained=True)
        return build_model(config, spec, seed=0), spec.notes

    model, notes = build(plain, *plugins)
    assert not notes or "pooler" in notes[0]
    torch.manual_seed(5)
    with torch.no_grad():
        for name in of_plugins(model):
            model.state_dict()[name].normal_()
    model.save_pretrained(tmp_path / "learned")
    return tmp_path / "learned", model, build, plugins


def test_a_folder_of_hugging_face_gives_its_plugins_what_they_learned(hosted):
    folder, source, build, plugins = hosted
    model, notes = build(folder, *plugins)
    own, others = model.state_dict(), source.state_dict()
    assert of_plugins(model)
    assert all(torch.equal(own[name], others[name]) for name in of_plugins(model))
    for plugin in plugins:
        assert f"{plugin}: parameters loaded from {folder.name}" in notes
    model, notes = build(folder, *plugins, outputs="xyz")
    own = model.state_dict()
    for name in of_plugins(model):
        assert torch.equal(own[name], others[name]) != name.rpartition(".")[0].endswith(("class_fc", "word_fc")), name


def test_a_folder_of_hugging_face_whose_plugins_are_left_out_says_so(hosted):
    folder, _, build, plugins = hosted
    _, notes = build(folder)
    for one in plugins:
        assert any(f"was trained with {one}" in note and f"--plugin {one}" in note for note in notes), notes


@pytest.mark.parametrize("plugin", ALL)
def test_a_configuration_of_hugging_face_keeps_every_option_of_a_plugin(plugin):
    name, options = parse_plugin(plugin)
    made = PLUGINS[name](**options)
    again = PLUGINS[name](**describe_plugin(made)["options"])
    assert vars(again) == vars(made)


def test_every_option_that_a_test_gives_is_one_of_the_plugin():
    assert all(parse_plugin(text) for text in ALL)


def test_another_task_with_the_same_classes_is_named(tmp_path):
    file, _ = trained(tmp_path, "classify")
    spec = InputSpec(tuple("abc"), 3, 32, [0.5] * 3, [0.5] * 3, task="multilabel", extra={"fit": True})
    build_model(config_for("classify", [], file), spec, seed=0)
    assert any("trained for the task classify: 'a'" in n and "the task multilabel: 'a'" in n for n in spec.notes)
