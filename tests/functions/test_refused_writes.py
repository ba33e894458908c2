"""What a start could not write, in the words of many programs."""

from __future__ import annotations

import pytest

from sockd.functions.serving.refused_writes import MOST_SHOWN, Refused, advice, find

SAID = [
    (
        'nginx: [emerg] mkdir() "/var/cache/nginx/client_temp" failed (30: Read-only file system)',
        "/var/cache/nginx/client_temp",
    ),
    ("OSError: [Errno 30] Read-only file system: '/srv/data.db'", "/srv/data.db"),
    ("/bin/sh: 1: cannot create /etc/app.conf: Read-only file system", "/etc/app.conf"),
    (
        "/docker-entrypoint.sh: line 12: /etc/nginx/conf.d/default.conf: Read-only file system",
        "/etc/nginx/conf.d/default.conf",
    ),
    ("mkdir: cannot create directory '/opt/cache': Read-only file system", "/opt/cache"),
    ("touch: /var/lib/x: Read-only file system", "/var/lib/x"),
    ("Error: EROFS: read-only file system, open '/app/.next/cache/a'", "/app/.next/cache/a"),
    ("panic: open /data/db.sqlite: read-only file system", "/data/db.sqlite"),
    ("java.nio.file.FileSystemException: /logs/app.log: Read-only file system", "/logs/app.log"),
]
DENIED = [
    ("PermissionError: [Errno 13] Permission denied: '/data'", "/data"),
    ("Error: EACCES: permission denied, mkdir '/app/tmp'", "/app/tmp"),
    ("open /data/x: permission denied", "/data/x"),
]


@pytest.mark.parametrize(("line", "path"), SAID)
def test_a_read_only_path_is_found_where_a_program_says_it(line: str, path: str) -> None:
    assert find(f"starting /usr/bin/x\n{line}\ngood bye") == [Refused(path, is_read_only=True)]


@pytest.mark.parametrize(("line", "path"), DENIED)
def test_so_is_a_path_that_is_another_users(line: str, path: str) -> None:
    assert find(line) == [Refused(path, is_read_only=False)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "listening on /tmp/socket",
        "bind() to 0.0.0.0:80 failed (13: Permission denied)",
        "/a\nRead-only file system",
    ],
)
def test_what_names_no_path_next_to_an_error_tells_nothing(text: str) -> None:
    assert find(text) == [] and advice(text, has_image=True, writable_root=False) == ""


def test_a_path_is_named_once_and_few_are_named() -> None:
    lines = [f"/dir/{number}: Read-only file system" for number in range(9)]
    assert find("\n".join([lines[0], *lines])) == [Refused(f"/dir/{number}", True) for number in range(MOST_SHOWN)]


def test_the_remedy_is_one_that_the_function_can_use() -> None:
    text = f"{SAID[0][0]}\n{DENIED[0][0]}"
    image = advice(text, has_image=True, writable_root=False)
    assert (
        "/var/cache/nginx/client_temp (read-only file system): set writable_root = true, or have it write to /tmp"
        in image
    )
    assert "/data (permission denied): make it the USER's" in image
    assert "writable_root" not in advice(text, has_image=True, writable_root=True)
    code = advice(text, has_image=False, writable_root=False)
    assert "writable_root" not in code and "USER" not in code and code.endswith("have it write to /tmp")
