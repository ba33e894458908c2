"""XML as S3 writes it, and the little of it that clients send."""

from __future__ import annotations

import re
from xml.etree import ElementTree

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# Characters that XML 1.0 has no way to write; clients that need them in keys ask for encoding-type=url.
_UNSPEAKABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"})


class Markup(str):
    """Text that is XML already."""

    __slots__ = ()


def element(name: str, *content: str | int | bool, namespace: bool = False) -> Markup:
    """`<name>content</name>`; content that is not Markup is escaped."""
    inner = "".join(each if isinstance(each, Markup) else _text(each) for each in content)
    return Markup(f'<{name} xmlns="{NAMESPACE}">{inner}</{name}>' if namespace else f"<{name}>{inner}</{name}>")


def document(root: Markup) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{root}'.encode()


class Malformed(Exception):
    """Not XML, or not the element that was expected."""


def parse(data: bytes, root: str) -> ElementTree.Element:
    """The root element, names without their namespace. Raises Malformed."""
    # Entities are where XML bites; S3's own clients send no document type at all.
    if b"<!" in data:
        raise Malformed("a document type or comment")
    try:
        tree = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Malformed(str(error)) from error
    for each in tree.iter():
        each.tag = each.tag.rpartition("}")[2]
    if tree.tag != root:
        raise Malformed(f"expected {root}, got {tree.tag}")
    return tree


def _text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _UNSPEAKABLE.sub("\ufffd", str(value)).translate(_ESCAPES)
