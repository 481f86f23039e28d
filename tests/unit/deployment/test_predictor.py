import concurrent.futures
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import saccade.building.pretrained
from saccade.building.build import load_model
from saccade.data.augment import Normalize
from saccade.deployment.bundle import BUNDLE_FIELDS, Bundle, ExportError
from saccade.deployment.predictor import open_predictor
from saccade.tasks import Classify
from support.exports import BUNDLE, CLASSES, tiny_onnx, tiny_run


def images(count, size):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("runs") / "tiny", plugins=["broadcast"])


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A run and its export as an earlier version wrote them, which knew classes alone."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(Path(__file__).parents[2] / "golden" / "written_before.tar.gz") as archive:
        members = [member for member in archive.getmembers() if member.name.startswith("run/")]
        archive.extractall(folder, members=members, filter="data")
    return folder / "run"


def test_an_export_of_an_earlier_version_answers_as_its_run_does(before):
    exported, eager = open_predictor(before / "export" / "model.onnx"), open_predictor(before)
    told = json.loads((before / "export" / "export.json").read_text())
    assert exported.task is eager.task is Classify
    assert list(exported.spec.outputs) == list(eager.spec.outputs) == told["bundle"]["classes"]
    x = torch.randint(0, 256, (5, 1, 16, 16), dtype=torch.uint8)
    np.testing.assert_allclose(exported.outputs(x), eager.outputs(x), atol=1e-6)
    np.testing.assert_allclose(exported.rows(x).sum(1), 1, atol=1e-6)


def test_a_run_answers_with_the_shares_of_its_model(run):
    predictor = open_predictor(run)
    model, spec = load_model(run)
    x = images(4, 32)
    with torch.inference_mode():
        want = model(Normalize(spec.mean, spec.std)(x)).softmax(1).numpy()
    got = predictor.rows(x)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert got.dtype == np.float32
    assert predictor.model is not None
    assert predictor.spec.img_size == 32
    assert predictor.framing.shorter == 36


def test_about_is_json_and_names_plugins(run):
    about = json.loads(json.dumps(open_predictor(run).about()))
    assert about["kind"] == "run"
    assert about["plugins"] == ["ContextBroadcast"]
    assert about["classes"] == list(CLASSES)
    assert about["parameters"] == sum(p.numel() for p in load_model(run)[0].parameters())


@pytest.mark.parametrize("wrong", [(1, 3, 16, 32), (1, 1, 32, 32), (3, 32, 32)])
def test_images_of_another_shape_are_refused(run, wrong):
    with pytest.raises(ValueError, match=r"uint8 of shape B, 3, 32, 32"):
        open_predictor(run).rows(torch.zeros(wrong, dtype=torch.uint8))


def test_floats_are_refused(run):
    with pytest.raises(ValueError, match="float32"):
        open_predictor(run).rows(torch.zeros(1, 3, 32, 32))


def test_many_threads_get_their_own_answers(run):
    predictor = open_predictor(run)
    parts = [images(2, 32) for _ in range(12)]
    want = [predictor.rows(part) for part in parts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got, expected in zip(pool.map(predictor.rows, parts), want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("target", ["no_such_model", "runs/nothing"])
def test_an_unknown_target_is_told_what_is_allowed(target):
    with pytest.raises(ValueError, match=r"run directory, a \.onnx file"):
        open_predictor(target)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_missing_file_is_told_how_to_make_it(tmp_path, ending):
    with pytest.raises(FileNotFoundError, match="saccade export"):
        open_predictor(tmp_path / f"model.{ending}")


def test_an_onnx_file_answers_with_its_own_classes(tmp_path):
    predictor = open_predictor(tiny_onnx(tmp_path / "model.onnx"))
    x = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
    x[0, 0] = x[1, 1] = x[2, 2] = 200
    shares = predictor.rows(x)
    assert [predictor.spec.outputs[k] for k in shares.argmax(1)] == list(CLASSES)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    assert predictor.about()["kind"] == "onnx"
    assert predictor.model is None


def test_an_onnx_file_from_elsewhere_is_refused(tmp_path):
    import onnx

    path = tiny_onnx(tmp_path / "model.onnx")
    model = onnx.load(str(path))
    del model.metadata_props[:]
    onnx.save(model, str(path))
    with pytest.raises(ExportError, match="not written by saccade"):
        open_predictor(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 100])
def test_a_damaged_onnx_file_is_refused(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ExportError, match=r"damaged|not written by saccade"):
        open_predictor(tmp_path / "model.onnx")


def test_a_cut_onnx_file_is_refused(tmp_path):
    path = tiny_onnx(tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ExportError, match="damaged"):
        open_predictor(path)


@pytest.mark.parametrize("place", ["../../etc/passwd", "/etc/passwd", "beside.bin"])
@pytest.mark.parametrize("where", ["initializer", "attribute"])
def test_weights_in_other_files_are_refused(tmp_path, place, where):
    import onnx

    path = tiny_onnx(tmp_path / "model.onnx")
    (tmp_path / "beside.bin").write_bytes(bytes(4))
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    if where == "attribute":
        node = onnx.helper.make_node("Constant", [], ["sixteen"], value=tensor)
        del model.graph.initializer[:]
        model.graph.node.insert(0, node)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match="other files"):
        open_predictor(path)


def changed_onnx(path, *nodes, initializers=(), functions=()):
    """Write a graph whose logits come from other nodes."""
    import onnx

    model = onnx.load(str(tiny_onnx(path)))
    model.graph.node[-1].output[0] = "before"
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(initializers)
    model.functions.extend(functions)
    path.write_bytes(model.SerializeToString())
    return path


