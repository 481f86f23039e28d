"""What is asked before any work needs no PyTorch: help, the version, answers to typing errors, names to complete."""

import gc
import os
import re
import subprocess
import sys

import pytest

import saccade
from saccade.cli import VERBS, main
from saccade.support.importing import quick_imports

HEAVY = ("torch", "timm", "numpy", "jsonargparse", "saccade.kernels")


def run(code, *words):
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


def asked(*words):
    """Return exit status, what was printed, and the heavy modules that the command imported."""
    code = (
        "import sys\nfrom saccade.cli import main\n"
        "try: status = main(sys.argv[1:])\nexcept SystemExit as stop: status = stop.code or 0\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])\nsys.exit(status)"
    )
    done = run(code, *words)
    out, _, heavy = done.stdout.rpartition("heavy: ")
    return done.returncode, out, done.stderr, heavy.strip()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["kernels", "--help"], ["models"]])
def test_help_version_and_models_import_nothing_heavy(words):
    status, out, _, heavy = asked(*words)
    assert (status, heavy) == (0, "[]")
    assert "saccade" in out or "glnet_nano" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["modles"], "did you mean 'models'?"),
        (["train", "--epochz", "3"], "unknown flag --epochz; did you mean '--epochs'?"),
        (["train", "--epoch=3"], "did you mean '--epochs'?"),
        (["benchmark", "--modle", "x"], "did you mean '--model'?"),
        (["train", "--learning-rate", "3"], "unknown flag --learning-rate; did you mean '--lr'?"),
        (["train", "--weight-decay", "0"], "unknown flag --weight-decay; use --set optim.weight_decay=VALUE"),
        (["train", "--label_smoothing", "0"], "unknown flag --label_smoothing; use --set loss.smoothing=VALUE"),
        (["--versoin"], "did you mean '--version'?"),
        (
            ["benchmark", "--batch-size", "many", "--model", "a", "--peer", "b"],
            "--batch-size: invalid int value: 'many'",
        ),
        (["data", "chek"], "'check'"),
        (["train", "-x"], "unknown flag -x"),
    ],
)
def test_a_typing_error_is_one_line_with_the_nearest_name_and_imports_nothing_heavy(words, told):
    status, out, err, heavy = asked(*words)
    assert (status, heavy, out) == (2, "[]", "")
    assert told in err
    assert err.count("\n") == 1
    assert "usage" not in err


def test_a_value_that_looks_like_no_flag_is_let_through(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--lr", "-0.1", "--help"])
    assert "peak learning rate" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_a_default_once(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert verb in text
    assert re.search(r"\(default: [^)]*\) \(default", text) is None


def test_a_reader_that_has_seen_enough_is_no_error():
    code = "import sys\nfrom saccade.cli import main\nsys.exit(main())"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code, "models"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.stderr == ""


def test_import_is_light_and_what_is_named_is_there_once_it_is_used():
    code = (
        "import sys, saccade\n"
        "assert 'torch' not in sys.modules\n"
        "from timm.models import is_model\n"
        "assert is_model('glnet_nano')\n"
        "assert 'saccade.kernels' not in sys.modules\n"
        "assert {'train', 'compare', 'attach', 'Handle', 'plugins'} <= set(dir(saccade))\n"
        "from saccade import train, Handle, InputSpec\n"
        "assert saccade.models.list_backbones() == saccade.list_backbones()\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


NEEDLESS = (
    *("kernels", "training.loop", "training.train", "comparison", "evaluation", "explanation", "deployment", "tuning"),
    *("scipy.stats", "scipy.linalg", "onnx", "matplotlib", "transformers"),
)


def test_printing_resolved_settings_imports_only_what_resolving_needs():
    code = (
        "import sys\nfrom saccade.cli import main\n"
        "assert main(['train', '--print-config', '--device', 'cpu', '--set', 'data.train_limit=64']) == 0\n"
        f"found = [name for name in {NEEDLESS} if name in sys.modules or f'saccade.{{name}}' in sys.modules]\n"
        "assert not found, found"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "img_size: 28" in done.stdout


def test_every_name_that_is_listed_is_there():
    assert [name for name in dir(saccade) if not hasattr(saccade, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = saccade.trian


HOWEVER = """
import copy, importlib, importlib.util, sys
from importlib.machinery import PathFinder
import saccade

class Shared:  # one loader for many modules, as pytest's is for those that it rewrites
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in ("timm", "colorsys") else None
        if spec is not None:
            self.own, spec.loader = spec.loader, self
        return spec
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        self.own.exec_module(module)

importlib.reload(saccade)
assert sum("Timm" in type(finder).__name__ for finder in sys.meta_path) == 1
found = importlib.util.find_spec("timm")  # whether it is installed, as other libraries ask
assert found.loader.get_source("timm") and copy.deepcopy(found).loader.path == found.origin
shared = Shared()
sys.meta_path.insert(1, shared)
import timm
assert timm.is_model("glnet_nano") and timm.__loader__ is timm.__spec__.loader is shared
assert "exec_module" not in vars(shared)
import colorsys
importlib.reload(saccade)
importlib.reload(timm)
assert timm.is_model("glnet_nano")
"""


def test_backbones_are_registered_however_timm_is_found_and_loaded_anew():
    done = run(HOWEVER)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_backbones_are_registered_in_processes_that_inherit_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\nimport saccade\nimport timm\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        assert pool.apply(timm.is_model, ['glnet_nano'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_collected_while_a_command_imports(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()  # the user says when
    finally:
        gc.enable()


def test_what_is_collected_stays_so_where_pytorch_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    with quick_imports():
        assert gc.isenabled()
