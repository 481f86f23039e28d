"""The page that follows a run."""

import threading
import urllib.error
import urllib.request

import pytest

import saccade
from saccade.cli import main
from saccade.training.watch import make_server
from support.training import tiny

pytestmark = pytest.mark.usefixtures("few_answers")


@pytest.fixture
def serve():
    servers = []

    def start(path, **options):
        server = make_server(path, **options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return answer.read().decode(), answer.headers


def test_a_run_is_waited_for_then_followed_to_its_end(serve, tmp_path):
    address = serve(tmp_path / "run", every=2)
    page, headers = get(address)
    assert "Nothing to follow yet" in page
    assert headers["Refresh"] == "2"
    saccade.train(recipe="small", epochs=2, out=tmp_path / "run", quiet=True, settings=tiny())
    whole, headers = get(address)
    assert headers["Refresh"] is None
    assert "Finished after" in whole
    assert "Next steps" in whole
    (tmp_path / "run" / "summary.json").unlink()  # as it was before its end
    page, headers = get(address)
    assert headers["Refresh"] == "2"
    assert " s left." in page
    assert "Loss" in page
    assert page.count("augmented") > 3
    assert page.count("<script") == 1  # that of the charts


def test_other_names_and_other_pages_are_refused(serve, tmp_path):
    address = serve(tmp_path / "run")
    with pytest.raises(urllib.error.HTTPError, match="421"):
        get(address, Host="evil.example")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(f"{address}/../config.yaml")


@pytest.mark.parametrize(("flags", "said"), [(["--every", "0"], "from 0.5 to 3600"), (["--port", "70000"], "port")])
def test_what_cannot_be_done_is_said(flags, said, tmp_path, capsys):
    assert main(["watch", str(tmp_path), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_will_never_be_a_run_is_refused(tmp_path, capsys):
    (tmp_path / "photo.jpg").write_bytes(b"")
    for place in (tmp_path, tmp_path / "photo.jpg"):
        assert main(["watch", str(place), "--port", "0"]) == 2
        assert "has no config.yaml, so it is not a run" in capsys.readouterr().err


def test_a_run_that_is_not_there_yet_is_said_to_be_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", lambda *_: None)
    assert main(["watch", str(tmp_path / "later"), "--port", "0"]) == 0
    assert "later (waiting for it to exist); stop with Ctrl-C" in capsys.readouterr().out
