"""Tests of what differs with the transports of the event loop run on asyncio's own and on uvloop's."""

from __future__ import annotations

import pytest

ON_BOTH_LOOPS = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend",
        [
            pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
            pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
        ],
    ),
]
