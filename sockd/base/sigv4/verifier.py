"""Whether a request was signed by who it says it is: AWS Signature Version 4, in headers or in the query (presigned).

Owns nothing. Serves any AWS-like service; what a refusal looks like on the wire is the service's own business.
"""

from __future__ import annotations

import calendar
import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from sockd.base.sigv4 import presigned_v2
from sockd.base.sigv4.canonical import (
    ALGORITHM,
    UNSIGNED_PAYLOAD,
    Credentials,
    Scope,
    SignedRequest,
    canonical_request,
    sign,
    signing_key,
    string_to_sign,
)

MAX_SKEW_S = 15 * 60
MAX_EXPIRES_S = 7 * 24 * 3600
_TIMESTAMP = re.compile("([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")
_PRESIGNED = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
)


class SignatureRefused(Exception):
    """The request is not to be served. `code` is S3's name of the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Claim:
    """What the request says of its signature, not verified yet."""

    access_key: str
    scope: Scope
    timestamp: str
    signed_headers: list[str]
    signature: str
    presigned: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """A signature that holds, and what is needed to verify the chunks of a body that are chained to it."""

    access_key: str
    scope: Scope
    timestamp: str
    signature: str
    key: bytes
    payload: str
    """What was signed in the body's place: its SHA-256 in hex, or a word that says that it is not covered."""


class Verifier:
    """Knows the credentials of one service.

    Args:
        credentials: who may sign.
        service: its name in the scope of signatures, such as `s3` or `sqs`.
        clock: seconds since the epoch."""

    def __init__(self, *credentials: Credentials, service: str, clock: Callable[[], float] = time.time) -> None:
        self._credentials = {each.access_key: each for each in credentials}
        self._service = service
        self._clock = clock

    def verify(self, request: SignedRequest, payload: str | None = None) -> Verified:
        """Verify header or query.

        Args:
            payload: the SHA-256 of the body that was received, in hex. None: the one that the request names, whose
                truth the caller has to check when it reads the body (S3).

        Raises: SignatureRefused."""
        if self._service == "s3" and presigned_v2.is_presigned_v2(parameters := _parameters(request.query)):
            return self._verify_v2(request, parameters)
        claim = self._claim(request)
        if claim.scope.service != self._service:
            raise SignatureRefused("AuthorizationHeaderMalformed", f"the credential is for {claim.scope.service!r}")
        credentials = self._find(claim.access_key)
        self._check_headers(request.headers, claim)
        payload = payload or _payload(request.headers, presigned=claim.presigned)
        canonical = canonical_request(
            request, claim.signed_headers, payload, service=self._service, leave_out="X-Amz-Signature"
        )
        key = signing_key(credentials.secret_key, claim.scope)
        _compare(sign(key, string_to_sign(claim.timestamp, claim.scope, canonical)), claim.signature)
        self._check_token(request, credentials)
        return Verified(claim.access_key, claim.scope, claim.timestamp, claim.signature, key, payload)

    def _verify_v2(self, request: SignedRequest, parameters: Mapping[str, str]) -> Verified:
        """Raises SignatureRefused."""
        expires = parameters.get("Expires", "")
        if "authorization" in request.headers or not re.fullmatch("[0-9]{1,12}", expires):
            raise SignatureRefused(
                "AccessDenied", "Query-string authentication requires Expires, and no other signature."
            )
        if self._clock() > int(expires):
            raise SignatureRefused("AccessDenied", "Request has expired")
        credentials = self._find(parameters["AWSAccessKeyId"])
        expected = presigned_v2.signature(request, expires, credentials.secret_key)
        _compare(expected, parameters.get("Signature", ""))
        self._check_token(request, credentials)
        # Nothing can be chained to it: what its body is said to be encoded with is not looked at.
        return Verified(credentials.access_key, Scope("", "", self._service), "", expected, b"", UNSIGNED_PAYLOAD)

    def _find(self, access_key: str) -> Credentials:
        try:
            return self._credentials[access_key]
        except KeyError:
            message = "The AWS access key Id you provided does not exist here."
            raise SignatureRefused("InvalidAccessKeyId", message) from None

    def _claim(self, request: SignedRequest) -> Claim:
        parameters = _parameters(request.query)
        authorization = request.headers.get("authorization")
        presigned = any(name in parameters for name in _PRESIGNED)
        if authorization and presigned:
            raise SignatureRefused("InvalidArgument", "Only one auth mechanism allowed")
        if presigned:
            return self._presigned_claim(parameters)
        if authorization is None:
            raise SignatureRefused("AccessDenied", "Access Denied: the request is not signed.")
        return self._header_claim(authorization, request.headers)

    def _header_claim(self, authorization: str, headers: Mapping[str, str]) -> Claim:
        algorithm, _, rest = authorization.partition(" ")
        if algorithm != ALGORITHM:
            raise SignatureRefused("InvalidArgument", "Unsupported Authorization Type")
        pairs = (part.strip().partition("=") for part in rest.split(","))
        parts = {name: value for name, _, value in pairs}
        if parts.keys() != {"Credential", "SignedHeaders", "Signature"}:
            raise SignatureRefused("AuthorizationHeaderMalformed", "The authorization header is malformed.")
        timestamp = headers.get("x-amz-date", "")
        access_key, scope = _scope(parts["Credential"], "AuthorizationHeaderMalformed")
        age_s = self._clock() - _seconds(timestamp, scope)
        if abs(age_s) > MAX_SKEW_S:
            raise SignatureRefused(
                "RequestTimeTooSkewed", "The difference between the request time and the current time is too large."
            )
        names = parts["SignedHeaders"].split(";")
        return Claim(access_key, scope, timestamp, names, parts["Signature"], presigned=False)

    def _presigned_claim(self, parameters: Mapping[str, str]) -> Claim:
        malformed = "AuthorizationQueryParametersError"
        if not all(name in parameters for name in _PRESIGNED) or parameters["X-Amz-Algorithm"] != ALGORITHM:
            raise SignatureRefused(malformed, f"A presigned request has {', '.join(_PRESIGNED)}.")
        expires = parameters["X-Amz-Expires"]
        if not re.fullmatch(r"[0-9]{1,7}", expires) or not 0 < int(expires) <= MAX_EXPIRES_S:
            raise SignatureRefused(malformed, f"X-Amz-Expires must be between 1 and {MAX_EXPIRES_S} seconds")
        access_key, scope = _scope(parameters["X-Amz-Credential"], malformed)
        timestamp = parameters["X-Amz-Date"]
        age_s = self._clock() - _seconds(timestamp, scope)
        if age_s > int(expires):
            raise SignatureRefused("AccessDenied", "Request has expired")
        if age_s < -MAX_SKEW_S:
            raise SignatureRefused("AccessDenied", "Request is not valid yet")
        names = parameters["X-Amz-SignedHeaders"].split(";")
        return Claim(access_key, scope, timestamp, names, parameters["X-Amz-Signature"], presigned=True)

    def _check_headers(self, headers: Mapping[str, str], claim: Claim) -> None:
        names = claim.signed_headers
        if names != sorted(set(names)) or "host" not in names or not all(name in headers for name in names):
            raise SignatureRefused(
                "SignatureDoesNotMatch", "SignedHeaders must be sorted, name host, and name what is in the request."
            )
        # What an intermediary could add would otherwise change the meaning of what was signed.
        loose = [name for name in headers if name.startswith("x-amz-") and name not in names]
        if loose:
            raise SignatureRefused(
                "AccessDenied", f"There were headers present in the request which were not signed: {', '.join(loose)}"
            )

    def _check_token(self, request: SignedRequest, credentials: Credentials) -> None:
        token = request.headers.get("x-amz-security-token")
        if not token:
            parameters = _parameters(request.query)
            token = parameters.get("X-Amz-Security-Token") or parameters.get("x-amz-security-token") or ""
        if not hmac.compare_digest(token.encode("latin-1", "replace"), (credentials.session_token or "").encode()):
            raise SignatureRefused("InvalidToken", "The provided token is malformed or otherwise invalid.")


