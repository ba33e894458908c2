"""Answers in words, and which errors are the platform's own to give."""

from __future__ import annotations

from tests.support.private_worker import Answer

TYPED = {
    "Sandbox.Failed",
    "Sandbox.Timedout",
    "Sandbox.OutOfMemory",
    "Runtime.ExitError",
    "ServiceUnavailableException",
    "TooManyRequestsException",
    "Packages.InstallFailed",
}
"""errorType of what may become of a request when something under it breaks."""


def in_words(answer: Answer) -> str:
    """answered, or the error's type."""
    return "answered" if answer.status == 200 else answer.error
