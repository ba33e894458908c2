"""The verifier against signatures that others made: AWS's documentation and botocore."""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from botocore.utils import percent_encode, percent_encode_sequence
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.sigv4.canonical import EMPTY_SHA256, Credentials, SignedRequest
from sockd.base.sigv4.signer import Signer
from sockd.base.sigv4.verifier import SignatureRefused, Verifier
from tests.base.sigv4.documented import BUCKET, DATE, EXAMPLE, SCOPE, THEN_S, documented, verifier

PUT_SHA256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
OURS = Credentials("key/with/slashes", "secret")

GET = documented(
    "GET",
    "/test.txt",
    "",
    {"range": "bytes=0-9"},
    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
)
DOCUMENTED = [
    GET,
    documented(
        "PUT",
        "/test$file.text",
        "",
        {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        PUT_SHA256,
    ),
    documented("GET", "/", "lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
    documented(
        "GET", "/", "prefix=J&max-keys=2", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    ),
]
PRESIGNED = SignedRequest(
    "GET",
    "/test.txt",
    f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={EXAMPLE.access_key}%2F{SCOPE.replace('/', '%2F')}"
    f"&X-Amz-Date={DATE}&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
    {"host": BUCKET},
)


def changed(request: SignedRequest, **values: object) -> SignedRequest:
    fields = {name: getattr(request, name) for name in ("method", "path", "query", "headers")}
    return SignedRequest(**(fields | values))


def code_of(request: SignedRequest, checked_by: Verifier | None = None, payload: str | None = None) -> str:
    with pytest.raises(SignatureRefused) as error:
        (checked_by or verifier()).verify(request, payload)
    return error.value.code


@pytest.mark.parametrize("request_", [*DOCUMENTED, PRESIGNED], ids=lambda each: f"{each.method} {each.query[:9]}")
def test_the_documented_examples_hold(request_: SignedRequest) -> None:
    assert verifier().verify(request_).access_key == EXAMPLE.access_key


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"method": "HEAD"}, "SignatureDoesNotMatch"),
        ({"path": "/test.tx"}, "SignatureDoesNotMatch"),
        ({"query": "versionId=1"}, "SignatureDoesNotMatch"),
        ({"headers": {**GET.headers, "range": "bytes=0-8"}}, "SignatureDoesNotMatch"),
        ({"headers": {**GET.headers, "host": "other"}}, "SignatureDoesNotMatch"),
        ({"headers": {**GET.headers, "x-amz-content-sha256": PUT_SHA256}}, "SignatureDoesNotMatch"),
        ({"headers": {**GET.headers, "x-amz-acl": "public-read"}}, "AccessDenied"),
        ({"headers": {k: v for k, v in GET.headers.items() if k != "range"}}, "SignatureDoesNotMatch"),
        ({"headers": {k: v for k, v in GET.headers.items() if k != "authorization"}}, "AccessDenied"),
        ({"headers": {k: v for k, v in GET.headers.items() if k != "x-amz-date"}}, "AccessDenied"),
        ({"headers": {**GET.headers, "x-amz-date": "20130524T000001Z"}}, "SignatureDoesNotMatch"),
        ({"headers": {**GET.headers, "x-amz-date": "20130523T235959Z"}}, "AccessDenied"),
        ({"headers": {**GET.headers, "authorization": "AWS key:signature"}}, "InvalidArgument"),
        (
            {"headers": {**GET.headers, "authorization": "AWS4-HMAC-SHA256 Credential=a"}},
            "AuthorizationHeaderMalformed",
        ),
        ({"query": "X-Amz-Signature=1"}, "InvalidArgument"),
    ],
)
def test_what_is_changed_is_refused(values: dict[str, object], code: str) -> None:
    assert code_of(changed(GET, **values)) == code


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("us-east-1", "us-east-2", "SignatureDoesNotMatch"),
        ("/s3/", "/sqs/", "AuthorizationHeaderMalformed"),
        (EXAMPLE.access_key, "AKIDOTHER", "InvalidAccessKeyId"),
        ("host;range;", "host;", "SignatureDoesNotMatch"),
        ("host;range;", "range;", "SignatureDoesNotMatch"),
        ("host;range;", "range;host;", "SignatureDoesNotMatch"),
        ("Signature=f0", "Signature=f1", "SignatureDoesNotMatch"),
        ("Signature=f0", "Signature=é0", "SignatureDoesNotMatch"),
        ("aws4_request", "aws5_request", "AuthorizationHeaderMalformed"),
    ],
)
def test_a_changed_authorization_is_refused(old: str, new: str, code: str) -> None:
    headers = {**GET.headers, "authorization": GET.headers["authorization"].replace(old, new)}
    assert code_of(changed(GET, headers=headers)) == code


