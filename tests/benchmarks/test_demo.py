"""The demonstration's checks: they accept what is right and refuse what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.checks import FUNCTIONS, WrongAnswer, check_noop, check_page, jpeg_size

PICTURE = Path(FUNCTIONS).with_name("picture.jpg")


def test_the_size_of_a_jpeg_is_read_from_its_header() -> None:
    assert jpeg_size(PICTURE.read_bytes()) == (960, 640)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8", b"\xff\xd8" + bytes(100)])
def test_what_is_not_a_jpeg_is_refused(data: bytes) -> None:
    with pytest.raises(WrongAnswer):
        jpeg_size(data)


def test_a_wrong_answer_is_refused() -> None:
    check_noop({"ok": True})
    with pytest.raises(WrongAnswer):
        check_noop({"ok": False})
    with pytest.raises(WrongAnswer):
        check_page({"statusCode": 200, "body": "Hello, stranger"})
