"""Errors as answers: what is told, and what is only logged."""

from __future__ import annotations

import errno
import json

import pytest

from sockd.http.answers import failure


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_as_one_wherever_it_was_met(number: int) -> None:
    answer = failure(OSError(number, "write", "/var/lib/sockd/secret"), "id")
    assert answer.status == 507 and "retry-after" in answer.fields
    error = json.loads(answer.body)
    assert error["errorType"] == "InsufficientStorageException"
    assert error["errorMessage"] == "the disk of the state directory is full"


def test_another_error_of_the_system_is_a_bug_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    answer = failure(OSError(errno.EIO, "write", "/var/lib/sockd/secret"), "id")
    assert answer.status == 500 and b"secret" not in answer.body
    assert "secret" in caplog.text
