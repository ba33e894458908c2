"""Bodies that mean something, and any others: a typed error, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.base.config import FunctionDefaults
from sockd.base.errors import BadRequest, SockdError
from sockd.functions.code.function_config import AwsAttributes, FunctionConfig
from sockd.http.aws import shapes

MEMBERS = sorted(
    {*shapes.Create.__struct_encode_fields__, *shapes.UpdateCode.__struct_encode_fields__, "Variables", "Size"}
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "None"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(), inner, max_size=6)
    ),
    max_leaves=20,
)
GOOD: dict[str, Any] = {"FunctionName": "f", "Runtime": "python3.11", "Handler": "a.b", "Code": {"ZipFile": "UEs="}}


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(MEMBERS), VALUES), st.booleans())
def test_any_body_is_settings_or_a_typed_error(body: dict[str, Any], whole: bool) -> None:
    text = json.dumps(GOOD | body if whole else body).encode()
    for shape in (shapes.Create, shapes.Update):
        try:
            parsed = shapes.parse(text, shape)
            parsed.check("f")
            changes = parsed.changes(AwsAttributes())
            FunctionConfig().changed(changes)
            config = FunctionConfig.from_toml(None, FunctionDefaults(), changes)
        except SockdError as error:
            assert isinstance(error, BadRequest) or 400 <= error.status < 500
            continue
        assert FunctionConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"Timeout": NaN}'])
def test_what_is_no_object(text: bytes) -> None:
    if text == b"":
        assert shapes.parse(text, shapes.Settings) == shapes.Settings()
        return
    with pytest.raises(SockdError):
        shapes.parse(text, shapes.Settings)


def test_only_what_was_said_is_changed() -> None:
    old = AwsAttributes(description="old", tags={"a": "1"})
    parsed = shapes.parse(b'{"Timeout": 5, "Role": "r", "Environment": {}}', shapes.Settings)
    aws = {"description": "old", "role": "r", "tags": {"a": "1"}}
    assert parsed.changes(old) == {"timeout_s": 5, "env": {}, "aws": aws}
