"""OpenLambda's file as our settings: what maps, what is noted, what is refused and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.ol_yaml import read


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("triggers:\n", {}),
        ("triggers:\n  http:\n    - method: GET\n    - method: POST\n", {"methods": ["GET", "POST"]}),
        ('triggers:\n  http:\n    - method: "*"\n', {"methods": ["*"]}),
        ("reuse-sandbox: false", {"reuse_sandbox": False}),
        ("environment:\n  A: true\n  B: 010\n  C: \n", {"env": {"A": "true", "B": "010", "C": ""}}),
        ("environment: {OL_ENTRY_FILE: app.py}", {"env": {"OL_ENTRY_FILE": "app.py"}, "handler": "app:f"}),
        ("environment: {OL_WSGI_ENTRY: w}", {"env": {"OL_WSGI_ENTRY": "w"}, "handler": "f:w", "app": "wsgi"}),
        (
            "environment: {OL_ENTRY_FILE: m.py, OL_ASGI_ENTRY: a}",
            {"env": {"OL_ENTRY_FILE": "m.py", "OL_ASGI_ENTRY": "a"}, "handler": "m:a", "app": "asgi"},
        ),
        (
            "limits: {mem_mb: 50, runtime_sec: 30, procs: 10, cpu_percent: 50}",
            {"memory_mb": 50, "timeout_s": 30.0, "pids": 10, "cpus": 0.5},
        ),
    ],
)
def test_what_maps_onto_our_settings(text: str, settings: dict[str, Any]) -> None:
    assert read(text) == (settings, [])


def test_kafka_is_reported() -> None:
    settings, notes = read("triggers:\n  kafka:\n    - topics: [a]\n")
    assert settings == {} and "kafka" in notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("triggers: {cron: [{schedule: x}]}", "sockd schedule"),
        ("triggers: {smoke: []}", "unknown trigger 'smoke'"),
        ("triggers: {http: GET}", "http: must be a list"),
        ("triggers: {http: [GET]}", "http: must be a mapping"),
        ("triggers: {http: [{}]}", "method: must be text"),
        ("limits: {swappiness: 1}", "limits.swappiness is not offered"),
        ("limits: {mem_mb: much}", "must be a number"),
        ("reuse-sandbox: maybe", "must be true or false"),
        ("environment: {A: [1]}", "A: must be text"),
        ("environment: {OL_ENTRY_FILE: run.sh}", "must be a file named *.py"),
        ("surprise: 1", "unknown key 'surprise'"),
        ("- a", "must be a mapping"),
        ("? [a]\n: b", "found unhashable key"),
        ("a: &x 1\nb: *x", "aliases"),
        ("a: [", "ol.yaml: "),
        ("a: \0", "ol.yaml: "),
        ("[" * 5000, "at most 32 levels"),
        ("- " * 33 + "a", "at most 32 levels"),
        ("- " * 32 + "a", "the file: must be a mapping"),
    ],
)
def test_what_does_not_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(BadFunctionConfig) as caught:
        read(text)
    assert words in caught.value.message


@given(st.text(alphabet="ab:-{}[]&*!|>'\"\n \t#%?,", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except BadFunctionConfig:
        pass
