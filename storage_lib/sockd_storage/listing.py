"""The reply to an S3 LIST: the keys in it, how to ask for the rest, and the same reply as boto3 asks for it.

What an initscript fetched is the XML as S3 sent it. Two patterns read it: the XML parser of the standard library takes
7 ms to import, which is what a LIST takes.
"""

from __future__ import annotations

import re

_KEY = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_TOKEN = re.compile(rb"<NextContinuationToken>(.*?)</NextContinuationToken>", re.DOTALL)
_IS_LIST = re.compile(rb"\s*(<\?xml.*?\?>)?\s*<ListBucketResult\b", re.DOTALL)
_BEGINS = re.compile(rb"<ListBucketResult\b[^>]*>")
REPLACEMENT = "\ufffd".encode()
_ENCODED = re.compile(rb"<(Delimiter|Key|Prefix|StartAfter)>(.*?)</\1>", re.DOTALL)
_REFERENCE = re.compile("&(?:#([0-9]+)|#x([0-9a-fA-F]+)|([a-z]+));")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class NotAList(Exception):
    """Something else than the reply to a ListObjectsV2."""


def parse(xml: bytes) -> tuple[list[str], str | None]:
    """The keys in the order of the reply, and the continuation token if there are more. Raises: NotAList."""
    if not _IS_LIST.match(xml):
        raise NotAList(xml[:100])
    try:
        keys = [_text(key) for key in _KEY.findall(xml)]
        token = _TOKEN.search(xml)
        if b"<EncodingType>url</EncodingType>" in xml:
            from urllib.parse import unquote_plus

            keys = [unquote_plus(key) for key in keys]
        return keys, _text(token[1]) if token else None
    except (ValueError, KeyError, OverflowError) as error:
        raise NotAList(str(error)) from None


def url_encoded(xml: bytes) -> bytes:
    """The reply to the same LIST with `encoding-type=url`, which boto3 asks for.

    Raises: NotAList, also if a key may have a character that XML has not, for which some servers put another one."""
    parse(xml)
    if REPLACEMENT in xml:
        raise NotAList("a key that XML cannot hold")
    if b"<EncodingType>" in xml:
        return xml
    from urllib.parse import quote

    encoded = _ENCODED.sub(lambda found: b"<%b>%b</%b>" % (found[1], quote(_text(found[2])).encode(), found[1]), xml)
    return _BEGINS.sub(lambda found: found[0] + b"<EncodingType>url</EncodingType>", encoded, count=1)


def _text(data: bytes) -> str:
    text = data.decode()
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    decimal, hexadecimal, name = reference.groups()
    if name:
        return _ENTITIES[name]
    return chr(int(decimal) if decimal else int(hexadecimal, 16))
