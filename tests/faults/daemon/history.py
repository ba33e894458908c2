"""A record of invocations, and whether it is one that a worker may have: as in Jepsen, what clients saw is the evidence.

A function of the workload answers with what only it can know: the event's token, a value derived from it, the number of
the process that it is and how many requests that process has had. Each request has a token of its own.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

WORK = """
import hashlib, os, time
instance = ""
count = 0

def f(event):
    global instance, count
    instance = instance or os.urandom(8).hex()
    count += 1
    time.sleep(event["takes_s"])
    value = hashlib.sha256((event["token"] + "{salt}").encode()).hexdigest()
    return [event["token"], value, instance, count]
"""
LOST = "connection lost"


def expected(token: str, salt: str) -> str:
    """What the function with this salt derives from a token."""
    return hashlib.sha256((token + salt).encode()).hexdigest()


@dataclass
class History:
    """What came of each token. `note` from any thread, `check` at the end."""

    typed: set[str]
    """errorType of failures that may happen."""
    daemon_may_die: bool = False
    answers: dict[str, list[Any]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, token: str, salt: str, status: int, body: bytes) -> None:
        """One answer of the worker."""
        with self._lock:
            if token in self.answers:
                self.wrong.append(f"{token} was answered twice")
                return
            try:
                answer = json.loads(body)
                if status != 200:
                    self._note_failure(token, status, answer)
                    return
                self.answers[token] = answer
                if answer[:2] != [token, expected(token, salt)]:
                    self.wrong.append(f"{token} was answered with {answer}")
            except (ValueError, TypeError, LookupError, AttributeError):
                self.wrong.append(f"{token}: {status} {body[:200]!r}")

    def note_lost(self, token: str, error: BaseException) -> None:
        """A connection that ended without an answer."""
        with self._lock:
            self.failures[LOST] += 1
            if not self.daemon_may_die:
                self.wrong.append(f"{token}: {error!r}")

    def _note_failure(self, token: str, status: int, answer: dict[str, str]) -> None:
        kind = str(answer.get("errorType"))
        self.failures[kind] += 1
        if kind not in self.typed or status < 400:
            self.wrong.append(f"{token}: {status} {answer}")

    def check(self) -> None:
        """None answered wrongly, none executed twice: a process whose request fails is killed, so what one that lives on has
        done was an answer to somebody.

        Raises: AssertionError with the first offences."""
        turns: defaultdict[str, list[int]] = defaultdict(list)
        for _, _, instance, count in self.answers.values():
            turns[instance].append(count)
        for instance, counts in turns.items():
            if len(set(counts)) < len(counts):
                self.wrong.append(f"{instance} gave one turn to two requests: {sorted(counts)}")
            if missing := set(range(1, max(counts))) - set(counts):
                self.wrong.append(
                    f"{instance} had turns that nobody was answered from, and lived on: {sorted(missing)}"
                )
        assert not self.wrong, f"{len(self.wrong)} offences: {self.wrong[:5]}"

    def __str__(self) -> str:
        processes = len({answer[2] for answer in self.answers.values()})
        failed = ", ".join(f"{count} {kind}" for kind, count in self.failures.most_common()) or "none failed"
        return f"{len(self.answers)} answered by {processes} processes; {failed}; {len(self.wrong)} wrong"
