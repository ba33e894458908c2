"""Operations on one object: GET, HEAD, PUT, copy, DELETE."""

from __future__ import annotations

from functools import partial
from urllib.parse import unquote

from benchmarks.s3.answer import Answer, FileSlice, Headers, xml_answer
from benchmarks.s3.checksums import PREFIX
from benchmarks.s3.errors import S3Error
from benchmarks.s3.objects import Object, Staged
from benchmarks.s3.operations.call import Call, parse_target
from benchmarks.s3.operations.conditions import check_preconditions, check_write, parse_range
from benchmarks.s3.times import iso
from benchmarks.s3.xml import element

# Parameters of a (presigned) GET that change the answer's headers.
_OVERRIDES = {
    f"response-{name}": name
    for name in (
        "content-type",
        "content-disposition",
        "content-language",
        "content-encoding",
        "cache-control",
        "expires",
    )
}


def get_object(call: Call) -> Answer:
    """GET and HEAD."""
    found, fd = call.bucket().open_object(call.key)
    body = FileSlice(fd, 0, found.size)
    try:
        return _download(call, found, body)
    except BaseException:
        body.close()
        raise


def put_object(call: Call) -> Answer:
    if "x-amz-copy-source" in call.head.headers:
        return _copy(call)
    bucket = call.bucket()
    kept = call.kept_headers()
    if call.head.content_length() is None and "transfer-encoding" not in call.head.headers:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
    _refuse_customer_keys(call)
    condition = partial(check_write, call.head.headers)
    if call.upload.untouched and "if-match" in call.head.headers:
        condition(bucket.find(call.key))  # before a body is sent for nothing; publishing looks again
    new = bucket.publish(call.key, call.upload.stage(bucket), kept, condition=condition)
    return Answer(200, [("ETag", new.etag), *([new.checksum.header] if new.checksum else [])])


def delete_object(call: Call) -> Answer:
    call.bucket().delete(call.key)
    return Answer(204)


def copy_source(call: Call) -> tuple[Object, Staged]:
    """The object that the request wants copied, and its bytes under a new name in the target's bucket. Raises S3Error."""
    path = unquote(call.head.headers["x-amz-copy-source"].partition("?")[0])
    source = parse_target("/" + path.lstrip("/").replace("%", "%25"))
    bucket = call.bucket()
    file = bucket.new_file()
    found = call.store.bucket(source.bucket).link_object(source.key, file)
    try:
        if check_preconditions(call.head.headers, found, prefix="x-amz-copy-source-"):
            raise S3Error("PreconditionFailed", "The object to be copied is the one you know.")
    except BaseException:
        bucket.discard(file.name)
        raise
    return found, Staged(file.name, found.size, b"", found.checksum)


def _download(call: Call, found: Object, body: FileSlice) -> Answer:
    headers = call.head.headers
    about = _about(found, call)
    if check_preconditions(headers, found):
        body.close()
        return Answer(304, [("ETag", found.etag), ("Last-Modified", found.last_modified)])
    wanted = parse_range(headers.get("range"), found.size)
    if wanted:
        body.offset, body.length = wanted
        about.append(("Content-Range", f"bytes {wanted[0]}-{wanted[0] + wanted[1] - 1}/{found.size}"))
    elif found.checksum and headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        # Never with a range: it is a checksum of the whole, and clients would hold the part against it.
        about += [found.checksum.header, (f"{PREFIX}type", "FULL_OBJECT")]
    return Answer(206 if wanted else 200, about, body, without_body=call.head.method == "HEAD")


def _about(found: Object, call: Call) -> Headers:
    kept = {"content-type": "binary/octet-stream"} | found.headers
    kept |= {name: call.parameters[override] for override, name in _OVERRIDES.items() if override in call.parameters}
    if any("\r" in value or "\n" in value for value in kept.values()):
        raise S3Error("InvalidArgument", "a header holds the end of a line")
    named = [(name.title() if not name.startswith("x-") else name, value) for name, value in kept.items()]
    return [("Last-Modified", found.last_modified), ("ETag", found.etag), ("Accept-Ranges", "bytes"), *named]


def _copy(call: Call) -> Answer:
    call.upload.check_empty()
    _refuse_customer_keys(call)
    source, staged = copy_source(call)
    replace = call.head.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
    headers = call.kept_headers() if replace else source.headers
    new = call.bucket().publish(call.key, staged, headers, etag=source.etag)
    return xml_answer(
        element(
            "CopyObjectResult",
            element("LastModified", iso(new.modified_s)),
            element("ETag", new.etag),
            namespace=True,
        )
    )


def _refuse_customer_keys(call: Call) -> None:
    """What is asked to be encrypted with a key of the client's must not lie there in clear."""
    if any("server-side-encryption-customer" in name for name in call.head.headers):
        raise S3Error("NotImplemented", "Encryption with customer keys is not implemented.")
