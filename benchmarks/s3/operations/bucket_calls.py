"""Operations on buckets: make, remove, look, list their objects in pages, delete several objects at once."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import quote

from benchmarks.s3.answer import Answer, xml_answer
from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Object
from benchmarks.s3.operations.call import Call
from benchmarks.s3.times import iso
from benchmarks.s3.xml import Malformed, Markup, element, parse

PAGE = 1000
_MAX_XML_BYTES = 4 << 20
_OWNER = element("Owner", element("ID", "sockd"), element("DisplayName", "sockd"))


def list_buckets(call: Call) -> Answer:
    buckets = [
        element("Bucket", element("Name", bucket.name), element("CreationDate", iso(bucket.created_s)))
        for bucket in call.store.buckets()
    ]
    return xml_answer(element("ListAllMyBucketsResult", _OWNER, element("Buckets", *buckets), namespace=True))


def create_bucket(call: Call) -> Answer:
    call.upload.read(_MAX_XML_BYTES)  # the region: all buckets are here
    bucket = call.store.create(call.target.bucket)
    return Answer(200, [("Location", f"/{bucket.name}")])


def head_bucket(call: Call) -> Answer:
    call.bucket()
    return Answer(200, [("x-amz-bucket-region", "us-east-1")], without_body=True)


def delete_bucket(call: Call) -> Answer:
    call.store.remove(call.target.bucket)
    return Answer(204)


def get_location(call: Call) -> Answer:
    call.bucket()
    return xml_answer(element("LocationConstraint", namespace=True))


def get_versioning(call: Call) -> Answer:
    call.bucket()
    return xml_answer(element("VersioningConfiguration", namespace=True))


def list_objects(call: Call) -> Answer:
    """ListObjectsV2, and ListObjects, which pages by a marker."""
    second = "list-type" in call.parameters
    if second and call.parameters["list-type"] != "2":
        raise S3Error("InvalidArgument", "list-type is 2")
    token = call.parameters.get("continuation-token")
    after = call.parameters.get("start-after" if second else "marker", "")
    prefix, delimiter = call.parameters.get("prefix", ""), call.parameters.get("delimiter", "")
    limit = min(call.number("max-keys", PAGE), PAGE)
    entries, more = call.bucket().page(prefix, delimiter, _after(token) if second and token else after, limit)
    spelled = _Spelling(call.parameters.get("encoding-type"))
    last = _name(entries[-1]) if entries else ""
    about = [
        element("Name", call.target.bucket),
        spelled.element("Prefix", prefix),
        element("MaxKeys", limit),
        element("IsTruncated", more),
        *([spelled.element("Delimiter", delimiter)] if delimiter else []),
        *spelled.about,
    ]
    if second:
        about.append(element("KeyCount", len(entries)))
        about += [element("ContinuationToken", token)] if token else []
        about += [spelled.element("StartAfter", after)] if after else []
        about += [element("NextContinuationToken", _token(last))] if more else []
    else:
        about.append(spelled.element("Marker", after))
        about += [spelled.element("NextMarker", last)] if more else []
    with_owner = not second or call.parameters.get("fetch-owner") == "true"
    found = [_contents(entry, spelled, with_owner=with_owner) for entry in entries if isinstance(entry, Object)]
    common = [
        element("CommonPrefixes", spelled.element("Prefix", entry)) for entry in entries if isinstance(entry, str)
    ]
    return xml_answer(element("ListBucketResult", *about, *found, *common, namespace=True))


def delete_objects(call: Call) -> Answer:
    """POST ?delete. Objects that are not there count as deleted."""
    bucket = call.bucket()
    try:
        tree = parse(call.upload.read(_MAX_XML_BYTES), "Delete")
    except Malformed as error:
        raise S3Error("MalformedXML", "The XML you provided was not well-formed.") from error
    keys = [each.findtext("Key") or "" for each in tree.iter("Object")]
    if not 0 < len(keys) <= PAGE or "" in keys:
        raise S3Error("MalformedXML", f"from 1 to {PAGE} objects, each with a key")
    for key in keys:
        bucket.delete(key)
    quiet = tree.findtext("Quiet") == "true"
    reported = [] if quiet else [element("Deleted", element("Key", key)) for key in keys]
    return xml_answer(element("DeleteResult", *reported, namespace=True))


class _Spelling:
    """How keys are written: with encoding-type=url in a way that XML can always hold. Raises S3Error."""

    def __init__(self, encoding: str | None) -> None:
        if encoding not in (None, "url"):
            raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
        self._encodes = encoding == "url"
        self.about = [element("EncodingType", "url")] if self._encodes else []

    def element(self, name: str, text: str) -> Markup:
        return element(name, quote(text, safe="/") if self._encodes else text)


def _contents(found: Object, spelled: _Spelling, *, with_owner: bool) -> Markup:
    return element(
        "Contents",
        spelled.element("Key", found.key),
        element("LastModified", iso(found.modified_s)),
        element("ETag", found.etag),
        element("Size", found.size),
        *([_OWNER] if with_owner else []),
        element("StorageClass", "STANDARD"),
    )


def _name(entry: Object | str) -> str:
    return entry if isinstance(entry, str) else entry.key


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _after(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, UnicodeError):
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect") from None
