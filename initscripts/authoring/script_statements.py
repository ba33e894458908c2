"""Statements: a plan as what a script does, line by line, before it is spelled in a language.

Decides what is sent, waited for and passed on, in which order and under which numbers. Everything that waits for nothing
is sent first. The keys of a list have numbers that are certain once the list is there, and so have the reads behind them:
these are sent early all the same, under numbers of their own (from LATER on), and passed on under the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sockd_initscripts.authoring.field_texts import Field, Fields, Text, is_constant
from sockd_initscripts.authoring.script_plan import Again, Directory, Each, Fetch, Get, Listing, Lookup, Step, Unknown

S3, DYNAMODB = "s3", "dynamodb"
_SHOWN_CHARACTERS = 90


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment; "" is an empty line."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """A variable that counts from `base`."""

    name: str
    base: str


@dataclass(frozen=True, slots=True)
class Skip:
    """A read without an RPC of its own: count on."""

    counter: str


@dataclass(frozen=True, slots=True)
class Send:
    """Ask for something as `index`, an expression; or the counter of that name, which counts on."""

    step: Get | Listing | Directory | Lookup | Fetch
    index: str
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class SendEach:
    """Ask for something for each element of an array; `counter` is the number of the next."""

    step: Each
    counter: str


@dataclass(frozen=True, slots=True)
class GetListed:
    """Wait for the LIST `index` and ask for its keys; their numbers are then `name`.first and `name`.end."""

    step: Directory
    index: str
    name: str


@dataclass(frozen=True, slots=True)
class Pass:
    """Wait for the replies `first` to `end` and pass them on."""

    connection: str
    first: str
    end: str


@dataclass(frozen=True, slots=True)
class PassListed:
    """The same for what was listed."""

    name: str


@dataclass(frozen=True, slots=True)
class PassAs:
    """Pass on `count` replies from `rpc` on as reads from `index` on."""

    connection: str
    rpc: str
    index: str
    count: str


Statement = Remark | Count | Skip | Send | SendEach | GetListed | Pass | PassListed | PassAs


@dataclass
class _Segment:
    """Steps up to a directory. Their numbers count from the end of the directory before, if there is one."""

    position: int
    steps: list[Step] = field(default_factory=list)
    directory: Directory | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it holds a loop, so that its numbers are those of a variable."""
        return any(isinstance(step, Each) for step in self.steps)

    @property
    def counter(self) -> str:
        return f"next{self.position or ''}"

    @property
    def listed(self) -> str:
        return f"listed{self.position or ''}"

    @property
    def base(self) -> str:
        """The number of its first RPC."""
        return ("0", "LATER")[self.position] if self.position < 2 else f"{self.position} * LATER"

    @property
    def count(self) -> str:
        """How many RPCs it has, but for the directory."""
        if not self.is_counted:
            return str(len(self.steps))
        return f"{self.counter} - {self.base}" if self.position else self.counter

    def rpc(self, place: int) -> str:
        """The number of one of its RPCs, if it is not counted."""
        return f"{self.base} + {place}" if self.position else str(place)

    def connections(self) -> list[str]:
        return sorted({connection_of(step) for step in self.steps} - {""}, reverse=True)


def statements(steps: Sequence[Step], fields: Fields) -> list[Statement]:
    """What the script does once its connections are open."""
    segments = _segments(steps)
    made: list[Statement] = []
    number = 0
    for segment in segments:
        made += _sends(segment, number, fields)
        number += sum(_numbers(step) for step in segment.steps)
        number += _numbers(segment.directory) if segment.directory else 0
    made.append(Remark())
    for segment in segments:
        made += _lists(segment)
    for segment in segments:
        made += _passes(segment)
    return made


def connection_of(step: Step) -> str:
    """The connection that a step sends on; "" if it sends nothing."""
    match step:
        case Get() | Each() | Listing() | Directory():
            return S3
        case Lookup():
            return DYNAMODB
        case Fetch():
            return step.connection
    return ""


def texts_of(step: Step) -> list[Text]:
    """All texts that it is made of."""
    match step:
        case Get():
            return [step.bucket, step.key, *([step.range] if step.range is not None else [])]
        case Each():
            return texts_of(step.get)
        case Listing() | Directory():
            return [step.bucket, step.prefix, *(step.page if isinstance(step, Listing) else ())]
        case Fetch():
            return [step.method]
        case Lookup():
            return [piece for piece in step.body if not isinstance(piece, str)]
    return []


