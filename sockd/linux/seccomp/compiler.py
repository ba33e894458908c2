"""A compiler from system call verdicts to classic BPF, for seccomp.

Owns nothing and knows no policy. It imports no library because libseccomp builds a filter in 440 us and reports its own
failures badly.

Why the program looks as it does (linux/seccomp.c):
  * Installing costs time per instruction (conversion, JIT) and per system call number: the kernel walks the filter once
    for each, to learn which calls it always allows, and skips the filter for those ever after. So the program is small,
    each path in it is short, and it uses only the operations that this walk understands (no shifts, no scratch).
  * Arguments are 64 bits wide, but the kernel takes flags, families and ioctl requests as 32. Only the low word is
    looked at: comparing all 64 bits lets a caller hide behind garbage in the upper half (CVE-2019-10063).
  * x32 calls carry bit 30, int 0x80 and 32-bit ARM programs another architecture. The first are unknown numbers, the second is
    never an accident.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from errno import ENOSYS, EPERM
from struct import Struct

from sockd.linux.syscall_table import FIRST_UNKNOWN, NAMES, Architecture, this_machine

SOCK_FILTER = Struct("<HBBI")
"""struct sock_filter: code, jump if true, jump if false, k."""

RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000

LD_WORD = 0x20
AND = 0x54
JEQ = 0x15
JGE = 0x35
RET = 0x06

# Offsets in struct seccomp_data; arguments are little-endian u64s, so the low word comes first.
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_WHOLE_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Switch:
    """A verdict that depends on the low 32 bits of one argument."""

    argument: int
    cases: tuple[tuple[int, Verdict], ...]
    """Value of `argument & mask` -> verdict, which may be a switch on another argument. At least one."""
    default: Verdict
    mask: int = _WHOLE_WORD


Verdict = int | Switch
"""What becomes of a call: a seccomp return value, or a switch that decides."""


def refused(error: int) -> int:
    """The verdict of a call that fails with an errno."""
    return RET_ERRNO | error


def only(
    argument: int, *values: int, then: Verdict = RET_ALLOW, otherwise: int = EPERM, mask: int = _WHOLE_WORD
) -> Switch:
    """`then` for these values of an argument, an errno for all others."""
    return Switch(argument, tuple((value, then) for value in values), refused(otherwise), mask)


def without(argument: int, *values: int, otherwise: int = EPERM) -> Switch:
    """An errno for these values of an argument; every other is allowed."""
    return Switch(argument, tuple((value, refused(otherwise)) for value in values), RET_ALLOW)


def compile_filter(
    allow: Collection[str],
    *,
    checks: Mapping[str, Switch],
    absent: Collection[str] = (),
    otherwise: int = EPERM,
    architecture: Architecture | None = None,
) -> bytes:
    """The seccomp program that lets exactly these calls through.

    Args:
        allow: names of calls that are always allowed.
        checks: names of calls that are allowed under a condition.
        absent: names of calls that fail with ENOSYS, so that callers fall back to an older one.
        otherwise: errno of every other call below FIRST_UNKNOWN; those above fail with ENOSYS.
        architecture: whose program it is; this machine's by default. Names of calls that it does not have are ignored.
    Returns: struct sock_filter[], little-endian.
    Raises: KeyError for a name that no architecture has; ValueError when the program is too long for one jump."""
    machine = architecture or this_machine()
    verdicts: list[Verdict] = [*[refused(otherwise)] * FIRST_UNKNOWN, refused(ENOSYS)]
    _decide(verdicts, dict.fromkeys(allow, RET_ALLOW), machine)
    _decide(verdicts, dict.fromkeys(absent, refused(ENOSYS)), machine)
    _decide(verdicts, checks, machine)
    return _compile(verdicts, machine)


def compile_restriction(
    deny: Collection[str], *, checks: Mapping[str, Switch], architecture: Architecture | None = None
) -> bytes:
    """The seccomp program that takes calls away from a process that a whole filter confines already.

    The kernel runs both and takes the stricter answer, so all that this one does not name is left to the other.
    Raises: as compile_filter."""
    machine = architecture or this_machine()
    verdicts: list[Verdict] = [RET_ALLOW] * (FIRST_UNKNOWN + 1)
    _decide(verdicts, dict.fromkeys(deny, refused(EPERM)), machine)
    _decide(verdicts, checks, machine)
    return _compile(verdicts, machine)


def _decide(verdicts: list[Verdict], named: Mapping[str, Verdict], machine: Architecture) -> None:
    """Set the verdicts of these calls, as far as the architecture has them. Raises: KeyError: no architecture has one."""
    for name, verdict in named.items():
        if name in machine.numbers:
            verdicts[machine.numbers[name]] = verdict
        elif name not in NAMES:
            raise KeyError(name)


def _compile(verdicts: list[Verdict], machine: Architecture) -> bytes:
    """The program for the verdicts of each number, the last of which is that of all higher numbers, too."""
    program = _Program()
    program.add(LD_WORD, _ARCH)
    program.add(JEQ, machine.audit, otherwise=RET_KILL_PROCESS)
    program.add(LD_WORD, _NUMBER)
    _add_search(program, _segments(verdicts))
    for switch in _switches(verdicts):
        _add_switch(program, switch)
    for value in program.missing_labels():
        program.label(value)
        program.add(RET, value)
    return program.assemble()


@dataclass(frozen=True, slots=True)
class _Segment:
    """The numbers from `first` up to the next segment: all have one verdict, but for a few single ones."""

    first: int
    verdict: Verdict
    exceptions: tuple[tuple[int, Verdict], ...]

    @property
    def label(self) -> Hashable:
        return ("segment", self.first) if self.exceptions else self.verdict


# A single number inside a run costs one JEQ as an exception and two JGEs as a segment of its own; but exceptions are
# tried one after the other. Four is where neither the size nor the longest path of our two programs shrinks any more.
_EXCEPTIONS = 4


def _segments(verdicts: list[Verdict]) -> list[_Segment]:
    """All numbers, cut into as few segments as a greedy walk from 0 gives."""
    runs = list(_runs(verdicts))
    segments, position = [], 0
    while position < len(runs):
        first, _, verdict = runs[position]
        position += 1
        exceptions: list[tuple[int, Verdict]] = []
        while (
            len(exceptions) < _EXCEPTIONS
            and position + 1 < len(runs)
            and runs[position][1] == 1
            and runs[position + 1][2] == verdict
        ):
            exceptions.append((runs[position][0], runs[position][2]))
            position += 2
        segments.append(_Segment(first, verdict, tuple(exceptions)))
    return segments


def _runs(verdicts: list[Verdict]) -> Iterator[tuple[int, int, Verdict]]:
    """(first number, how many numbers, verdict) of each run of equal verdicts."""
    first = 0
    for number in range(1, len(verdicts) + 1):
        if number == len(verdicts) or verdicts[number] != verdicts[first]:
            yield first, number - first, verdicts[first]
            first = number


def _add_search(program: _Program, segments: list[_Segment]) -> None:
    """A binary search for the segment of the loaded number, then the segment's exceptions."""
    if len(segments) == 1:
        (segment,) = segments
        program.label(segment.label)
        for number, verdict in segment.exceptions[:-1]:
            program.add(JEQ, number, then=verdict)
        for number, verdict in segment.exceptions[-1:]:
            program.add(JEQ, number, then=verdict, otherwise=segment.verdict)
        return
    lower, upper = segments[: len(segments) // 2], segments[len(segments) // 2 :]
    program.label(_search_label(segments))
    program.add(JGE, upper[0].first, then=_search_label(upper), otherwise=_search_label(lower))
    for half in (lower, upper):
        if len(half) > 1 or half[0].exceptions:
            _add_search(program, half)


def _search_label(segments: list[_Segment]) -> Hashable:
    return segments[0].label if len(segments) == 1 else ("search", segments[0].first, segments[-1].first)


def _switches(verdicts: list[Verdict]) -> list[Switch]:
    """All switches, each behind every one that leads to it: jumps only go forward."""
    placed: dict[Switch, None] = {}

    def place(verdict: Verdict) -> None:
        if isinstance(verdict, Switch) and verdict not in placed:
            for _, inner in (*verdict.cases, (0, verdict.default)):
                place(inner)
            placed[verdict] = None

    for verdict in reversed(verdicts):
        place(verdict)
    return list(reversed(placed))


def _add_switch(program: _Program, switch: Switch) -> None:
    program.label(switch)
    program.add(LD_WORD, _ARGUMENTS + 8 * switch.argument)
    if switch.mask != _WHOLE_WORD:
        program.add(AND, switch.mask)
    for value, verdict in switch.cases[:-1]:
        program.add(JEQ, value, then=verdict)
    value, verdict = switch.cases[-1]
    program.add(JEQ, value, then=verdict, otherwise=switch.default)


class _Program:
    """Instructions whose jumps name labels, until `assemble` makes distances of them. Jumps only go forward."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, Hashable, Hashable]] = []
        self._labels: dict[Hashable, int] = {}

    def label(self, label: Hashable) -> None:
        """Name the place of the next instruction."""
        self._labels[label] = len(self._instructions)

    def add(self, code: int, k: int, *, then: Hashable = None, otherwise: Hashable = None) -> None:
        """Append an instruction; a jump without a label goes to the next one."""
        self._instructions.append((code, k, then, otherwise))

    def missing_labels(self) -> list[int]:
        """The labels jumped to but not placed, in order of first use: at the end these are all return values."""
        used = (label for *_, then, otherwise in self._instructions for label in (then, otherwise))
        return [label for label in dict.fromkeys(used) if isinstance(label, int) and label not in self._labels]

    def assemble(self) -> bytes:
        return b"".join(
            SOCK_FILTER.pack(code, self._distance(place, then), self._distance(place, otherwise), k)
            for place, (code, k, then, otherwise) in enumerate(self._instructions)
        )

    def _distance(self, place: int, label: Hashable) -> int:
        distance = 0 if label is None else self._labels[label] - place - 1
        if not 0 <= distance <= 255:
            raise ValueError(f"a jump over {distance} instructions; sock_filter has 8 bits for it")
        return distance
