"""`saccade kernels`, and the flag of the other verbs."""

import json

import pytest

from saccade.cli import main
from saccade.commands.kernels import COMPILING_ON_CPU
from saccade.kernels import switch
from saccade.settings import ConfigError, TrainConfig, overlay, parse_settings, read_yaml, to_yaml
from support.toy_kernels import CountedLinear, FusedBlock, row


def listed(capsys, *words):
    assert main(["kernels", "--json", *words]) == 0
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)["kernels"]}


def test_every_kernel_is_listed_with_why_it_is_not_used(rows, capsys, monkeypatch):
    rows(
        row(FusedBlock, gain="1.2x", record="h200.md"),
        row(CountedLinear, name="second", devices=("cuda",), triton=True, modes=("infer",)),
        row(CountedLinear, name="third", workaround=True),
    )
    found = listed(capsys, "--device", "cpu")
    assert {name: (one["used"], one["reason"]) for name, one in found.items()} == {
        "toy": (True, None),
        "second": (False, "it only supports cuda"),
        "third": (True, None),
    }
    assert (found["toy"]["gain"], found["toy"]["record"], found["second"]["modes"]) == ("1.2x", "h200.md", ["infer"])
    monkeypatch.setenv(switch.VARIABLE, "off")
    found = listed(capsys, "--device", "cpu")
    assert (found["toy"]["used"], found["toy"]["reason"]) == (False, "SACCADE_KERNELS disables it")
    assert found["third"]["used"]
    main(["kernels", "--device", "cpu"])
    table = capsys.readouterr().out
    assert all(word in table for word in ("toy", "second", "third", "1.2x"))
    assert COMPILING_ON_CPU in " ".join(table.split())


def test_an_empty_table_says_that_nothing_applies(rows, capsys):
    rows()
    main(["kernels", "--device", "cpu"])
    assert "no kernel applies" in capsys.readouterr().out
    assert listed(capsys) == {}


@pytest.mark.parametrize("verb", ["train", "compare", "predict", "serve", "benchmark"])
def test_the_switch_is_a_flag_of_every_verb_that_has_kernels(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "--kernels auto|off|NAME,..." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "value"), [(["--kernels", "off"], "off"), (["--kernels=-gelu"], "-gelu"), ([], "auto")]
)
def test_the_flag_is_the_setting_of_a_run(words, value, capsys):
    assert main(["train", "--print-config", *words]) == 0
    assert read_yaml(capsys.readouterr().out, source="it")["engine"]["kernels"] == value


def test_off_is_a_word_also_where_yaml_reads_it_as_no():
    config = overlay(TrainConfig(), parse_settings(["engine.kernels=off"]))
    assert config.engine.kernels == "off"
    assert overlay(TrainConfig(), read_yaml(to_yaml(config), source="it")).engine.kernels == "off"
    with pytest.raises(ConfigError, match=r"engine\.kernels = 3 \(int\) was given; it takes a string"):
        overlay(TrainConfig(), parse_settings(["engine.kernels=3"]))


def test_an_exported_file_has_no_kernels_to_name(tmp_path, capsys):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"x")
    assert main(["predict", str(file), "x.png", "--kernels", "gelu"]) == 2
    assert "runs without kernels" in " ".join(capsys.readouterr().err.split())