def endless_loop():
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes_on"]), helper.make_node("Identity", ["value"], ["same"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, ["b", 3]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("same", TensorProto.FLOAT, ["b", 3]),
        ],
    )
    return helper.make_node("Loop", ["", "always", "before"], ["logits"], body=body)


def test_a_graph_that_may_never_end_is_refused(tmp_path):
    from onnx import TensorProto, helper

    path = tmp_path / "model.onnx"
    always = helper.make_tensor("always", TensorProto.BOOL, [], [True])
    with pytest.raises(ExportError, match="loops, branches or functions"):
        open_predictor(changed_onnx(path, endless_loop(), initializers=[always]))
    itself = helper.make_node("Same", ["a"], ["b"], domain="own")
    function = helper.make_function("own", "Same", ["a"], ["b"], [itself], [helper.make_opsetid("", 18)])
    call = helper.make_node("Same", ["before"], ["logits"], domain="own")
    with pytest.raises(ExportError, match="loops, branches or functions"):
        open_predictor(changed_onnx(path, call, functions=[function]))


def test_a_graph_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    from onnx import TensorProto, helper

    from saccade.deployment import predictor

    monkeypatch.setattr(predictor, "RUN_SECONDS", 0.3)
    size = helper.make_tensor("size", TensorProto.INT64, [2], [1500, 1500])
    nodes = [
        helper.make_node("ReduceMean", ["before"], ["mean"], keepdims=0),
        helper.make_node("Expand", ["mean", "size"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{n}", f"m{n}"], [f"m{n + 1}"]) for n in range(400)),
        helper.make_node("ReduceMean", ["m400"], ["all"], keepdims=0),
        helper.make_node("Add", ["before", "all"], ["logits"]),
    ]
    predictor = open_predictor(changed_onnx(tmp_path / "model.onnx", *nodes, initializers=[size]))
    with pytest.raises(ExportError, match=r"did not process 1 images within 0\.3 seconds"):
        predictor.rows(images(1, 8))


def test_a_graph_that_wants_all_memory_is_told(tmp_path):
    from onnx import TensorProto, helper

    size = helper.make_tensor("size", TensorProto.INT64, [2], [2**20, 2**20])
    nodes = [
        helper.make_node("ReduceMean", ["before"], ["mean"], keepdims=0),
        helper.make_node("Expand", ["mean", "size"], ["logits"]),
    ]
    with pytest.raises(ExportError, match="failed: "):
        open_predictor(changed_onnx(tmp_path / "model.onnx", *nodes, initializers=[size])).rows(images(1, 8))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", []),
        ("classes", [1, 2]),
        ("classes", "abc"),
        ("outputs", []),
        ("outputs", [1, 2]),
        ("outputs", ["red", "green"]),
        ("task", None),
        ("extra", "abc"),
        ("img_size", 0),
        ("img_size", 10**9),
        ("img_size", "8"),
        ("channels", 7),
        ("shorter", 2),
        ("mean", ["a"]),
        ("mean", [0.5]),
        ("interpolation", "magic"),
        ("name", None),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path, field, value):
    told = json.dumps(json.loads(BUNDLE.to_json()) | {field: value})
    with pytest.raises(ExportError, match="description is damaged"):
        open_predictor(tiny_onnx(tmp_path / "model.onnx", told=told))


def test_a_description_that_is_no_json_is_refused(tmp_path):
    for told in ("{", "[]", "null", "[" * 5000, "{}"):
        with pytest.raises(ExportError, match="description is damaged"):
            open_predictor(tiny_onnx(tmp_path / "model.onnx", told=told))


def test_fewer_logits_than_classes_are_refused(tmp_path):
    told = json.dumps(json.loads(BUNDLE.to_json()) | {key: ["a", "b", "c", "d"] for key in ("classes", "outputs")})
    predictor = open_predictor(tiny_onnx(tmp_path / "model.onnx", told=told))
    with pytest.raises(ExportError, match="3 logits for 4 classes"):
        predictor.rows(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_a_description_survives_the_way_to_json_and_back():
    bundle = Bundle("m", ("a", "b"), 32, 1, (0.5,), (0.25,), shorter=40, plugins=("X",), versions=(("torch", "2"),))
    assert Bundle.from_json(bundle.to_json(), source="here") == bundle
    assert set(json.loads(bundle.to_json())) == {*BUNDLE_FIELDS, "classes"}


class _Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def test_a_program_is_not_opened_without_trust(tmp_path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/extra/saccade.json", BUNDLE.to_json())
        archive.writestr("model/data/sample_inputs/model.pt", pickle.dumps(_Trap()))
    with pytest.raises(ExportError, match="--trust"):
        open_predictor(path)


def test_a_program_from_elsewhere_is_not_opened_even_with_trust(tmp_path):
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/sample_inputs/model.pt", pickle.dumps(_Trap()))
    with pytest.raises(ExportError, match="not written by saccade"):
        open_predictor(path, trust=True)
    path.write_bytes(b"no archive")
    with pytest.raises(ExportError, match="damaged"):
        open_predictor(path, trust=True)


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ExportError, match="onnxruntime-gpu"):
        open_predictor(tiny_onnx(tmp_path / "model.onnx"), device="tpu")


def test_a_missing_onnxruntime_names_the_extra(tmp_path, monkeypatch):
    path = tiny_onnx(tmp_path / "model.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"saccade\[export\]"):
        open_predictor(path)


def test_a_timm_model_is_opened_by_name(monkeypatch, tmp_path):
    import timm

    kept = tmp_path / "model.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), kept)
    monkeypatch.setattr(saccade.building.pretrained, "_fetch", lambda name, cfg: kept)
    predictor = open_predictor("test_vit")
    assert predictor.kind == "timm"
    assert predictor.name == "test_vit"
    assert predictor.rows(images(1, predictor.img_size)).shape == (1, len(predictor.spec.outputs))
