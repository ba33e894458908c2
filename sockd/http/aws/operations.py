"""Operations: their arguments, their results, and common parts.

Each noun of this API has a class in its own file, with its operations in `table`; `gather` joins these tables. Owns the names of
functions that are being changed: two clients never change one function at the same time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sockd.base.function_arns import arn
from sockd.functions.registry.publications import Publication
from sockd.http.aws.errors import InvalidParameterValue, ResourceConflict, ValidationFailed
from sockd.http.aws.routes import Operation
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.answers import Answer

PAGE = 50
"""Most entries of one answer, as on AWS."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """What an operation is called with."""

    segments: tuple[str, ...]
    """The variable parts of the path, percent-encoded: mostly one that names a function."""
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes | bytearray
    request_id: bytes
    """16 bytes."""
    arrived_ns: int
    """CLOCK_MONOTONIC."""
    exchange: Exchange | None = None
    """For an answer that is written while it is being made."""

    @property
    def segment(self) -> str:
        """The first variable part of the path; empty if there is none."""
        return self.segments[0] if self.segments else ""

    def parameter(self, name: str) -> str | None:
        """The first of this name in the query."""
        values = self.query.get(name)
        return values[0] if values else None


Result = tuple[int, dict[str, Any] | None] | Answer
"""A status and what becomes JSON; or the whole answer, of what is no JSON."""
Table = dict[Operation, Callable[[Call], Awaitable[Result]]]


class Operations(Protocol):
    """What a file of operations exports."""

    def table(self) -> Table:
        """Its operations, each a method that raises SockdError."""


def gather(parts: Iterable[Operations]) -> Table:
    """One table of all. Raises: RuntimeError, for an operation that two do."""
    table: Table = {}
    for part in parts:
        for operation, method in part.table().items():
            if operation in table:
                raise RuntimeError(f"{operation.value} is offered twice")
            table[operation] = method
    return table


class Changes:
    """Who is changing which function."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Be the only one who changes this function. Raises: ResourceConflict."""
        if name in self._names:
            raise ResourceConflict(
                f"The operation cannot be performed at this time. An update is in progress for resource: {arn(name)}"
            )
        self._names.add(name)
        try:
            yield
        finally:
            self._names.discard(name)


def page(call: Call, entries: Sequence[T], key: Callable[[T], str]) -> tuple[Sequence[T], dict[str, str]]:
    """What `Marker` and `MaxItems` ask for of a list, and the member that leads to the rest.

    Args: key: another one for each entry, by which the marker finds its place: `entries` are in its order, or the marked
        one is still there. Raises: ValidationFailed, InvalidParameterValue."""
    most, after = _max_items(call.parameter("MaxItems")), _marker(call.parameter("Marker"))
    start = next((index + 1 for index, entry in enumerate(entries) if key(entry) == after), None)
    if start is None:  # it went in the meantime
        start = sum(key(entry) <= after for entry in entries)
    shown = entries[start : start + most]
    if start + most >= len(entries):
        return shown, {}
    return shown, {"NextMarker": base64.urlsafe_b64encode(key(shown[-1]).encode()).decode()}


def version_key(name: str, publication: Publication | None) -> str:
    """For `page`: orders functions by name, and the versions of one by number, $LATEST before them."""
    return f"{name}\0{publication.number if publication else 0:018}"


def _max_items(text: str | None) -> int:
    if text is None:
        return PAGE
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 10_000:
        raise ValidationFailed(text, "maxItems", "Member must be a number from 1 to 10000")
    return min(int(text), PAGE)


def _marker(text: str | None) -> str:
    try:
        return base64.b64decode(text or "", b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidParameterValue("Marker is not one of ours") from None
