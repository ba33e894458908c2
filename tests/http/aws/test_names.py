"""Names, partial ARNs and ARNs of functions, as SDKs put them into a path."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.errors import SockdError
from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound, ValidationFailed
from sockd.http.aws.names import arn, function_named
from sockd.lambdas.function_config import check_name


@pytest.mark.parametrize(
    "prefix",
    ["", "function:", "123456789012:", "123456789012:function:", "arn:aws-cn:lambda:x-1:123456789012:function:"],
)
@pytest.mark.parametrize(("suffix", "qualified"), [("", False), (":$LATEST", True)])
def test_every_form_names_the_function(prefix: str, suffix: str, qualified: bool) -> None:
    assert function_named(quote(f"{prefix}my-f_1{suffix}", safe="")) == ("my-f_1", qualified)
    assert function_named(f"{prefix}my-f_1{suffix}", "$LATEST") == ("my-f_1", True)


def test_the_arn_that_we_tell_names_the_function() -> None:
    assert function_named(arn("f")) == ("f", False)


@pytest.mark.parametrize(
    ("segment", "qualifier", "error"),
    [
        ("", None, ValidationFailed),
        ("a" * 65, None, ValidationFailed),
        ("a%2Fb", None, ValidationFailed),
        ("a%0A", None, ValidationFailed),
        ("arn:aws:s3:::bucket", None, ValidationFailed),
        ("f:", None, ValidationFailed),
        ("f", "", ValidationFailed),
        ("f", "a b", ValidationFailed),
        ("f:$LATEST", "3", InvalidParameterValue),
        ("f:3", "$LATEST", InvalidParameterValue),
        ("f:3", None, ResourceNotFound),
        ("f", "prod", ResourceNotFound),
    ],
)
def test_what_names_no_function(segment: str, qualifier: str | None, error: type[SockdError]) -> None:
    with pytest.raises(error):
        function_named(segment, qualifier)


@given(st.text(), st.none() | st.text())
def test_whatever_is_named_can_be_a_function_s_name(segment: str, qualifier: str | None) -> None:
    try:
        name, _ = function_named(segment, qualifier)
    except SockdError:
        return
    assert check_name(name) == name
