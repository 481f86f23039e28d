import json
import subprocess
import sys

import pytest

from saccade.cli import main


def test_models_prints_every_backbone_beside_the_papers_figure(capsys):
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 20
    assert rows["glnet_nano"]["paper_params_m"] is None
    assert rows["glnet_4g"]["params_m"] == 27.002
    assert rows["glnet_4g"]["paper_params_m"] == 27
    assert rows["sot_7"]["img_size"] == 112


def test_models_table_shows_all_columns(capsys, monkeypatch):
    monkeypatch.setattr("saccade.models.list_backbones", lambda: ["sot_7", "t2t_vit_7"])
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert "sot_7" in out
    assert "GMACs" in out


def test_benchmark_prints_ratios(capsys):
    flags = ["--model", "sot_7", "--peer", "vit_tiny_patch16_224", "--batch-size", "1", "--img-size", "32"]
    assert main(["benchmark", *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("| sot_7 |") == 2
    assert "1.00x" in out


def test_unknown_model_names_the_nearest(capsys):
    assert main(["benchmark", "--model", "glnet_stk", "--peer", "resnet18"]) == 2
    err = capsys.readouterr().err
    assert "unknown model 'glnet_stk'" in err
    assert "glnet_stl" in err


@pytest.mark.parametrize(
    "flags", [["modles"], ["benchmark", "--model", "sot_7"], ["benchmark", "--batch-size", "many"]]
)
def test_misspelt_commands_exit_with_2(flags):
    with pytest.raises(SystemExit) as error:
        main(flags)
    assert error.value.code == 2


def test_command_is_installed():
    done = subprocess.run([sys.executable, "-m", "saccade.cli", "--help"], capture_output=True, text=True, check=True)
    assert "benchmark" in done.stdout


def test_import_registers_and_does_nothing_else():
    code = (
        "import os, torch, timm\n"
        "before = (torch.get_rng_state(), dict(os.environ), set(timm.list_models()))\n"
        "import saccade\n"
        "assert torch.equal(before[0], torch.get_rng_state())\n"
        "assert before[1] == dict(os.environ)\n"
        "assert set(timm.list_models()) - before[2] == set(saccade.list_backbones())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    assert not done.stderr
