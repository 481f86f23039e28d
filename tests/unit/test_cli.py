import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from saccade.cli import main
from support.images import class_folders, encoded, pixels
from support.training import TINY


def test_models_prints_every_backbone_beside_the_papers_figure(capsys):
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 20
    assert rows["glnet_nano"]["paper_params_m"] is None
    assert rows["glnet_4g"]["params_m"] == 27.002
    assert rows["glnet_4g"]["paper_params_m"] == 27
    assert rows["sot_7"]["img_size"] == 112


def test_models_table_shows_all_columns(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert "sot_7" in out
    assert "GMACs" in out


@pytest.mark.slow
def test_benchmark_prints_ratios(capsys):
    flags = ["--model", "glnet_nano", "--peer", "resnet10t", "--batch-size", "2", "--img-size", "32"]
    assert main(["benchmark", *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("| glnet_nano |") == 2
    assert "1.00x" in out


def test_unknown_model_names_the_nearest(capsys):
    assert main(["benchmark", "--model", "glnet_stk", "--peer", "resnet18"]) == 2
    err = capsys.readouterr().err
    assert "unknown model 'glnet_stk'" in err
    assert "glnet_stl" in err


def test_a_hugging_face_folder_without_its_task_is_told_what_to_add(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    assert main(["train", "--model", str(tmp_path)]) == 2
    assert "holds a Hugging Face model; name its task: --task text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--batch-size", "0"], "--batch-size 0 was given; it must be from 1"),
        (["--img-size", "-1"], "--img-size -1 was given"),
        (["--device", "gpu"], "device=gpu"),
        (["--device", "meta"], "device=meta"),
    ],
)
def test_a_benchmark_that_cannot_be_is_refused(flags, told, capsys):
    assert main(["benchmark", "--model", "sot_7", "--peer", "sot_7", *flags]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--seeds", "9" * 24], ["--seeds", "0"], ["--parallel", "0"]])
def test_a_comparison_of_no_or_countless_trainings_is_refused(flags, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--arm", "base", "--arm", "broadcast", "--plan", *flags]) == 2
    assert f"{flags[0]} {flags[1]} was given" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_want_of_memory_is_told_without_a_traceback(error, capsys, monkeypatch):
    def full(*_):
        raise error

    monkeypatch.setattr("saccade.commands.models.run", full)
    assert main(["models"]) == 2
    assert "saccade models: out of memory" in capsys.readouterr().err


def test_a_fault_is_seen_whole(monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("saccade.commands.models.run", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        main(["models"])


def test_overwrite_spares_images_and_projects(tmp_path, capsys):
    class_folders(tmp_path / "pics", {"a": 12, "b": 12})
    (tmp_path / "pics" / "config.yaml").write_text("a: 1\n")
    before = sorted(tmp_path.rglob("*"))
    settings = TINY | {"data.train_limit": None, "data.workers": 0, "data.img_size": 16}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    for out in ("pics", "pics/run", "."):
        flags = ["--out", str(tmp_path / out), "--overwrite", "--epochs", "1", *words]
        assert main(["train", str(tmp_path / "pics"), *flags]) == 2
        assert "the dataset, " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "flags",
    [
        ["benchmark", "--model=--", "--peer", "sot_7"],
        ["train", "--plugin=--"],
        ["modles"],
        ["benchmark", "--model", "sot_7"],
        ["benchmark", "--batch-size", "many"],
    ],
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


def test_training_through_the_command_writes_a_run_and_is_not_overwritten(tmp_path, capsys):
    out = str(tmp_path / "run")
    settings = [f"{name}={json.dumps(value)}" for name, value in TINY.items()]
    flags = ["--epochs", "1", "--out", out, *(word for text in settings for word in ("--set", text))]
    assert main(["train", *flags]) == 0
    assert "accuracy" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").exists()
    assert main(["train", *flags]) == 2
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "glnet_nanoo"], "glnet_nano"),
        (["--set", "optim.weigth_decay=0.1"], "optim.weight_decay"),
        (["--set", "schedule.epochs=many"], "whole number"),
        (["--recipe", "smal"], "small"),
        (["--plugin", "drlok"], "drloc"),
        (["--resume", "nowhere"], "does not exist"),
        (["--device", "cuda:99"], "GPU"),
        (["nowhere/at/all"], "does not exist"),
        (["--set", "keep.evaluate_every=0"], "keep.evaluate_every = 0 was given"),
        (["--set", "optim=3", "--set", "optim.lr=1"], "group"),
        (["--plugin", "drloc:weight=abc"], "a number"),
        (["--plugin", "drloc:weight=nan"], "weight = nan"),
        (["--plugin", "drloc:model=vit"], "no option 'model'"),
        (["--plugin", "drloc:hidden_dim=-1"], "hidden_dim"),
        (["--plugin", "broadcast:layers=3"], "a list of whole numbers"),
        (["--plugin", "token_label:labels=maps"], "no option 'labels'"),
        (["--plugin", "token_label:maps=nowhere"], "nowhere"),
        (["--set", "loss.class_weights=[1, 2]"], "the data has 10 classes"),
    ],
)
def test_a_wrong_command_is_answered_with_what_is_allowed(flags, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *flags]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_print_config_prints_settings_that_can_be_read_back(capsys):
    assert main(["train", "--epochs", "7", "--plugin", "broadcast+drloc", "--print-config"]) == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["schedule"]["epochs"] == 7
    assert settings["model"]["plugins"] == ["broadcast", "drloc"]


