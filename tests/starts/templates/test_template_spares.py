"""The spares of templates, as far as that takes no sandbox."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sockd.base.config import ZygoteConfig
from sockd.starts.templates.template_spares import TemplateSpares

pytestmark = pytest.mark.anyio


class Stand:
    """As much of a template as its spares look at before they fork."""

    def __init__(self) -> None:
        self.zygote = SimpleNamespace(alive=True)


async def test_a_template_that_ends_under_a_start_from_it_leaves_nothing() -> None:
    nothing: Any = None
    spares = TemplateSpares(ZygoteConfig(), nothing, nothing)
    ended: Any = Stand()
    other: Any = Stand()
    for each in (ended, other):
        spares.hit(each)
    ended.zygote.alive = False
    spares.drop(ended)
    spares.hit(ended)
    assert spares.take(ended, nothing) is None
    assert list(spares._ahead) == [other]
