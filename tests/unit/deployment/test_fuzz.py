"""The server against requests made from its own description, right and wrong."""

import os

import pytest

from support.serving import Brightness, image, make_app, running

schemathesis = pytest.importorskip("schemathesis")
EXAMPLES = int(os.environ.get("SACCADE_FUZZ_EXAMPLES", "8"))


@pytest.fixture(scope="module")
def address():
    with running(make_app(Brightness(), Brightness("second"))) as address:
        yield address


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/predict"),
        ("POST", "/explain"),
        ("GET", "/health"),
        ("GET", "/ready"),
        ("GET", "/model"),
        ("GET", "/metrics"),
        ("GET", "/runs"),
        ("GET", "/reports/{key}"),
    ],
)
def test_no_request_made_from_the_description_breaks_the_server(address, method, path):
    import requests
    from hypothesis import HealthCheck, given, settings

    session = requests.Session()
    description = schemathesis.openapi.from_url(address + "/openapi.json")
    modes = schemathesis.GenerationMode
    operation = description[path][method]
    for mode in (modes.POSITIVE, modes.NEGATIVE):
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Exception as error:  # nothing to get wrong where nothing is asked for
            assert mode is modes.NEGATIVE, error  # noqa: PT017
            continue

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=strategy)
        def fuzz(case):
            answer = case.call(session=session, timeout=30)
            case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])
            if answer.status_code >= 400:
                assert "detail" in answer.json()

        try:
            fuzz()
        except Exception as error:
            if "Unsatisfiable" not in type(error).__name__:
                raise


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"])
def test_no_damaged_image_breaks_the_server(address, kind):
    import httpx
    import numpy as np

    whole = image(kind=kind.partition("/")[2].upper())
    draw = np.random.default_rng(0)
    with httpx.Client(timeout=30) as http:
        for _ in range(4 * EXAMPLES):
            data = bytearray(whole)
            for place in draw.integers(0, len(data), draw.integers(1, 8)):
                data[place] = draw.integers(0, 256)
            answer = http.post(address + "/predict", content=bytes(data), headers={"content-type": kind})
            assert answer.status_code in (200, 413, 415, 422)
