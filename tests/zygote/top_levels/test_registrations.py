"""Calls of functions that register with the interpreter are counted, and nothing of the count stays."""

from __future__ import annotations

import codecs
import os
import sys
import types

import pytest

from sockd_zygote.top_levels.registrations import Registrations


def test_calls_are_counted_and_done() -> None:
    with Registrations() as registrations:
        codecs.register_error("counted", codecs.strict_errors)
    assert {words: count for words, count in registrations.counts.items() if count} == {
        "the error handlers of codecs (codecs.register_error)": 1
    }
    assert codecs.lookup_error("counted") is codecs.strict_errors


def test_modules_have_the_originals_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        (codecs, "register"),
        (codecs, "register_error"),
        (os, "register_at_fork"),
        (os, "putenv"),
        (sys, "addaudithook"),
    ]
    originals = [getattr(module, name) for module, name in names]
    keeper = types.ModuleType("keeper")
    monkeypatch.setitem(sys.modules, "keeper", keeper)
    with Registrations() as registrations:
        for module, name in names:
            setattr(keeper, name, getattr(module, name))
        assert not any(getattr(module, name) is one for (module, name), one in zip(names, originals, strict=True))
    assert [getattr(module, name) for module, name in names] == originals
    assert [getattr(keeper, name) for _, name in names] == originals
    assert not any(registrations.counts.values())
