"""Uploads in parts. Parts are staged files; uploads that are neither completed nor aborted end with the server."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from dataclasses import dataclass, field
from xml.etree import ElementTree

from benchmarks.s3.answer import Answer, xml_answer
from benchmarks.s3.bucket import Bucket
from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Staged
from benchmarks.s3.operations.call import Call
from benchmarks.s3.operations.conditions import check_write
from benchmarks.s3.operations.object_calls import copy_source
from benchmarks.s3.times import iso
from benchmarks.s3.xml import Malformed, element, parse

MAX_PARTS = 10_000
MIN_PART_BYTES = 5 << 20
_COPY_BYTES = 64 << 20
_MAX_XML_BYTES = 4 << 20


@dataclass(slots=True)
class Multipart:
    """One upload under way."""

    id: str
    bucket: Bucket
    key: str
    headers: dict[str, str]
    started_s: float = field(default_factory=time.time)
    parts: dict[int, Staged] = field(default_factory=dict)


class MultipartUploads:
    """All uploads under way, and the operations on them."""

    def __init__(self) -> None:
        self._uploads: dict[str, Multipart] = {}
        self._lock = threading.Lock()

    def create(self, call: Call) -> Answer:
        call.upload.check_empty()
        new = Multipart(uuid.uuid4().hex, call.bucket(), call.key, call.kept_headers())
        with self._lock:
            self._uploads[new.id] = new
        answer = xml_answer(
            element(
                "InitiateMultipartUploadResult",
                element("Bucket", new.bucket.name),
                element("Key", new.key),
                element("UploadId", new.id),
                namespace=True,
            )
        )
        if algorithm := call.head.headers.get("x-amz-checksum-algorithm"):
            answer.headers.append(("x-amz-checksum-algorithm", algorithm))
        return answer

    def put_part(self, call: Call) -> Answer:
        upload = self._find(call)
        number = call.number("partNumber", 0)
        if not 1 <= number <= MAX_PARTS:
            raise S3Error("InvalidArgument", f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive")
        if "x-amz-copy-source" in call.head.headers:
            return self._copy_part(call, upload, number)
        part = call.upload.stage(upload.bucket)
        self._set(upload, number, part)
        return Answer(200, [("ETag", _etag(part)), *([part.checksum.header] if part.checksum else [])])

    def complete(self, call: Call) -> Answer:
        upload = self._find(call)
        try:
            tree = parse(call.upload.read(_MAX_XML_BYTES), "CompleteMultipartUpload")
            wanted = [_wanted(each) for each in tree.iter("Part")]
        except (Malformed, ValueError) as error:
            raise S3Error("MalformedXML", "The XML you provided was not well-formed.") from error
        parts = _chosen(upload, wanted)
        with self._lock:
            if self._uploads.pop(upload.id, None) is None:
                raise _no_such_upload()
        try:
            whole = _join(upload.bucket, parts)
            digest = hashlib.md5(b"".join(part.md5 for part in parts), usedforsecurity=False).hexdigest()
            headers = call.head.headers
            new = upload.bucket.publish(
                upload.key,
                whole,
                upload.headers,
                etag=f'"{digest}-{len(parts)}"',
                condition=lambda old: check_write(headers, old),
            )
        finally:
            _discard(upload)
        return xml_answer(
            element(
                "CompleteMultipartUploadResult",
                element("Location", call.head.path),
                element("Bucket", upload.bucket.name),
                element("Key", upload.key),
                element("ETag", new.etag),
                namespace=True,
            )
        )

    def abort(self, call: Call) -> Answer:
        upload = self._find(call)
        with self._lock:
            self._uploads.pop(upload.id, None)
        _discard(upload)
        return Answer(204)

    def list_parts(self, call: Call) -> Answer:
        upload = self._find(call)
        parts = [
            element(
                "Part",
                element("PartNumber", number),
                element("LastModified", iso(upload.started_s)),
                element("ETag", _etag(part)),
                element("Size", part.size),
            )
            for number, part in sorted(upload.parts.items())
        ]
        about = [element("Bucket", upload.bucket.name), element("Key", upload.key), element("UploadId", upload.id)]
        return xml_answer(
            element("ListPartsResult", *about, element("IsTruncated", False), *parts, namespace=True),
        )

    def list_uploads(self, call: Call) -> Answer:
        bucket = call.bucket()
        with self._lock:
            uploads = [each for each in self._uploads.values() if each.bucket is bucket]
        found = [
            element(
                "Upload",
                element("Key", each.key),
                element("UploadId", each.id),
                element("Initiated", iso(each.started_s)),
            )
            for each in sorted(uploads, key=lambda each: (each.key, each.started_s))
            if each.key.startswith(call.parameters.get("prefix", ""))
        ]
        about = [element("Bucket", bucket.name), element("IsTruncated", False)]
        return xml_answer(element("ListMultipartUploadsResult", *about, *found, namespace=True))

    def _find(self, call: Call) -> Multipart:
        bucket = call.bucket()
        with self._lock:
            upload = self._uploads.get(call.parameters["uploadId"])
        if upload is None or upload.bucket is not bucket or upload.key != call.key:
            raise _no_such_upload()
        return upload

    def _set(self, upload: Multipart, number: int, part: Staged) -> None:
        with self._lock:
            alive = upload.id in self._uploads
            replaced = upload.parts.get(number) if alive else part
            if alive:
                upload.parts[number] = part
        if replaced:
            upload.bucket.discard(replaced.file)
        if not alive:
            raise _no_such_upload()

    def _copy_part(self, call: Call, upload: Multipart, number: int) -> Answer:
        call.upload.check_empty()
        if "x-amz-copy-source-range" in call.head.headers:
            raise S3Error("NotImplemented", "Copying a range is not implemented.")
        _, part = copy_source(call)
        digest = hashlib.file_digest(upload.bucket.path(part.file).open("rb"), "md5").digest()
        part = Staged(part.file, part.size, digest, None)
        self._set(upload, number, part)
        return xml_answer(
            element(
                "CopyPartResult",
                element("LastModified", iso(time.time())),
                element("ETag", _etag(part)),
                namespace=True,
            )
        )


def _wanted(part: ElementTree.Element) -> tuple[int, str]:
    """(number, ETag without quotes) of a part that is to be in the object. Raises ValueError."""
    return int(part.findtext("PartNumber") or ""), (part.findtext("ETag") or "").strip().strip('"')


def _chosen(upload: Multipart, wanted: list[tuple[int, str]]) -> list[Staged]:
    """Raises S3Error (MalformedXML, InvalidPart, InvalidPartOrder, EntityTooSmall)."""
    if not wanted:
        raise S3Error("MalformedXML", "You must specify at least one part")
    numbers = [number for number, _ in wanted]
    if numbers != sorted(set(numbers)):
        raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order.")
    parts = []
    for number, etag in wanted:
        part = upload.parts.get(number)
        if part is None or part.md5.hex() != etag:
            raise S3Error("InvalidPart", f"Part {number} could not be found, or its ETag is not the one you gave.")
        parts.append(part)
    if any(part.size < MIN_PART_BYTES for part in parts[:-1]):
        raise S3Error("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size")
    return parts


def _join(bucket: Bucket, parts: list[Staged]) -> Staged:
    """All parts in one file."""
    target = bucket.new_file()
    size = sum(part.size for part in parts)
    with target.open("xb", buffering=0) as output:
        try:
            for part in parts:
                with bucket.path(part.file).open("rb", buffering=0) as piece:
                    while os.copy_file_range(piece.fileno(), output.fileno(), _COPY_BYTES):
                        pass
        except BaseException:
            target.unlink()
            raise
    return Staged(target.name, size, b"", None)


def _discard(upload: Multipart) -> None:
    for part in upload.parts.values():
        upload.bucket.discard(part.file)


def _etag(part: Staged) -> str:
    return f'"{part.md5.hex()}"'


def _no_such_upload() -> S3Error:
    return S3Error("NoSuchUpload", "The specified upload does not exist. It may have been aborted or completed.")
