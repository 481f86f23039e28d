"""What a plug-in learned goes with its backbone into another model, or is named as left behind."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from saccade.building.build import build_model, is_task, parse_plugin
from saccade.building.transfer import _read
from saccade.data.spec import InputSpec
from saccade.models import CheckpointError
from saccade.plugins import PLUGINS, attached
from saccade.plugins.pretrained import describe_plugin
from saccade.runs.weights import save_model
from saccade.settings import ModelConfig
from saccade.tasks.opening import find_task

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
ROUND = [("classify", "segment"), ("segment", "detect"), ("detect", "classify")]  # each plug-in goes this way
WAYS = [(task, other) for task in HEADS for other in HEADS if (task, other) not in ROUND]


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


@pytest.mark.parametrize(
    ("plugin", "task"),
    [(one, "segment" if "spare_pyramid" in one else "classify") for one in ALL if not is_head(one)]
    + [(one, task) for one in ON_MODELS if not is_head(one) for task in ("segment", "detect")],
)
def test_a_plugin_on_weights_that_never_had_it_begins_as_it_does_on_any(plugin, task, tmp_path):
    file, source = trained(tmp_path, "classify")
    model, notes = started(file, task, plugin)
    fresh = build_model(config_for(task, [plugin]), spec_for(task), seed=0)
    others, kept = of_backbone(source), plugin.startswith("uniform")
    own, first = model.state_dict(), fresh.state_dict()
    brought = of_plugins(model)
    for name, value in own.items():
        if name in brought and not kept:  # uniform heads take over the host's trained ones
            assert torch.equal(value, first[name]), name
        elif name not in brought and name.removeprefix("backbone.") in others and not name.startswith("head"):
            assert torch.equal(value, others[name.removeprefix("backbone.")]), name
    if kept:
        assert not torch.equal(own[brought[0]], first[brought[0]])
    assert {name for name in brought if name in dict(model.named_parameters())} <= model.new_parameters
    assert any(note.startswith(plugin) and ("identity" in note or "changes" in note) for note in notes)


DIFFERENT = [
    ("squeeze", "squeeze:reduction=4"),
    ("extra_block", "extra_block:position=1"),
    ("extra_block", "extra_block:kind=mlp"),
    ("broadcast:scale=true", "broadcast:scale=true,position=mlp_mid"),
    ("token_embedding", "token_embedding:kind=resnet"),
]


@pytest.mark.parametrize(("had", "asked"), DIFFERENT)
def test_a_plugin_that_does_not_fit_the_files_begins_anew_and_is_named(had, asked, tmp_path):
    file, _ = trained(tmp_path, "classify", had)
    model, notes = started(file, "classify", asked)
    fresh = build_model(config_for("classify", [asked]), spec_for("classify"), seed=0).state_dict()
    brought = of_plugins(model)
    assert brought
    assert all(torch.equal(model.state_dict()[name], fresh[name]) for name in brought)
    assert any(note.startswith(f"{asked}: reinitialized") and had in note and brought[0] in note for note in notes)


@pytest.mark.parametrize(("had", "asked"), [("uniform", "uniform:variant=B"), ("uniform", "uniform:variant=C")])
def test_parts_of_the_host_that_another_variant_cannot_take_are_refused_by_name(had, asked, tmp_path):
    file, _ = trained(tmp_path, "classify", had)
    with pytest.raises(CheckpointError, match=rf"trained with the plug-in {had}.*blocks\.0\.attn.*--plugin {had}\b"):
        started(file, "classify", asked)


def test_a_plugin_with_other_options_that_takes_the_parameters_says_what_they_were_trained_as(tmp_path):
    file, _ = trained(tmp_path, "classify", "broadcast:scale=true,position=mlp_front")
    _, notes = started(file, "classify", "broadcast:scale=true")
    assert any("where it was broadcast:scale=true,position=mlp_front" in note for note in notes)
    file, _ = trained(tmp_path, "classify", "broadcast")
    _, notes = started(file, "classify", "broadcast:layers=all")
    assert any(note.startswith("broadcast:layers=all") and "where it was broadcast" in note for note in notes)
    _, notes = started(file, "classify", "broadcast:layers=upper")  # its default
    assert not any("where it was" in note or "was trained with" in note for note in notes)


def test_a_uniform_head_in_more_blocks_takes_what_was_trained_in_either(tmp_path):
    file, source = trained(tmp_path, "classify", "uniform:layers=upper")
    model, notes = started(file, "classify", "uniform:layers=all")
    own, others = model.state_dict(), source.state_dict()
    assert torch.equal(own["blocks.5.attn.value.weight"], others["blocks.5.attn.value.weight"])
    assert torch.equal(own["blocks.0.attn.proj.weight"], others["blocks.0.attn.proj.weight"])
    width = own["blocks.0.attn.value.weight"].shape[0]
    assert torch.equal(own["blocks.0.attn.value.weight"], others["blocks.0.attn.qkv.weight"][-width:])
    assert any("blocks.0.attn" in note and "reinitialized" in note for note in notes)


def test_several_plugins_keep_their_order_and_a_new_one_joins_them(tmp_path):
    plugins = ("token_embedding", "broadcast:scale=true", "uniform", "squeeze")
    file, source = trained(tmp_path, "classify", *plugins)
    model, _ = started(file, "segment", "extra_block", *plugins)
    own, others = of_backbone(model), of_backbone(source)
    names = {name.removeprefix("backbone.") for name in of_plugins(model)}
    new = {name for name in names if "extra_block" in name}
    assert new
    assert all(torch.equal(own[name], others[name]) for name in names - new)
    assert {f"backbone.{name}" for name in new} <= model.new_parameters


def test_bare_weights_of_a_model_with_plugins_fill_them(tmp_path):
    _, source = trained(tmp_path, "classify", "uniform", "token_embedding", "broadcast:scale=true")
    file = tmp_path / "bare.safetensors"
    save_file(source.state_dict(), file)
    model, _ = started(file, "classify", "uniform", "token_embedding", "broadcast:scale=true")
    assert_carried(model, source)


@pytest.mark.parametrize("host", ["sot_7", "glnet_nano", "test_resnet"])
@pytest.mark.parametrize(
    ("task", "other"), [("classify", "classify"), ("classify", "segment"), ("segment", "classify")]
)
def test_hosts_of_other_kinds_carry_theirs_too(host, task, other, tmp_path):
    plugins = {"sot_7": ["uniform", "squeeze"], "glnet_nano": ["broadcast:scale=true"], "test_resnet": []}[host]
    file, source = trained(tmp_path, task, *plugins, host=host)
    model, notes = started(file, other, *plugins, host=host, size=48, outputs="xy")
    assert bool(assert_carried(model, source)) == bool(plugins)
    if (task, other) == ("segment", "classify"):
        assert any("for the task segment, which removes" in note and ".weight" in note for note in notes)


def test_a_head_of_another_kind_leaves_the_backbone_and_its_plugins(tmp_path):
    file, source = trained(tmp_path, "segment", "broadcast:scale=true")
    spec = spec_for("segment")
    config = ModelConfig(
        name="test_vit", head="upernet:width=16,aux=8", plugins=["broadcast:scale=true"], checkpoint=str(file)
    )
    assert assert_carried(build_model(config, spec, seed=0), source)


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


REORDER = torch.tensor([2, 0, 1])
DENSE = [
    ("detect", "retinanet:width=16,depth=1"),
    ("detect", "atss:width=16,depth=1,groups=4"),
    ("detect", "reppoints_v2:width=16,depth=1,groups=4"),
    ("detect", "sparse_rcnn:width=16,proposals=4,looks=1"),
    ("detect", "mask_rcnn:width=16,hidden=16,sampled=8,proposals=8"),
    ("detect", "cascade:width=32,hidden=16,sampled=8,proposals=8,convs=1"),
    ("segment", "fpn:width=16,inner=32"),
    ("segment", "upernet:width=4,aux=4"),
    ("segment", "unet:width=4,aux=3"),
]


def test_every_detector_of_the_registry_is_among_those_that_are_reordered():
    from saccade.tasks.detection.detector import HEADS as DETECTORS

    assert {head.partition(":")[0] for task, head in DENSE if task == "detect"} >= set(DETECTORS)


@pytest.mark.parametrize(("task", "head"), DENSE)
@pytest.mark.parametrize("names", ["abc", "abcd"])
def test_a_dense_head_follows_another_order_of_classes_or_begins_anew_and_says_so(task, head, names, tmp_path):
    order = [*range(1, len(names)), 0]
    file = tmp_path / "model.safetensors"
    config = ModelConfig(name="test_resnet", head=head)
    source = build_model(config, spec_for(task, outputs=names), seed=3).eval()
    save_model(file, source.state_dict(), config, spec_for(task, outputs=names))
    spec = spec_for(task, outputs=[names[place] for place in order])
    config = ModelConfig(name="test_resnet", head=head, checkpoint=str(file))
    model = build_model(config, spec, seed=0).eval()
    said = " ".join(spec.notes)
    if task == "segment":
        x = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model(x), source(x)[:, order])
        assert all(
            torch.equal(v, source.state_dict()[key])
            for key, v in model.state_dict().items()
            if key.startswith("decoder.")
        )
        if model.auxiliary is not None:
            assert torch.equal(model.auxiliary[-1].weight, source.auxiliary[-1].weight[order])
            assert torch.equal(model.auxiliary[1].weight, source.auxiliary[1].weight)
        assert "its classifier was reordered" in said
        return
    fresh = build_model(ModelConfig(name="test_resnet", head=head), spec, seed=0)
    assert all(torch.equal(value, fresh.head.state_dict()[key]) for key, value in model.head.state_dict().items())
    assert {name for name, _ in model.named_parameters() if name.startswith("head.")} <= model.new_parameters
    assert "in another order" in said
    assert "not loaded from model.safetensors" in said
    assert "was reordered" not in said


def test_a_dense_head_of_which_a_part_is_left_out_still_follows_the_classes(tmp_path):
    file = tmp_path / "model.safetensors"
    config = ModelConfig(name="test_resnet", head="fpn:width=16,inner=32,aux=8")
    source = build_model(config, spec_for("segment"), seed=3)
    save_model(file, source.state_dict(), config, spec_for("segment"))
    config = ModelConfig(name="test_resnet", head="fpn:width=16,inner=32,aux=4", checkpoint=str(file))
    model = build_model(config, spec_for("segment", outputs="cab"), seed=0)
    assert torch.equal(model.classifier[1].weight, source.classifier[1].weight[REORDER])
    model = build_model(config, spec_for("segment", outputs="xyz"), seed=0)
    assert not torch.equal(model.classifier[1].weight, source.classifier[1].weight)


def test_layers_as_wide_as_there_are_classes_are_not_reordered_with_the_classifier(tmp_path):
    plugin = "second_order:head_dim=4,num_heads=2"
    probe = build_model(config_for("classify", [plugin]), spec_for("classify"), seed=0).second_order.layer
    widths = {m.out_features for m in probe.modules() if hasattr(m, "out_features")} - {3}
    for count in sorted(width for width in widths if width < 200):
        names = [f"class {place:03}" for place in range(count)]
        file, source = trained(tmp_path, "classify", plugin, outputs=names)
        model, _ = started(file, "classify", plugin, outputs=names[::-1])
        x = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model(x), source(x).flip(1))


def test_a_plugin_given_twice_is_found_again_by_its_options(tmp_path):
    asked, first = "extra_block:position=2", "extra_block:position=0"
    file, _ = trained(tmp_path, "classify", asked)
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["saccade"])
    about["model"]["plugins"] = [first, asked]  # as an earlier version allowed
    save_file(load_file(file), file, metadata={"saccade": json.dumps(about)})
    _, notes = started(file, "classify", asked)
    assert f"{asked}: parameters loaded from {file.name}" in notes
    assert any(f"was trained with {first}" in note for note in notes)
    assert not any(f"was trained with {asked}" in note for note in notes)


def test_a_long_plugin_is_read_whole_and_shortened_only_where_it_is_shown():
    layers = ",".join(map(str, range(100)))
    part = _read(f"squeeze:layers=[{layers}],reduction=4")
    assert part.options["reduction"] == 4
    assert len(part.text) < 210
    assert not _read(f"squeeze:layers={'[' * 4000}").found
    assert len(_read("x" * 5000).name) <= 200


@pytest.mark.parametrize("had", ["broadcast", "broadcast:scale=true,position=mlp_mid"])
def test_a_plugin_is_no_identity_for_weights_that_were_trained_with_another_of_its_kind(had, tmp_path):
    file, _ = trained(tmp_path, "classify", had)
    _, notes = started(file, "classify", "broadcast:scale=true")
    assert any(note.startswith("broadcast:scale=true") and f"with {had}" in note for note in notes)
    assert not any("identity" in note or "changes the features" in note for note in notes)


@pytest.mark.parametrize(("other", "said"), [("segment", False), ("detect", False), ("classify", True)])
def test_what_a_dense_task_took_off_is_named_only_where_the_model_has_it(other, said, tmp_path):
    file, _ = trained(tmp_path, "segment", host="test_resnet")
    _, notes = started(file, other, host="test_resnet")
    taken = [note for note in notes if "which removes" in note]
    assert bool(taken) == said
    assert all("fc.weight" in note for note in taken)


def test_another_task_with_the_same_classes_is_named(tmp_path):
    file, _ = trained(tmp_path, "classify")
    spec = InputSpec(tuple("abc"), 3, 32, [0.5] * 3, [0.5] * 3, task="multilabel", extra={"fit": True})
    build_model(config_for("classify", [], file), spec, seed=0)
    assert any("trained for the task classify: 'a'" in n and "the task multilabel: 'a'" in n for n in spec.notes)
