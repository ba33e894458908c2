"""The copy of all variables that `wsgiref.handlers` keeps is made again in each fork."""

from __future__ import annotations

import sys
import types
import wsgiref.handlers

import pytest

from sockd_zygote.forks import copied_variables


def test_the_copy_has_the_variables_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgiref.handlers.BaseHandler, "os_environ", {"OF_ANOTHER": "1"})
    monkeypatch.setenv("COPIED_MODE", "own")
    (copy_again,) = copied_variables.with_code()
    copy_again()
    assert wsgiref.handlers.BaseHandler.os_environ["COPIED_MODE"] == "own"
    assert "OF_ANOTHER" not in wsgiref.handlers.BaseHandler.os_environ


@pytest.mark.parametrize("module", [None, types.ModuleType("wsgiref.handlers")])
def test_where_nothing_keeps_one_a_fork_has_nothing_to_do(
    module: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wsgiref.handlers", module)
    assert copied_variables.with_code() == []
