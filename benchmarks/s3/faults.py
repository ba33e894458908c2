"""Rules that make answers slow or wrong.

A request meets the first rule, oldest first, that matches `bucket/key` by its beginning, is of its method, and has
`times` left. Only requests that are properly signed do.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MAX_RULES = 1000


class BadRule(Exception):
    """The rule is not one; the message says why."""


@dataclass(slots=True)
class Rule:
    """What to do to answers."""

    match: str = ""
    """The beginning of `bucket/key`; of `bucket/` when a bucket is listed. Empty: everything."""
    method: str | None = None
    delay_s: float = 0.0
    """Wait before the first byte."""
    bandwidth_bytes_s: float | None = None
    """The bandwidth of the body: its last byte goes length / bandwidth after its first could have."""
    status: int | None = None
    """Answer with this status, and do nothing."""
    truncate_after: int | None = None
    """Send this many bytes of the body, then close."""
    wrong_length: int | None = None
    """Announce a body longer by this many bytes (shorter, if negative) than what is sent; close after it."""
    die_after_headers: bool = False
    """Send the headers, then close."""
    reset: bool = False
    """Close with a reset (RST), not an end of stream (FIN), where this rule closes."""
    skip: int = 0
    """Leave this many matching requests alone first."""
    times: int | None = None
    """Apply this often. None: for ever."""
    id: int = 0

    @property
    def closes(self) -> bool:
        return self.truncate_after is not None or self.wrong_length is not None or self.die_after_headers


class Faults:
    """The rules of one server."""

    def __init__(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._next_id = 1
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, Any]) -> Rule:
        """A rule of these values. Raises BadRule."""
        rule = _rule(values)
        with self._lock:
            if len(self._rules) >= MAX_RULES:
                raise BadRule(f"there are {MAX_RULES} rules already")
            rule.id, self._next_id = self._next_id, self._next_id + 1
            self._rules[rule.id] = rule
        return rule

    def take(self, method: str, subject: str) -> Rule | None:
        """The rule for this request, counted."""
        if not self._rules:  # what every request of a server without faults sees
            return None
        with self._lock:
            for rule in self._rules.values():
                if rule.times == 0 or not subject.startswith(rule.match) or rule.method not in (None, method):
                    continue
                if rule.skip:
                    rule.skip -= 1
                    continue
                if rule.times is not None:
                    rule.times -= 1
                return rule
        return None

    def remove(self, rule_id: int) -> bool:
        """False: there was none."""
        with self._lock:
            return self._rules.pop(rule_id, None) is not None

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def snapshot(self) -> list[dict[str, Any]]:
        """The rules with what is left of `skip` and `times`."""
        with self._lock:
            return [asdict(rule) for rule in self._rules.values()]


_KINDS: dict[str, tuple[type, ...]] = {
    "match": (str,),
    "method": (str,),
    "delay_s": (int, float),
    "bandwidth_bytes_s": (int, float),
    "status": (int,),
    "truncate_after": (int,),
    "wrong_length": (int,),
    "die_after_headers": (bool,),
    "reset": (bool,),
    "skip": (int,),
    "times": (int,),
}
assert _KINDS.keys() == {each.name for each in fields(Rule)} - {"id"}


def _rule(values: Mapping[str, Any]) -> Rule:
    for name, value in values.items():
        if name not in _KINDS:
            raise BadRule(f"unknown: {name}")
        kinds = _KINDS[name]
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise BadRule(f"{name} is a {kinds[-1].__name__}")
    rule = Rule(**{name: value for name, value in values.items() if value is not None})
    if not 0 <= rule.delay_s <= 600:
        raise BadRule("delay_s is from 0 to 600")
    if rule.bandwidth_bytes_s is not None and rule.bandwidth_bytes_s < 1:
        raise BadRule("bandwidth_bytes_s is 1 or more")
    if rule.status is not None and not 400 <= rule.status <= 599:
        raise BadRule("status is from 400 to 599")
    if min(rule.truncate_after or 0, rule.skip, rule.times or 0) < 0:
        raise BadRule("truncate_after, skip and times are not negative")
    return rule
