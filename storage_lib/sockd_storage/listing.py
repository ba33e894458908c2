"""The reply to an S3 LIST: the keys in it, and how to ask for the rest.

What an initscript fetched is the XML as S3 sent it. Two patterns read it: the XML parser of the standard library takes
7 ms to import, which is what a LIST takes.
"""

from __future__ import annotations

import re

_KEY = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_TOKEN = re.compile(rb"<NextContinuationToken>(.*?)</NextContinuationToken>", re.DOTALL)
_IS_LIST = re.compile(rb"\s*(<\?xml.*?\?>)?\s*<ListBucketResult\b", re.DOTALL)
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


def _text(data: bytes) -> str:
    text = data.decode()
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    decimal, hexadecimal, name = reference.groups()
    if name:
        return _ENTITIES[name]
    return chr(int(decimal) if decimal else int(hexadecimal, 16))
