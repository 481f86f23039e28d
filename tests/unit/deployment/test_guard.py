import httpx
import pytest

from saccade.deployment.serve import loopback_names
from support.serving import image, make_app, running

TOKEN = "a long secret"
http = httpx.Client(timeout=30)


@pytest.fixture(scope="module")
def address():
    with running(make_app(token=TOKEN, hosts=loopback_names("127.0.0.1"))) as address:
        yield address


@pytest.mark.parametrize("path", ["/model", "/metrics", "/runs", "/reports/x", "/nonsense"])
@pytest.mark.parametrize("sent", [None, "Bearer wrong", f"Basic {TOKEN}", "Bearer", "Bearer é"])
def test_without_the_token_nothing_is_told(address, path, sent):
    headers = {} if sent is None else {"authorization": sent.encode()}
    answer = http.get(address + path, headers=headers)
    assert answer.status_code == 401
    assert "token" in answer.json()["detail"]
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_without_the_token_nothing_is_answered(address, path):
    assert http.post(address + path, files={"file": image()}).status_code == 401


def test_with_the_token_one_is_let_in(address):
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert http.get(address + "/model", headers=headers).status_code == 200
    assert http.post(address + "/predict", files={"file": image()}, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/ready", "/page/main.js", "/openapi.json"])
def test_the_page_and_the_signs_of_life_need_no_token(address, path):
    assert http.get(address + path).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.", "[::2]"]
)
def test_a_name_that_was_made_to_point_here_is_refused(address, host):
    assert http.get(address + "/health", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_the_names_of_this_machine_are_taken(address, host):
    assert http.get(address + "/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://["])
def test_a_page_of_another_site_cannot_send_images(address, origin):
    headers = {"authorization": f"Bearer {TOKEN}", "origin": origin}
    assert http.post(address + "/predict", files={"file": image()}, headers=headers).status_code == 403


def test_the_servers_own_page_can_send_images(address):
    headers = {"authorization": f"Bearer {TOKEN}", "origin": address}
    assert http.post(address + "/predict", files={"file": image()}, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/model", "/nonsense"])
def test_every_answer_carries_the_headers_of_safety(address, path):
    headers = http.get(address + path).headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_loopback_is_known_by_address():
    assert "localhost" in loopback_names("127.0.0.1")
    assert "127.0.0.5" in loopback_names("127.0.0.5")
    assert loopback_names("::1")
    assert loopback_names("0.0.0.0") is None
    assert loopback_names("somewhere") is None
