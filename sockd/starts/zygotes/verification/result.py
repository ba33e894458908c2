"""The result of a verification: validate and compare the answers of two starts. Pure; owns nothing.

A trial (`sockd_zygote.top_levels.trial`) returns a digest of each module, and for differing modules a digest and description
of each name. Values that differ between two starts of the function's own, such as times or random numbers, are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sockd.base.untrusted import read_seconds

MOST_SHOWN = 12
"""Differences in the words for people."""
MOST_TEXT = 300
"""Characters of one side of a difference."""
MOST_PARTS = 2
"""Parts of two values that look alike, which are named."""


class Name(msgspec.Struct, frozen=True, array_like=True):
    """What a name of a module is."""

    digest: str
    words: str
    parts: dict[str, str] = {}
    """Digests of what it consists of, by words for it."""


ABSENT = Name("", "nothing")


class Fingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one sandbox answers to a trial."""

    digests: dict[str, str]
    """By module."""
    names: dict[str, dict[str, Name]]
    """By module, of those that were asked for or differ from what was expected; then by name."""
    complete: bool
    """Whether all of these names are there."""
    owners: dict[str, str]
    """Keys of distributions, by module, as far as names are known."""
    pids: list[int]
    """Pids of the process and its Zygotes; equal numbers were not compared."""
    cpu_s: float
    steps: list[Any] = []
    """What was recorded (`top_level.read_steps`)."""
    failure: str = ""
    """The type of the error that the top level has raised; empty: none."""
    peak_bytes: int = 0
    """The most memory that the sandbox used; not what it says itself."""

    def differing(self, other: Fingerprint) -> list[str]:
        """Modules that are not alike, or only in one."""
        every = self.digests.keys() | other.digests.keys()
        return sorted(name for name in every if self.digests.get(name) != other.digests.get(name))


class BadFingerprint(Exception):
    """A sandbox answered with something else."""


def read_fingerprint(body: bytes | memoryview, peak_bytes: int = 0) -> Fingerprint:
    """Args: peak_bytes: the most memory that the sandbox used, as the kernel counts it. Raises: BadFingerprint."""
    try:
        fingerprint = msgspec.json.decode(body, type=Fingerprint)
        return msgspec.structs.replace(fingerprint, cpu_s=read_seconds(fingerprint.cpu_s), peak_bytes=peak_bytes)
    except (ValueError, RecursionError, OverflowError):  # msgspec's errors are ValueErrors
        raise BadFingerprint("the answer of a trial is not a fingerprint") from None


@dataclass(frozen=True, slots=True)
class Difference:
    """One name that a fork has otherwise than all starts of the function's own."""

    module: str
    name: str
    here: str
    """In the fork, in words."""
    own: str
    owner: str
    """The distribution of the module; empty: of none."""
    parts: tuple[str, ...] = ()
    """What the two differ in, if that is known."""

    def __str__(self) -> str:
        where = f"{self.module} {self.name}" if self.module.startswith("(") else f"{self.module}.{self.name}"
        if self.here != self.own:
            return f"{where.rstrip('.')}: {self.here[:MOST_TEXT]} instead of {self.own[:MOST_TEXT]}"
        what = " and in ".join(self.parts[:MOST_PARTS]) or "a part without a name"
        return f"{where.rstrip('.')}: {self.here[:MOST_TEXT]} in both, which differ in {what}"


def differences(fork: Fingerprint, own: Sequence[Fingerprint]) -> list[Difference]:
    """What the fork has otherwise, where all starts of the function's own agree. Args: own: two or more."""
    found: list[Difference] = []
    for module in fork.names.keys() | own[0].names.keys():
        found += _differences_of(module, fork, own)
    return sorted(found, key=lambda each: (each.module.startswith("("), each.module, each.name))


def _differences_of(module: str, fork: Fingerprint, own: Sequence[Fingerprint]) -> Iterator[Difference]:
    first, *others = own
    owner = fork.owners.get(module) or first.owners.get(module, "")
    there = [module in each.digests for each in (fork, *own)]
    if not all(there):
        if len(set(there[1:])) == 1:
            words = "it is loaded", "it is not loaded"
            yield Difference(module, "", words[not there[0]], words[not there[1]], owner)
        return
    here, names, same = _names(fork, module), _names(first, module), [_names(each, module) for each in others]
    for name in here.keys() | names.keys():
        ours, theirs = here.get(name, ABSENT), names.get(name, ABSENT)
        others_have = [each.get(name, ABSENT) for each in same]
        if ours.digest != theirs.digest and all(theirs.digest == each.digest for each in others_have):
            yield Difference(module, name, ours.words, theirs.words, owner, differing_parts(ours, theirs))


def differing_parts(one: Name, other: Name) -> tuple[str, ...]:
    """Name the parts that two values do not have in common, in their order."""
    names = dict.fromkeys((*one.parts, *other.parts))
    return tuple(name for name in names if one.parts.get(name) != other.parts.get(name))


def _names(fingerprint: Fingerprint, module: str) -> Mapping[str, Name]:
    return fingerprint.names.get(module, {})


def in_words(found: Sequence[Difference]) -> str:
    """The first of them, and how many more there are."""
    words = "; ".join(map(str, found[:MOST_SHOWN]))
    return f"{words}; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else words
