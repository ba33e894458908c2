"""The USER of an image, in all forms that Docker takes."""

from __future__ import annotations

import pytest

from sockd.images.store.image_user import owner_of

PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1001::/home/node:/bin/sh\n2000:x:7:8::/:/bin/sh\nbroken:x:many:1\n\nx\n"
)
GROUP = "root:x:0:\nnode:x:1001:\nwww:x:33\nbroken:x:-1:\n"


@pytest.mark.parametrize(
    ("user", "owner"),
    [
        ("", (0, 0)),
        ("root", (0, 0)),
        ("0", (0, 0)),
        ("node", (1000, 1001)),
        ("1000", (1000, 1001)),
        ("1234", (1234, 0)),
        ("node:www", (1000, 33)),
        ("node:5", (1000, 5)),
        ("1234:1234", (1234, 1234)),
        (":www", None),
        ("2000", (7, 8)),
        ("4294967294", (4294967294, 0)),
        ("4294967295", None),
        ("99999999999", None),
        ("-1", None),
        ("\u0663", None),
        ("app", None),
        ("node:app", None),
        ("broken", None),
        ("node:broken", None),
    ],
)
def test_user_names_an_owner(user: str, owner: tuple[int, int] | None) -> None:
    assert owner_of(user, PASSWD, GROUP) == owner


def test_an_image_without_names_has_users_by_number() -> None:
    assert owner_of("65532:65532", "", "") == (65532, 65532) and owner_of("nonroot", "", "") is None