def path_of(path: Sequence[str | int]) -> str:
    """A path as the SDKs read it: dots between names, a backslash before those within."""
    return ".".join(str(step).replace("\\", "\\\\").replace(".", "\\.") for step in path)


def _segments(steps: Sequence[Step]) -> list[_Segment]:
    segments = [_Segment(0)]
    for step in steps:
        if isinstance(step, Directory):
            segments[-1].directory = step
            segments.append(_Segment(len(segments)))
        else:
            segments[-1].steps.append(step)
    return segments


def _sends(segment: _Segment, number: int, fields: Fields) -> Iterator[Statement]:
    """What waits for nothing. `number` is what was recorded, for the remarks."""
    if segment.is_counted:
        yield Count(segment.counter, segment.base)
    for place, step in enumerate(segment.steps):
        yield from _remarks(step, number, fields)
        number += _numbers(step)
        if isinstance(step, Each):
            yield SendEach(step, segment.counter)
        elif isinstance(step, Get | Listing | Lookup | Fetch):
            counted = segment.is_counted
            yield Send(step, segment.counter if counted else segment.rpc(place), is_counter=counted)
        elif segment.is_counted:
            yield Skip(segment.counter)
    if segment.directory is not None:
        yield from _remarks(segment.directory, number, fields)
        if segment.position == 0:
            yield Send(segment.directory, segment.count)


def _lists(segment: _Segment) -> Iterator[Statement]:
    """What is asked for when a list has come; of the directories behind the first, the list as well."""
    if segment.directory is None:
        return
    index = _first_read(segment, segment.count)
    if segment.position:
        yield Send(segment.directory, index)
    yield GetListed(segment.directory, index, segment.listed)


def _passes(segment: _Segment) -> Iterator[Statement]:
    connections = segment.connections()
    if segment.position and connections:
        # Which of them a connection has sent, it knows itself.
        for connection in connections:
            yield PassAs(connection, segment.base, _first_read(segment, "0"), segment.count)
    elif len(connections) == 1 or segment.is_counted:
        for connection in connections:
            yield Pass(connection, "0", segment.count)
    else:
        for place, step in enumerate(segment.steps):
            if connection_of(step):
                yield Pass(connection_of(step), str(place), str(place + 1))
    for place, step in enumerate(segment.steps):
        if isinstance(step, Again):
            yield PassAs(connection_of(segment.steps[step.step]), str(step.step), str(place), "1")
    if segment.directory is not None:
        yield PassListed(segment.listed)


def _first_read(segment: _Segment, offset: str) -> str:
    """The number of a read of the segment, as an expression."""
    if not segment.position:
        return offset
    begin = f"{_Segment(segment.position - 1).listed}.end"
    return begin if offset == "0" else f"{begin} + {offset}"


def _numbers(step: Step) -> int:
    """How many reads were recorded of it."""
    match step:
        case Each():
            return step.count
        case Directory():
            return step.pages + step.keys
    return 1


def _remarks(step: Step, number: int, fields: Fields) -> Iterator[Remark]:
    """What was read, and what the developer should look at."""
    count = _numbers(step)
    rpc = step.get.rpc if isinstance(step, Each) else step.rpc
    shown = " ".join([rpc[0], *(json.dumps(word) for word in rpc[1:])])
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 3] + "..."
    yield Remark(f"{number}: {shown}" if count == 1 else f"{number} to {number + count - 1}: {shown}")
    for note in dict.fromkeys(_notes(step, fields)):
        yield Remark(f"  {note}")


def _notes(step: Step, fields: Fields) -> Iterator[str]:
    match step:
        case Each():
            yield f"and so for each element of {path_of(step.array)}"
        case Directory():
            yield f"and what it listed: {step.keys} keys, in its order; if the function skips some, so must this"
        case Again(step=first):
            yield f"was read before, as {first}: passed on again"
        case Unknown():
            yield "not a read that an initscript can do"
        case Get() if is_constant(step.key):
            yield "a constant: no part of the key is a field of the event"
        case Fetch() if is_constant(step.method):
            yield "a constant: no part of the request is a field of the event"
    for text in texts_of(step):
        for part in text:
            if isinstance(part, Field) and not part.of_element and (others := fields.equal_to(part)):
                names = ", ".join(path_of(other.path) for other in others[:3])
                yield f"{path_of(part.path)}, or {names}: they are equal in this event"
