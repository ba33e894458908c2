"""Errors as answers: what is answered, and what is only logged."""

from __future__ import annotations

import errno
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sockd.http.server.messages.answers import failure


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_as_one_wherever_it_was_met(number: int) -> None:
    answer = failure(OSError(number, "write", "/var/lib/sockd/secret"), "id")
    assert answer.status == 507 and "retry-after" in answer.fields
    error = json.loads(answer.body)
    assert error["errorType"] == "InsufficientStorageException"
    assert error["errorMessage"].startswith("the disk of the state directory is full; free some of it")


def test_another_error_of_the_system_is_a_bug_and_reported_without_details(caplog: pytest.LogCaptureFixture) -> None:
    answer = failure(OSError(errno.ENOENT, "open", "/var/lib/sockd/secret"), "id")
    assert answer.status == 500 and b"secret" not in answer.body
    assert "secret" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_what_the_host_does_not_give_is_named_and_nothing_else_is(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = failure(OSError(number, "open", "/var/lib/sockd/secret"), "id")
    error = json.loads(answer.body)
    assert (answer.status, error["errorType"]) == (503, "Host.Failed")
    assert errno.errorcode[number] in error["errorMessage"] and "secret" not in error["errorMessage"]
    assert "secret" in caplog.text and "Traceback" not in caplog.text


def test_a_registry_that_cannot_be_written_is_the_hosts_failure(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "registry.sqlite")) as database:
        database.execute("CREATE TABLE t (x)")
    opened = closing(sqlite3.connect(f"file:{tmp_path}/registry.sqlite?mode=ro", uri=True))
    with opened as database, pytest.raises(sqlite3.OperationalError) as raised:
        database.execute("INSERT INTO t VALUES (1)")
    error = json.loads(failure(raised.value, "id").body)
    assert error["errorType"] == "Host.Failed" and "readonly database" in error["errorMessage"]
