"""Names, partial ARNs and ARNs of functions, as SDKs put them into a path."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.errors import SockdError
from sockd.functions.code.setting_checks import check_name
from sockd.http.access.signatures import AccessDenied
from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound, ValidationFailed
from sockd.http.aws.names import Named, function_named, whole_function


@pytest.mark.parametrize(
    "prefix",
    ["", "function:", "000000000000:", "000000000000:function:", "arn:aws:lambda:local:000000000000:function:"],
)
@pytest.mark.parametrize(
    ("suffix", "qualifier"), [("", None), (":$LATEST", "$LATEST"), (":7", "7"), (":pr-o_d", "pr-o_d")]
)
def test_every_form_names_the_function(prefix: str, suffix: str, qualifier: str | None) -> None:
    assert function_named(quote(f"{prefix}my-f_1{suffix}", safe="")) == Named("my-f_1", qualifier)
    assert function_named(f"{prefix}my-f_1", "$LATEST") == Named("my-f_1", "$LATEST")
    assert function_named(f"{prefix}my-f_1{suffix}", qualifier) == Named("my-f_1", qualifier)


@pytest.mark.parametrize(
    ("prefix", "error", "words"),
    [
        (
            "arn:aws:lambda:eu-central-1:000000000000:function:",
            ResourceNotFound,
            "from 'eu-central-1' are not reachable",
        ),
        ("arn:aws:lambda:eu-central-1:123456789012:function:", ResourceNotFound, "in this region ('local')"),
        ("arn:aws-cn:lambda:local:000000000000:function:", ResourceNotFound, "'aws-cn' are not reachable in this"),
        ("arn:aws:lambda:local:123456789012:function:", AccessDenied, "of the account 123456789012 is not accessible"),
        ("123456789012:function:", AccessDenied, "of the account 123456789012 is not accessible"),
        ("123456789012:", AccessDenied, "ARNs begin with arn:aws:lambda:local:000000000000:function:"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ":$LATEST", ":7"])
def test_a_function_of_another_region_or_account_is_not_the_local_one(
    prefix: str, error: type[SockdError], words: str, suffix: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        function_named(quote(f"{prefix}f{suffix}", safe=""))


def test_the_arn_that_we_tell_names_the_function() -> None:
    for named in (Named("f", None), Named("f", "3")):
        assert function_named(named.arn) == named


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
    ],
)
def test_what_names_no_function(segment: str, qualifier: str | None, error: type[SockdError]) -> None:
    with pytest.raises(error):
        function_named(segment, qualifier)


def test_what_is_for_whole_functions_takes_no_version() -> None:
    assert whole_function("f") == whole_function("f:$LATEST") == whole_function("f", "$LATEST") == "f"
    for segment, qualifier in (("f:1", None), ("f", "prod")):
        with pytest.raises(InvalidParameterValue, match="permitted on Lambda functions only"):
            whole_function(segment, qualifier)


@given(st.text(), st.none() | st.text())
def test_whatever_is_named_can_be_a_function_s_name(segment: str, qualifier: str | None) -> None:
    try:
        name, _ = function_named(segment, qualifier)
    except SockdError:
        return
    assert check_name(name) == name
