"""DynamoDB's typed values, to and from those of Python, as SeBS's wrapper leaves them: numbers are int or float.

Without boto3: what an initscript fetched is JSON, and importing boto3 to read it would take longer than fetching it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def to_python(value: dict[str, Any]) -> Any:
    """`{"N": "5"}` is 5. Raises: KeyError, ValueError, TypeError for what is no value of DynamoDB's."""
    ((kind, content),) = value.items()
    return READERS[kind](content)


def item_to_python(item: dict[str, Any]) -> dict[str, Any]:
    """An item or a document. Raises: as `to_python`."""
    return {name: to_python(value) for name, value in item.items()}


def number(text: str) -> int | float:
    """An int if it is one."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return int(value) if value.is_integer() else value


def binary(content: bytes | str) -> bytes:
    """Bytes; in JSON they are base64."""
    if isinstance(content, bytes):
        return content
    import base64

    return base64.b64decode(content)


READERS: dict[str, Callable[[Any], Any]] = {
    "S": str,
    "N": number,
    "B": binary,
    "BOOL": bool,
    "NULL": lambda content: None,
    "L": lambda content: [to_python(value) for value in content],
    "M": item_to_python,
    "SS": set,
    "NS": lambda content: {number(text) for text in content},
    "BS": lambda content: {binary(data) for data in content},
}


def from_python(value: Any) -> dict[str, Any]:
    """5 is `{"N": "5"}`. Raises: TypeError for what DynamoDB cannot hold."""
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"B": bytes(value)}
    if isinstance(value, dict):
        return {"M": item_from_python(value)}
    if isinstance(value, (list, tuple)):
        return {"L": [from_python(element) for element in value]}
    if isinstance(value, (set, frozenset)):
        return set_from_python(value)
    return {"N": number_text(value)}


def item_from_python(item: dict[str, Any]) -> dict[str, Any]:
    """Raises: as `from_python`."""
    return {name: from_python(value) for name, value in item.items()}


def set_from_python(values: set[Any] | frozenset[Any]) -> dict[str, Any]:
    """All elements must be of one kind. Raises: TypeError."""
    typed = [from_python(value) for value in values]
    kinds = {kind for value in typed for kind in value}
    if len(kinds) != 1 or not kinds <= {"S", "N", "B"}:
        raise TypeError(f"DynamoDB has no set of {values!r}")
    (kind,) = kinds
    return {f"{kind}S": [value[kind] for value in typed]}


def number_text(value: Any) -> str:
    """Raises: TypeError, for what is no number or not a finite one."""
    text = str(value)
    try:
        is_finite = abs(float(value)) < float("inf")
    except (TypeError, ValueError, OverflowError):
        is_finite = isinstance(value, int)
    if not is_finite:
        raise TypeError(f"DynamoDB cannot hold {value!r} of type {type(value).__name__}")
    return text
