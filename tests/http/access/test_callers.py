"""Which callers see in the answer what a function raised: its exception and stack, or only the request id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from sockd.base.config import ErrorDetail, HttpConfig
from sockd.http.access.callers import Callers
from sockd.http.access.keys import Keys
from sockd.http.server.connection import Connection
from sockd.http.server.messages.head import Head

pytestmark = pytest.mark.anyio
NOBODY = cast(Connection, None)


def hides(callers: Callers, name: str = "f", *headers: tuple[bytes, bytes]) -> bool:
    return callers.hides_errors(name, NOBODY, Head(b"POST", b"/run/f", "1.1", [*headers]))


@pytest.mark.parametrize(
    ("listen", "errors", "own", "hidden"),
    [
        ("127.0.0.1:5000", None, None, False),
        ("localhost:5000", None, None, False),
        ("[::1]:5000", None, None, False),
        ("0.0.0.0:5000", None, None, True),
        ("192.0.2.1:5000", None, None, True),
        ("192.0.2.1:5000", "full", None, False),
        ("127.0.0.1:5000", "id", None, True),
        ("192.0.2.1:5000", None, "full", False),
        ("127.0.0.1:5000", None, "id", True),
        ("127.0.0.1:5000", "id", "full", False),
    ],
)
def test_a_port_that_others_reach_tells_the_id_alone_unless_it_is_said_otherwise(
    listen: str, errors: ErrorDetail | None, own: ErrorDetail | None, hidden: bool
) -> None:
    details: dict[str, ErrorDetail] = {} if own is None else {"f": own}
    callers = Callers(HttpConfig(listen=listen, errors=errors), error_details=details)
    assert hides(callers) == hidden
    assert hides(callers, "another") == (
        errors == "id" or (errors is None and listen[0] in "01" and "127" not in listen)
    )


async def test_a_key_that_may_read_learns_all_and_one_that_may_invoke_is_not(tmp_path: Path) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    callers = Callers(HttpConfig(errors="id"), keys)
    for rights, functions, hidden in ((["read"], [], False), (["invoke"], [], True), (["read"], ["other"], True)):
        text = await keys.add(f"k{hidden}{len(functions)}", cast(Any, rights), functions)
        assert hides(callers, "f", (b"authorization", f"Bearer {text}".encode())) == hidden
    assert hides(callers, "f", (b"authorization", b"Bearer sockd_0_0"))