def _compare(expected: str, claimed: str) -> None:
    """In a time that tells nothing. Raises SignatureRefused."""
    if not hmac.compare_digest(expected.encode(), claimed.encode("latin-1", "replace")):
        raise SignatureRefused(
            "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided."
        )


def _parameters(query: str) -> dict[str, str]:
    """The query; of a name that is repeated, the last one. The signature covers all of them."""
    if not query:
        return {}
    pairs = (part.partition("=") for part in query.split("&"))
    return {unquote(name): unquote(value) for name, _, value in pairs}


def _scope(credential: str, malformed: str) -> tuple[str, Scope]:
    """(access key, scope). An access key may hold slashes; the four parts behind it cannot."""
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise SignatureRefused(
            malformed, "the Credential is mal-formed; expecting KEY/YYYYMMDD/REGION/SERVICE/aws4_request"
        )
    return parts[0], Scope(*parts[1:4])


def _seconds(timestamp: str, scope: Scope) -> int:
    """The time since the epoch. Raises SignatureRefused."""
    found = _TIMESTAMP.fullmatch(timestamp)
    if found is None or not timestamp.startswith(scope.date):
        raise SignatureRefused(
            "AccessDenied", "AWS authentication requires a valid x-amz-date, of the Credential's day"
        )
    try:
        return calendar.timegm(tuple(int(part) for part in found.groups()))
    except ValueError:  # a year 0, a month 13
        raise SignatureRefused("AccessDenied", "x-amz-date is a date that no calendar has") from None


def _payload(headers: Mapping[str, str], *, presigned: bool) -> str:
    payload = headers.get("x-amz-content-sha256")
    if payload is None and not presigned:
        raise SignatureRefused("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    return payload or UNSIGNED_PAYLOAD