def odd_images(root):
    """Write class folders with every odd kind of image that can be read, and some that cannot."""
    class_folders(root, {"cat": 12, "dog with spaces": 12, "größe": 12})
    colours = Image.fromarray(pixels(99))
    colours.convert("CMYK").save(root / "cat" / "cmyk.jpg")
    colours.convert("P").save(root / "cat" / "palette.png")
    Image.fromarray(np.full((24, 24), 40_000, dtype=np.uint16)).save(root / "cat" / "sixteen.png")
    colours.save(root / "cat" / "animated.gif", save_all=True, append_images=[colours.rotate(90)])
    exif = Image.Exif()
    exif[274] = 6
    colours.save(root / "cat" / "turned.jpg", exif=exif)
    (root / "dog with spaces" / "cut.jpg").write_bytes(encoded(7)[:200])
    (root / "dog with spaces" / "text.jpg").write_text("this is no image")
    return root


def test_odd_images_are_trained_on_and_broken_ones_named(tmp_path, capsys):
    data = odd_images(tmp_path / "data")
    settings = TINY | {"data.train_limit": None, "data.workers": 0, "data.img_size": 16, "data.bad_limit": 0.2}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    assert main(["train", str(data), "--epochs", "1", "--out", str(tmp_path / "run"), *words]) == 0
    bad = json.loads((tmp_path / "run" / "bad_samples.json").read_text())
    assert {name.split("/")[-1] for name in bad} <= {"cut.jpg", "text.jpg"}
    assert main(["data", "check", str(data), "--json"]) == 1
    found = {finding["name"].split("/")[-1] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert {"cut.jpg", "text.jpg"} <= found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished tiny run and an image."""
    folder = tmp_path_factory.mktemp("verbs")
    settings = [f"{name}={json.dumps(value)}" for name, value in TINY.items()]
    flags = ["--epochs", "1", "--quiet", *(word for text in settings for word in ("--set", text))]
    assert main(["train", "--out", str(folder / "run"), *flags]) == 0
    Image.fromarray(pixels(3)).save(folder / "image.png")
    (folder / "text.png").write_text("this is no image")
    return folder / "run", folder / "image.png"


def test_evaluate_prints_intervals_and_writes_a_page(run, tmp_path, capsys):
    flags = [str(run[0]), "--limit", "30", "--out", str(tmp_path / "found"), "--quiet", "--json"]
    assert main(["evaluate", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "found" / "evaluation.json").read_text())
    assert (tmp_path / "found" / "evaluation.html").exists()
    assert main(["evaluate", *flags]) == 0
    assert (tmp_path / "found-2" / "evaluation.json").exists()


def test_explain_writes_a_page_and_names_the_answer(run, tmp_path, capsys):
    assert main(["explain", str(run[0]), str(run[1]), "--out", str(tmp_path / "seen")]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "seen" / "index.html")
    assert "image.png" in printed.err
    assert (tmp_path / "seen" / "numbers.json").exists()


def test_predict_answers_about_files_and_skips_bad_ones(run, capsys):
    assert main(["predict", str(run[0]), str(run[1].parent), "--form", "jsonl", "--quiet", "--top", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {Path(line["name"]).name for line in lines} >= {"image.png"}


def test_predict_exits_with_1_if_no_file_could_be_read(run, capsys):
    assert main(["predict", str(run[0]), "nowhere.png"]) == 1
    assert "nowhere.png: the file does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluate", "nowhere"], "nowhere"),
        (["explain", "RUN", "nowhere.png"], "nowhere.png"),
        (["explain", "RUN", "TEXT"], "image"),
        (["explain", "RUN", "IMAGE", "--views", "atention"], "attention"),
        (["explain", "RUN", "IMAGE", "--layers", "stages.9"], "stages"),
        (["predict", "nowhere.onnx", "IMAGE"], "nowhere.onnx"),
        (["export", "nowhere"], "nowhere"),
        (["export", "RUN", "--format", "onxx"], "onnx"),
        (["serve", "nowhere"], "nowhere"),
    ],
)
def test_wrong_input_of_a_verb_is_answered_with_what_is_allowed(words, told, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"RUN": str(run[0]), "IMAGE": str(run[1]), "TEXT": str(run[1].with_name("text.png"))}
    assert main([names.get(word, word) for word in words]) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_system_are_told_without_their_code(monkeypatch, capsys, tmp_path):
    def deny(_):
        raise PermissionError(13, "Permission denied", str(tmp_path / "file"))

    monkeypatch.setattr("saccade.commands.models.run", deny)
    assert main(["models"]) == 2
    told = capsys.readouterr().err
    assert "Errno" not in told
    assert "Permission denied; check that it exists and that you have permission to read and write it" in told
