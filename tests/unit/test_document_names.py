"""Every name of code in the documents is one: functions are imported; settings, flags, options, files, routes exist."""

import inspect
import re
import shlex
import subprocess
import tomllib
from keyword import iskeyword

import pytest
import timm
import yaml

from saccade.building.build import PLUGINS, parse_plugin
from saccade.comparison.plan.arms import parse_arms
from saccade.explanation.request import all_views
from saccade.settings import ConfigError, TrainConfig, overlay, parse_settings
from saccade.settings.recipes import list_recipes
from saccade.tasks import TASKS
from saccade.tasks.opening import choose_task
from saccade.training.recipes import configure
from support.docs import PAGES, RECIPES, ROOT, Item, blocks, commands, spans
from support.names import GROUPS, SETTINGS, flags, parsers, resolve, texts, words

SPANS = [one for path in PAGES for one in spans(path)]
HEADERS = [
    Item(path.name, number, line)
    for path in RECIPES
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if line.startswith("# ")
]
TYPED = [one for path in [*PAGES, *RECIPES] for one in commands(path)]
CALL = re.compile(r"^(?:\w+\.)*\w+(?=\()")
ENDINGS = "py|yaml|md|json|jsonl|html|csv|tsv|txt|js|safetensors|onnx|pt2|npz|cls|jpg|JPEG"


def check(found):
    """Fail with what was found wrong, each with its page and line."""
    assert not found, "\n" + "\n".join(f"{item}: `{item.text}`: {reason}" for item, reason in found)


def is_call(text):
    return bool(CALL.match(text)) and text.endswith(")")


def test_marks_of_code_are_paired():
    """One too few, and what follows it is read inside out."""
    check([(item, "this is no code") for item in SPANS if "](" in item.text or " | " in item.text])


def test_python_names_are_imported():
    wrong = []
    for item in SPANS:
        path = re.sub(r"\(.*\)$", "", item.text)
        dotted = re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path)
        own = path.split(".")[0] not in {*GROUPS, *MEASURED, *OTHER_OBJECTS}
        if dotted and own and not re.search(rf"\.({ENDINGS})$", path) and item.text not in NOT_PYTHON:
            try:
                resolve(path)
            except LookupError:
                wrong.append((item, "there is nothing of that name"))
    check(wrong)


# Numbers of an evaluation, whose last parts stand for values; parts of a file's description; objects of examples.
MEASURED = {"corruption", "robust", "centre_occlusion", "patch_drop", "patch_shuffle", "fgsm", "pgd", "attack", "extra"}
OTHER_OBJECTS = {"p", "plan", "result", "Image", "task", "source", "data", "model", "FILE", "Module"}
NOT_PYTHON = {"saccade.readers", "saccade.views"}  # groups of entry points


def test_groups_of_entry_points_are_those_of_the_registries():
    named = {
        match for item in SPANS for match in re.findall(r"saccade\.(?:plugins|tasks|readers|views)(?=\"|$)", item.text)
    }
    assert [name for name in sorted(named) if f'group="{name}"' not in texts()] == []


def test_calls_have_arguments_of_their_functions():
    wrong = []
    for item in SPANS:
        if not is_call(item.text):
            continue
        path = CALL.match(item.text)[0]
        try:
            made = resolve(path)
        except LookupError:
            continue  # of another object: what is Python's own is seen to above
        if not callable(made):
            continue
        given = re.findall(r"[(,] ?(\w+)=", item.text)
        parameters = inspect.signature(made).parameters
        loose = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        wrong += [(item, f"{path} has no argument {name}") for name in given if name not in parameters and not loose]
    check(wrong)


def test_settings_are_in_the_tree_and_take_the_values_named():
    wrong = []
    for item in [*SPANS, *HEADERS]:
        for match in re.finditer(r"(?<![\w.-])(\w+)\.(\w+)(?:=([^,;+\s`]+(?:\{[^}]*\})?))?", item.text):
            group, name, value = match.groups()
            full = f"{group}.{name}"
            if group not in GROUPS or re.search(rf"\.({ENDINGS})\b", match[0]) or full in RESULTS:
                continue
            if full not in SETTINGS:
                wrong.append((item, f"{full} is no setting"))
            elif value and value.isascii() and not value.isupper() and "[" not in value and "{" not in value:
                try:
                    overlay(TrainConfig(), parse_settings([f"{full}={value}"]))
                except ConfigError as error:
                    wrong.append((item, str(error)))
    check(wrong)


RESULTS = {"data.val", "model.drop_path_rate"}  # attributes of objects in examples


def test_flags_are_of_a_verb():
    typed = [*SPANS, *HEADERS, *(line for path in PAGES for line in blocks(path, "console", "sh"))]
    wrong = [
        (item, f"no verb has {flag}")
        for item in typed
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", item.text)
        if flag not in flags() | OTHER_FLAGS
    ]
    check(wrong)


OTHER_FLAGS = {"--nproc-per-node", "--max-restarts"}  # torchrun's


@pytest.mark.parametrize("item", [one for one in TYPED if re.search(r"(^| )saccade(\.cli)? ", one.text)], ids=str)
def test_a_command_is_understood(item):
    text = re.sub(r"^.*?(?=saccade(\.cli)? )", "", re.sub(r"^\w+=\S+ ", "", item.text)).split(" > ")[0]
    _, verb, *rest = shlex.split(text)
    args = parsers()[verb].parse_args(rest)
    given = vars(args)
    for plugin in given.get("plugin") or ():
        parse_plugin(plugin)
    if given.get("task"):
        choose_task(given["task"])
    if isinstance(given.get("arm"), list):
        parse_arms([arm.replace("ARM", "squeeze") for arm in given["arm"]])
    if given.get("recipe") and "/" not in given["recipe"]:
        assert given["recipe"] in list_recipes()
    for view in (given.get("views") or "").split(","):
        assert not view or view in all_views()
    overlay(TrainConfig(), parse_settings(given.get("set") or []))


