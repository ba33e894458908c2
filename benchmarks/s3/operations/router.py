"""Which operation a request asks for: by its method, by whether it names a key, and by the parameters that say so."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.s3.answer import Answer
from benchmarks.s3.errors import S3Error
from benchmarks.s3.operations import bucket_calls, object_calls
from benchmarks.s3.operations.call import Call
from benchmarks.s3.operations.multipart import MultipartUploads

Operation = Callable[[Call], Answer]
# Parameters that turn a request into another operation; what has such a one and is not in the tables is not implemented.
_SELECTORS = frozenset(
    """acl accelerate analytics attributes cors delete encryption intelligent-tiering inventory legal-hold lifecycle
    location logging metrics notification object-lock ownershipControls partNumber policy policyStatus publicAccessBlock
    replication requestPayment restore retention select tagging torrent uploadId uploads versionId versioning versions
    website""".split()
)


class Router:
    """The tables of operations."""

    def __init__(self) -> None:
        uploads = MultipartUploads()
        self._service: dict[tuple[str, frozenset[str]], Operation] = {("GET", frozenset()): bucket_calls.list_buckets}
        self._bucket = {
            ("DELETE", frozenset[str]()): bucket_calls.delete_bucket,
            ("GET", frozenset[str]()): bucket_calls.list_objects,
            ("GET", frozenset({"location"})): bucket_calls.get_location,
            ("GET", frozenset({"uploads"})): uploads.list_uploads,
            ("GET", frozenset({"versioning"})): bucket_calls.get_versioning,
            ("HEAD", frozenset[str]()): bucket_calls.head_bucket,
            ("POST", frozenset({"delete"})): bucket_calls.delete_objects,
            ("PUT", frozenset[str]()): bucket_calls.create_bucket,
        }
        self._object = {
            ("DELETE", frozenset[str]()): object_calls.delete_object,
            ("DELETE", frozenset({"uploadId"})): uploads.abort,
            ("GET", frozenset[str]()): object_calls.get_object,
            ("GET", frozenset({"uploadId"})): uploads.list_parts,
            ("HEAD", frozenset[str]()): object_calls.get_object,
            ("POST", frozenset({"uploads"})): uploads.create,
            ("POST", frozenset({"uploadId"})): uploads.complete,
            ("PUT", frozenset[str]()): object_calls.put_object,
            ("PUT", frozenset({"partNumber", "uploadId"})): uploads.put_part,
        }

    def operation(self, call: Call) -> Operation:
        """Raises S3Error (NotImplemented, MethodNotAllowed)."""
        table = self._object if call.key else self._bucket if call.target.bucket else self._service
        selectors = _SELECTORS.intersection(call.parameters)
        found = table.get((call.head.method, selectors))
        if found:
            return found
        if selectors or call.head.method == "POST":
            raise S3Error("NotImplemented", "This operation is not implemented here.")
        raise S3Error("MethodNotAllowed", "The specified method is not allowed against this resource.")
