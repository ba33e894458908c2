"""The errors of this API: AWS's types, statuses and bodies.

The tree, each with the status that AWS gives it:

    ApiError
     ├─ InvalidParameterValue, InvalidRequestContent, ValidationFailed 400
     ├─ ResourceNotFound, UnknownOperation 404
     ├─ ResourceConflict 409
     └─ PreconditionFailed 412

Owns nothing: `sockd.http.access.signatures` has the errors of signatures. An error of sockd's own without a
name there becomes the nearest one that SDKs know.
"""

from __future__ import annotations

import msgspec

from sockd.base.errors import (
    BadRequest,
    ImageUnavailable,
    InvalidEvent,
    NoCapacity,
    NoSuchFunction,
    PackagesFailed,
    ResolveFailed,
    SandboxFailed,
    SockdError,
    StorageFull,
    TooManyRequests,
)
from sockd.http.access.signatures import AccessDenied
from sockd.http.server.messages.answers import Answer, failure
from sockd.http.server.messages.fields import field


class ApiError(SockdError):
    """Raised as one of the following only."""


class InvalidParameterValue(ApiError):
    """A value that can never work here."""

    status = 400
    error_type = "InvalidParameterValueException"


class InvalidRequestContent(ApiError):
    """The body is not the JSON that the operation takes."""

    status = 400
    error_type = "InvalidRequestContentException"


class ValidationFailed(ApiError):
    """A value of the path, the query or a header is malformed."""

    status = 400
    error_type = "ValidationException"

    def __init__(self, value: str, where: str, constraint: str) -> None:
        super().__init__(
            f"1 validation error detected: Value '{value[:170]}' at '{where}' failed to satisfy constraint: {constraint}"
        )


class ResourceNotFound(ApiError):
    """No such function, or no such version of it."""

    status = 404
    error_type = "ResourceNotFoundException"


class UnknownOperation(ApiError):
    """sockd has no operation with this path and method."""

    status = 404
    error_type = "UnknownOperationException"


class ResourceConflict(ApiError):
    """The function exists already, or is being changed."""

    status = 409
    error_type = "ResourceConflictException"


class PreconditionFailed(ApiError):
    """The function has changed since the caller looked."""

    status = 412
    error_type = "PreconditionFailedException"

    def __init__(self) -> None:
        super().__init__(
            "The Revision Id provided does not match the latest Revision Id. "
            "Call the GetFunction/GetAlias API to retrieve the latest Revision Id"
        )


def refusal(error: Exception, request_id: str, function_arn: str = "") -> Answer:
    """The answer to an operation that failed.

    Args: function_arn: of the version that was named, for the words that AWS has for an unknown one."""
    plain = failure(error, request_id)  # logs a bug of ours, recognises a full disk
    if not isinstance(error, SockdError):
        error = (
            StorageFull() if plain.status == StorageFull.status else SockdError("internal error; see the worker's log")
        )
    if isinstance(error, NoSuchFunction) and function_arn:
        error = ResourceNotFound(f"Function not found: {function_arn}")
    status, code = _code(error)
    body = {"Type": "User" if status < 500 else "Service", "Message": error.message, "message": error.message}
    fields = f"content-type: application/json\r\nx-amzn-requestid: {request_id}\r\n" + field("x-amzn-errortype", code)
    if isinstance(error, TooManyRequests):
        body["Reason"] = error.reason
    if status in (429, 503) or error.retry_after_s is not None:
        fields += field("retry-after", error.retry_after_s or 1)
    return Answer(status, fields, msgspec.json.encode(body))


def _code(error: SockdError) -> tuple[int, str]:
    """The status, and the name of the error in AWS's model."""
    match error:
        case ApiError() | AccessDenied() | InvalidEvent():
            return error.status, error.error_type
        case StorageFull():
            return 400, "CodeStorageExceededException"
        case BadRequest() | ResolveFailed():
            return 400, InvalidParameterValue.error_type
        case NoCapacity() | SandboxFailed() | PackagesFailed() | ImageUnavailable():
            return 503, "ServiceException"
    return (error.status, error.error_type) if error.status < 500 else (500, "ServiceException")
