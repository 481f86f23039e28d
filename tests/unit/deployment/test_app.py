import concurrent.futures
import io
import threading

import httpx
import numpy as np
import pytest
from PIL import Image

from support.serving import Brightness, image, make_app, running, until

http = httpx.Client(timeout=30)


@pytest.fixture(scope="module")
def address():
    limits = {"max_bytes": 100_000, "max_pixels": 1_000_000, "large_pixels": 10_000}
    with running(make_app(Brightness("first"), Brightness("second"), limits=limits)) as address:
        yield address


def send(address, data, path="/predict", kind="image/png", **fields):
    return http.post(address + path, files={"file": ("a.png", data, kind)}, data=fields)


def both(value):
    """A probability, under its name and the one it had before."""
    return {"probability": pytest.approx(value), "share": pytest.approx(value)}


def test_an_image_is_answered(address):
    answer = send(address, image(3), top="2")
    assert answer.status_code == 200
    assert answer.json()["answer"] == "level 3"
    assert answer.json()["classes"] == [
        {"class": "level 3", "index": 3, **both(0.86)},
        {"class": "level 0", "index": 0, **both(0.02)},
    ]
    assert answer.json()["probability"] == answer.json()["share"] == pytest.approx(0.86)
    assert (answer.json()["task"], answer.json()["text"]) == ("classify", "level 3")
    assert answer.json()["rows"] == [
        {"name": "level 3", "text": "86.0%", **both(0.86), "said": True},
        {"name": "level 0", "text": "2.0%", **both(0.02), "said": False},
    ]


@pytest.mark.parametrize(
    ("kind", "name"), [("JPEG", "jpeg"), ("WEBP", "webp"), ("GIF", "gif"), ("BMP", "bmp"), ("TIFF", "tiff")]
)
def test_an_image_may_be_sent_as_the_body_in_any_known_format(address, kind, name):
    answer = http.post(address + "/predict", content=image(5, kind=kind), headers={"content-type": f"image/{name}"})
    assert answer.json()["answer"] == "level 5"


def test_the_model_is_chosen_by_form_or_query(address):
    assert send(address, image(), model="1").json()["model"] == "second"
    assert send(address, image(), "/predict?model=1").json()["model"] == "second"
    assert send(address, image()).json()["model"] == "first"
    assert send(address, image(), model="second").json()["model"] == "second"
    assert send(address, image(), "/explain?model=second").json()["model"] == "second"


def test_a_model_that_is_not_served_is_answered_with_those_that_are(address):
    answer = send(address, image(), model="third")
    assert answer.status_code == 422
    assert "'third': no such model; available by number or name: 0 (first), 1 (second)" in answer.json()["detail"]


def test_a_large_image_takes_its_own_lane_and_is_answered_as_well(address):
    assert send(address, image(6, size=(300, 200))).json()["answer"] == "level 6"


def noise(size):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "status", "told"),
    [
        (image()[:60], "image/png", 422, "a.png: the file is"),
        (noise(100)[:9000], "image/png", 422, "truncated"),
        (b"", "image/png", 422, "empty"),
        (b"some words", "image/png", 415, "text, not an image"),
        (b"%PDF", "application/pdf", 415, "application/pdf"),
        (noise(200), "image/png", 413, "the limit is 100000"),
        (image(size=(1001, 1000)), "image/png", 413, "more than 1000000 pixels"),
    ],
)
def test_what_is_not_taken_is_refused_with_its_reason(address, data, kind, status, told):
    answer = send(address, data, kind=kind)
    assert answer.status_code == status
    assert told in answer.json()["detail"]


@pytest.mark.parametrize("fields", [{"model": "2"}, {"model": "-1"}, {"model": "x"}, {"top": "0"}, {"top": "9999"}])
def test_options_that_do_not_exist_are_refused(address, fields):
    for answer in (
        send(address, image(), **fields),
        send(address, image(), "/predict?" + "&".join(f"{k}={v}" for k, v in fields.items())),
    ):
        assert answer.status_code == 422
        assert isinstance(answer.json()["detail"], str)


def test_requests_that_come_together_share_forward_passes_and_get_their_own_answers():
    model = Brightness()
    with running(make_app(model, batch_size=8)) as address:
        model.go.clear()
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            asked = [pool.submit(send, address, image(index % 8)) for index in range(24)]
            until(lambda: queue_length(address) >= 16)
            model.go.set()
            answers = [one.result() for one in asked]
    assert [answer.json()["answer"] for answer in answers] == [f"level {index % 8}" for index in range(24)]
    assert max(model.batches) == 8
    assert len(model.batches) <= 12


def queue_length(address):
    text = http.get(address + "/metrics").text
    return float(text.split("saccade_queue_length{model=")[1].split("} ")[1].split("\n")[0])


