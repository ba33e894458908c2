"""What S3 answers when it does not do what it was asked: a code, its status, and a message, as XML.

`S3Error` is the one exception of the server; the caller names a code of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.s3.xml import document, element

STATUS = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidToken": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "PreconditionFailed": 412,
    "RequestHeaderSectionTooLarge": 400,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """A refusal.

    Args:
        code: a key of STATUS.
        headers: what goes into the answer besides."""

    def __init__(self, code: str, message: str, *, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = STATUS[code]
        self.headers = list(headers)

    def body(self, resource: str, request_id: str) -> bytes:
        return error_document(self.code, self.message, resource, request_id)


def error_document(code: str, message: str, resource: str, request_id: str) -> bytes:
    return document(
        element(
            "Error",
            element("Code", code),
            element("Message", message),
            element("Resource", resource),
            element("RequestId", request_id),
        )
    )
