import pytest

from saccade.deployment.limits import Refusal
from saccade.deployment.upload import read_form

TYPE = "multipart/form-data; boundary=XX"


def part(data, name="file", more='; filename="a.png"', kind="image/png"):
    return b"--XX\r\n" + f'Content-Disposition: form-data; name="{name}"{more}\r\n'.encode() + (
        f"Content-Type: {kind}\r\n" if kind else ""
    ).encode() + b"\r\n" + data + b"\r\n"  # fmt: skip


def refused(body, kind=TYPE):
    with pytest.raises(Refusal) as refusal:
        read_form(body, kind)
    return refusal.value


@pytest.mark.parametrize("data", [b"", b"\r\n", b"-XX", b"\r\n--X", b"\r\n\r\n", bytes(range(256)) * 9])
def test_a_file_comes_out_as_it_went_in(data):
    form = read_form(part(data) + part(b"3", "model", "", "") + b"--XX--\r\n", TYPE)
    assert form.image == (data, "a.png")
    assert form.fields == {"model": "3"}


def test_text_before_the_first_boundary_and_after_the_last_is_not_read():
    form = read_form(b"preamble\r\n" + part(b"data") + b"--XX--\r\nepilogue", TYPE)
    assert form.image.data == b"data"


def test_an_image_may_be_the_body_itself():
    assert read_form(b"data", "image/png").image.data == b"data"


def test_a_part_without_a_type_is_judged_by_its_contents():
    assert read_form(part(b"data", kind="") + b"--XX--", TYPE).image.data == b"data"


def test_a_path_in_a_file_name_stays_a_name():
    form = read_form(part(b"x", more='; filename="../../etc/passwd"') + b"--XX--", TYPE)
    assert isinstance(form.image.name, str)
    assert form.image.data == b"x"


@pytest.mark.parametrize(
    ("body", "kind", "status", "told"),
    [
        (b"", "text/plain", 415, "text/plain"),
        (b"", "", 415, "nothing"),
        (b"", "image/svg+xml", 415, "svg"),
        (b"", TYPE, 400, "boundary"),
        (b"--XX--", TYPE, 422, "no field `file`"),
        (part(b"data"), TYPE, 400, "truncated in transit"),
        (part(b"data")[:60], TYPE, 400, "truncated in transit"),
        (part(b"x") * 2 + b"--XX--", TYPE, 422, "more than one"),
        (part(b"x", kind="text/html") + b"--XX--", TYPE, 415, "text/html"),
        (part(b"1" * 2000, "model", "", "") + b"--XX--", TYPE, 400, "2000 bytes"),
        (part(b"x", "image") + b"--XX--", TYPE, 422, "'image' holds a file; send the image in the field `file`"),
        (part(b"1", "a") * 17 + b"--XX--", TYPE, 400, "more than 16"),
        (part(b"x", more="; a=" + "b" * 5000) + b"--XX--", TYPE, 400, "headers"),
        (b"--XX\r\nno blank line\r\n--XX--", TYPE, 400, "headers"),
        (b"--XXjunk\r\n\r\nx\r\n--XX--", TYPE, 400, "truncated in transit"),
        (b"data", "multipart/form-data", 400, "boundary"),
        (b"data", "multipart/form-data; boundary=" + "x" * 71, 400, "boundary"),
    ],
)
def test_what_is_no_form_with_an_image_is_refused_with_its_reason(body, kind, status, told):
    refusal = refused(body, kind)
    assert refusal.status == status
    assert told in refusal.detail