@pytest.mark.parametrize(("skew_s", "holds"), [(-901, False), (-899, True), (899, True), (901, False)])
def test_the_clocks_may_differ_by_a_quarter_of_an_hour(skew_s: int, holds: bool) -> None:
    late = verifier(now_s=THEN_S + skew_s)
    if holds:
        assert late.verify(GET)
    else:
        assert code_of(GET, late) == "RequestTimeTooSkewed"


def test_a_presigned_url_ends() -> None:
    assert verifier(now_s=THEN_S + 86400).verify(PRESIGNED)
    assert code_of(PRESIGNED, verifier(now_s=THEN_S + 86401)) == "AccessDenied"
    assert code_of(PRESIGNED, verifier(now_s=THEN_S - 901)) == "AccessDenied"
    longer = PRESIGNED.query.replace("=86400", "=86401")
    assert code_of(changed(PRESIGNED, query=longer)) == "SignatureDoesNotMatch"
    for_ever = PRESIGNED.query.replace("=86400", "=604801")
    assert code_of(changed(PRESIGNED, query=for_ever)) == "AuthorizationQueryParametersError"
    assert code_of(changed(PRESIGNED, query=PRESIGNED.query + "&versionId=1")) == "SignatureDoesNotMatch"
    assert code_of(changed(PRESIGNED, headers={"host": BUCKET, "x-amz-acl": "private"})) == "AccessDenied"


def test_another_secret_is_refused() -> None:
    assert code_of(GET, verifier(Credentials(EXAMPLE.access_key, "other"))) == "SignatureDoesNotMatch"


def test_a_session_token_is_asked_for_and_only_then() -> None:
    with_token = Credentials("key", "secret", "token")
    request = ours("GET", "/b/k", "", with_token)
    assert verifier(with_token).verify(request)
    assert code_of(request, verifier(Credentials("key", "secret"))) == "InvalidToken"
    assert code_of(request, verifier(Credentials("key", "secret", "other"))) == "InvalidToken"


def ours(method: str, path: str, query: str, credentials: Credentials = OURS) -> SignedRequest:
    headers = {"Host": "h"}
    Signer(credentials, service="s3").sign(method, f"{path}?{query}", headers, timestamp=DATE)
    return SignedRequest(method, path, query, {name.lower(): value for name, value in headers.items()})


# No surrogates, which UTF-8 has not; and no names that a signature uses.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = TEXT.filter(lambda name: name and not name.startswith(("X-Amz-", "AWSAccessKeyId")))


@given(TEXT, st.dictionaries(NAMES, TEXT, max_size=3))
def test_any_key_and_query_that_botocore_signs_is_verified(key: str, parameters: dict[str, str]) -> None:
    url = f"http://h:1/bucket/{percent_encode(key, safe='/~')}"
    url += f"?{percent_encode_sequence(parameters)}" if parameters else ""
    assert Verifier(OURS, service="s3").verify(by_botocore(S3SigV4Auth, url))
    assert Verifier(OURS, service="s3").verify(by_botocore(S3SigV4QueryAuth, url))


def test_other_services_sign_their_paths_differently() -> None:
    request = by_botocore(SigV4Auth, "http://h/a%20queue/../b//c/", service="sqs", data=b"{}")
    sqs = Verifier(OURS, service="sqs")
    body_sha256 = hashlib.sha256(b"{}").hexdigest()
    assert sqs.verify(request, body_sha256)
    assert code_of(request, sqs, EMPTY_SHA256) == "SignatureDoesNotMatch"
    assert code_of(request, Verifier(OURS, service="s3"), body_sha256) == "AuthorizationHeaderMalformed"


def by_botocore(auth: type[SigV4Auth], url: str, service: str = "s3", data: bytes = b"") -> SignedRequest:
    request = AWSRequest("POST" if data else "GET", url, data=data)
    auth(BotoCredentials(OURS.access_key, OURS.secret_key), service, "eu-central-1").add_auth(request)
    parts = urlsplit(request.prepare().url)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return SignedRequest(request.method, parts.path, parts.query, {"host": parts.netloc, **headers})