def test_options_of_plugins_and_tasks_exist():
    wrong = []
    for item in [*SPANS, *HEADERS]:
        for name, options in re.findall(r"(?<![\w=-])(\w+):((?:\w+=[^`+\s']*)+)", item.text):
            read = {**dict.fromkeys(PLUGINS, parse_plugin), **dict.fromkeys(TASKS, choose_task)}.get(name)
            for option in re.findall(r"(?:^|,)(\w+)=(?!value)", options) if read else ():
                value = re.search(rf"\b{option}=(\[[^\]]*\]|[^,]*)", options)[1]
                try:
                    read(f"{name}:{option}={value if value and value not in PLACES else DEFAULTS.get(option, 1)}")
                except ConfigError as error:
                    if "no option" in str(error) or value not in (*PLACES, ""):
                        wrong.append((item, str(error)))
    check(wrong)


PLACES = {"VALUE", "FILE", "NAME"}
DEFAULTS = {"loss": "ce"}


def test_keyword_options_are_arguments_somewhere():
    wrong = []
    for item in SPANS:
        match = re.match(r"([a-z]\w*)=", item.text)
        if match and match[1] not in words() | {"checkpoint_path"}:  # timm's
            wrong.append((item, f"nothing has an argument {match[1]}"))
    check(wrong)


def test_identifiers_are_in_the_sources_or_those_of_a_library():
    wrong = []
    for item in SPANS:
        text = item.text
        if not re.fullmatch(r"[A-Za-z]\w*", text) or iskeyword(text) or not re.search(r"_|[a-z][A-Z]", text):
            continue
        if text in words() or timm.is_model(text) or text in OF_OTHERS or text in list_recipes():
            continue
        if not re.search(rf"(?<!\w){text}(?!\w)", texts()):
            wrong.append((item, "the sources do not have it"))
    check(wrong)


OF_OTHERS = {"VILT_FOLDER", "NEW_IMAGES", "OTHER_RUN", "projector_scale_factors", "ViltForQuestionAnswering"}
OF_OTHERS |= {"ap_small", "ap_medium", "ap_large", "mean_absolute_error"}  # made of parts
OF_OTHERS |= {"SACCADE_COCO128"}  # read by a slow test


def test_files_that_are_named_exist_or_are_written():
    there = {path.name for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.*")}
    wrong = []
    for item in SPANS:
        for name in re.findall(rf"(?<![\w*{{}}./-])([\w-]+\.(?:{ENDINGS}))(?![\w.])", item.text):
            known = name in there or name in texts() or re.match(r"dev_\w+\.tsv", name)  # `dev=` names the rest
            if not known and not any(item.text.startswith(one) for one in ("saccade ", "torchrun ", "curl ")):
                wrong.append((item, f"there is no {name}"))
    check(wrong)


def test_paths_that_are_named_exist():
    wrong = []
    for item in SPANS:
        if not re.fullmatch(r"(?:[\w.]+/)+[\w.{},]*", item.text):
            continue
        places = (ROOT, ROOT / "src", ROOT / "src" / "saccade")
        ours = any((place / item.text.split("/")[0]).is_dir() for place in places) or item.text.endswith(".py")
        before, inside, after = re.fullmatch(r"([^{]*)(?:\{(.*)\})?(.*)", item.text).groups()
        names = [f"{before}{one}{after}" for one in (inside or "").split(",")]
        there = {name for name in names for place in places if (place / name).exists()}
        wrong += [(item, f"there is no {name}") for name in names if ours and name not in there]
    check(wrong)


def test_recipes_in_blocks_are_read(tmp_path):
    for path in PAGES:
        for number, block in enumerate(blocks(path, "yaml")):
            (tmp_path / f"{number}.yaml").write_text(block.text)
            assert configure(str(tmp_path / f"{number}.yaml"), {}), block


def test_routes_are_those_of_the_server():
    import fastapi  # noqa: F401

    app = (ROOT / "src" / "saccade" / "deployment" / "app.py").read_text()
    routes = set(re.findall(r"@app\.(\w+)\(\"(/\w+)", app))
    named = [item for item in SPANS if re.fullmatch(r"(GET|POST) /\w+", item.text)]
    assert len(named) > 5
    check([(one, "no such route") for one in named if tuple(one.text.lower().split()) not in routes])


def test_targets_of_make_exist():
    for target in {one.text.split()[1] for one in TYPED if one.text.startswith("make ")}:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_extras_that_are_installed_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    named = set(re.findall(r"saccade\[(\w+)\]", text)) | set(re.findall(r"\(extra `(\w+)`", text))
    assert named
    assert named <= set(extras)


def test_benchmarks_that_are_named_have_the_flags_given():
    for item in SPANS:
        if match := re.match(r"python (benchmarks/[\w/]+\.py)(.*)", item.text):
            source = (ROOT / match[1]).read_text(encoding="utf-8")
            assert [flag for flag in re.findall(r"--[\w-]+", match[2]) if f'"{flag}"' not in source] == [], item


def test_headers_of_recipes_have_a_command_and_are_yaml():
    for path in RECIPES:
        assert commands(path), path
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