def test_a_full_queue_is_answered_503_with_a_time_to_come_back_and_others_are_still_answered():
    model = Brightness()
    with running(make_app(model, batch_size=1, queue=2)) as address, concurrent.futures.ThreadPoolExecutor(8) as pool:
        model.go.clear()
        asked = [pool.submit(send, address, image())]
        assert model.begun.wait(20)
        asked += [pool.submit(send, address, image()) for _ in range(2)]
        until(lambda: queue_length(address) == 2)
        refused = send(address, image())
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "2 images" in refused.json()["detail"]
        assert http.get(address + "/ready").status_code == 503
        assert http.get(address + "/health").status_code == 200
        model.go.set()
        assert [one.result().status_code for one in asked] == [200] * 3
        assert http.get(address + "/ready").json() == {"status": "ready"}


def test_views_come_as_images_and_charts_with_their_layers(address):
    answer = send(address, image(), "/explain")
    assert answer.status_code == 200
    attention, entropy, slots = answer.json()["views"]
    assert [figure["depth"] for figure in attention["figures"]] == list(range(6))
    assert attention["figures"][0]["picture"].startswith("data:image/png;base64,")
    assert attention["numbers"] == {"worst": None}
    assert "<svg" in entropy["figures"][0]["chart"]
    assert slots["absent"]
    assert answer.json()["picture"].startswith("data:image/png")


def test_unknown_views_are_refused_by_the_reason_of_explain(address):
    answer = send(address, image(), "/explain", views="attention,nonsense")
    assert answer.status_code == 422
    assert "there are attention" in answer.json()["detail"]


def test_a_model_that_cannot_be_looked_into_says_so():
    with running(make_app(explained=False)) as address:
        assert http.get(address + "/model").json()["models"][0]["explain"] is False
        answer = send(address, image(), "/explain")
    assert answer.status_code == 422
    assert "cannot be explained" in answer.json()["detail"]


def test_models_of_one_name_are_told_apart():
    with running(make_app(Brightness("a"), Brightness("a"))) as address:
        models = http.get(address + "/model").json()["models"]
    assert [(model["index"], model["name"]) for model in models] == [(0, "a"), (1, "a (2)")]


def test_an_answer_that_is_no_number_is_nothing_and_not_an_error():
    model = Brightness()
    model.rows = lambda images: np.full((len(images), 8), np.nan, np.float32)
    with running(make_app(model)) as address:
        answer = send(address, image())
    assert answer.status_code == 200
    assert answer.json()["share"] is None


def test_the_description_and_its_page_need_nothing_from_elsewhere(address):
    described = http.get(address + "/openapi.json").json()
    assert {"/predict", "/explain", "/health", "/ready", "/model", "/metrics", "/runs"} <= set(described["paths"])
    assert (
        "file"
        in described["paths"]["/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"][
            "properties"
        ]
    )
    for path in ("/", "/docs", "/page/main.js", "/page/page.css", "/page/report.css"):
        text = http.get(address + path).text
        assert "http://" not in text
        assert "https://" not in text
        assert "<script>" not in text
        assert "onclick" not in text


def test_no_path_in_a_request_reaches_the_disk(address):
    for path in (
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page//etc/passwd",
        "/reports/..%2f..%2fetc%2fpasswd",
        "/page/",
    ):
        answer = http.get(address + path)
        assert answer.status_code == 404
        assert "detail" in answer.json()


def test_reports_are_listed_and_shown_where_nothing_in_them_can_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    (tmp_path / "run" / "report.html").write_text("<script>alert(1)</script>")
    with running(make_app(browse=[tmp_path])) as address:
        (run,) = http.get(address + "/runs").json()["runs"]
        report = http.get(f"{address}/reports/{run['id']}")
        assert http.get(address + "/reports/0000").status_code == 404
    assert report.text == "<script>alert(1)</script>"
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")


def test_metrics_count_requests_batches_and_bytes(address):
    send(address, image())
    text = http.get(address + "/metrics").text
    assert 'saccade_requests_total{path="/predict",status="200"}' in text
    assert 'saccade_batch_size_bucket{le="1.0",model="first"}' in text
    assert 'saccade_request_seconds_count{path="/predict"}' in text
    assert "nonsense" not in text
    http.get(address + "/nonsense")
    assert "nonsense" not in http.get(address + "/metrics").text


def test_one_explains_while_others_predict():
    begun, go = threading.Event(), threading.Event()
    app = make_app()
    served = app.state.server.models[0]
    inner = served.explainer.function

    def held(*args, **kwargs):
        begun.set()
        assert go.wait(20)
        return inner(*args, **kwargs)

    served.explainer.function, served.explainer.limit = held, 1
    with running(app) as address, concurrent.futures.ThreadPoolExecutor(2) as pool:
        explained = pool.submit(send, address, image(), "/explain")
        assert begun.wait(20)
        second = pool.submit(send, address, image(), "/explain")
        until(lambda: served.explainer._inside == 2)
        assert send(address, image()).status_code == 200
        refused = send(address, image(), "/explain")
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        go.set()
        assert explained.result().status_code == 200
        assert second.result().status_code == 200
