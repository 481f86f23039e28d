"""Plug-ins that differ from the file's: which start anew, which are refused, which are named."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from saccade.building.build import build_model
from saccade.building.transfer import _read
from saccade.models import CheckpointError
from saccade.settings import ModelConfig
from support.transferring import (
    ALL,
    ON_MODELS,
    assert_carried,
    config_for,
    is_head,
    of_backbone,
    of_plugins,
    spec_for,
    started,
    trained,
)


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
