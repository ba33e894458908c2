"""Examples of the documentation, run as a reader would: every ```console block of a page, in order, in one shell.

    $ command          a line of its own; a here-document belongs to it
    output             what follows must come, in this order; … stands for any text, a line of … for any lines.
                       A command without is asked for nothing but success, as all are
    $ server &         is started, waited for until it has said its first line, and ended after the page; so is a detached worker

Owns the shell, the servers and their directory. Ports that a page names are replaced by free ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from sockd.client.python.starting import is_locked

DEADLINE_S = 60
_FENCE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
_HEREDOC = re.compile(r"<<'?(\w+)'?")
_ANY = "…"


class Example(NamedTuple):
    """A command and what it prints."""

    command: str
    expected: list[str]


class Differs(Exception):
    """An example does not do what its page says."""


def examples(text: str) -> list[Example]:
    """Return the examples of a page."""
    found: list[Example] = []
    for block in _FENCE.findall(text):
        lines = iter(block.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                found[-1].expected.append(line)
                continue
            command = line[2:]
            heredoc = _HEREDOC.search(command)
            if heredoc:
                for more in lines:
                    command += f"\n{more}"
                    if more == heredoc[1]:
                        break
            found.append(Example(command, []))
    return found


def matches(expected: list[str], shown: list[str]) -> bool:
    """Whether the lines are those expected."""
    if not expected:
        return not shown
    if expected[0].strip() == _ANY:
        return any(matches(expected[1:], shown[skipped:]) for skipped in range(len(shown) + 1))
    pattern = ".*".join(map(re.escape, expected[0].split(_ANY)))
    return bool(shown) and bool(re.fullmatch(pattern, shown[0])) and matches(expected[1:], shown[1:])


class Reader:
    """Somebody who types what a page says."""

    def __init__(self, directory: Path, ports: tuple[int, ...]) -> None:
        """Args: directory: where it is done; ports: those that pages name."""
        self._directory = directory
        self._stack = ExitStack()
        self._ports = {str(port): str(_free_port()) for port in ports}
        self._env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SOCKD_STATE_DIR": str(directory / "state"),
            "SOCKD_URL": f"http://127.0.0.1:{self._ports['5000']}",
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int((self._directory / "state" / "lock").read_text())
            if is_locked(self._directory / "state"):  # by the worker that was detached
                pidfd = os.pidfd_open(pid)
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                select.select([pidfd], [], [], DEADLINE_S)
                os.close(pidfd)

    def paste(self, block: str) -> list[str]:
        """Type lines at once. Raises: Differs."""
        lines = "\n".join(self._translated(line) for line in block.splitlines())
        status, shown = self._type(f"set -e\n{lines}")
        if status:
            raise Differs("\n".join([*shown, f"--- status {status}"]))
        return shown

    def follow(self, page: str) -> None:
        """Type every example. Raises: Differs, AssertionError."""
        for example in examples(page):
            if example.command.endswith(" &"):
                self._serve(self._translated(example.command[:-2]))
                continue
            status, shown = self._type(self._translated(example.command))
            expected = [self._translated(line).rstrip() for line in example.expected]
            if status or (expected and not matches(expected, shown)):
                reported = "\n".join(
                    ["", f"$ {example.command}", *shown, f"--- status {status}, instead of ---", *expected]
                )
                raise Differs(reported)

    def _translated(self, text: str) -> str:
        for reported, real in self._ports.items():
            text = re.sub(rf"(?<=[: ]){reported}\b", real, text)
        return re.sub(r"^sockd up\b", f"sockd up --listen 127.0.0.1:{self._ports['5000']}", text)

    def _type(self, command: str) -> tuple[int, list[str]]:
        """Its status and lines, from a shell that remembers what was exported and where the last one was."""
        memory = self._directory / ".shell"
        remember = f'status=$?; {{ export -p; echo "cd $PWD"; }} > {memory}; exit $status'
        done = subprocess.run(
            ["bash", "-c", f"[ -e {memory} ] && . {memory}\n{command}\n{remember}"],
            cwd=self._directory,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, [line.rstrip() for line in done.stdout.rstrip().splitlines()]

    def _serve(self, command: str) -> None:
        memory = self._directory / ".shell"
        with (self._directory / ".servers").open("a") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"[ -e {memory} ] && . {memory}\nexec {command}"],
                cwd=self._directory,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, f"{command}: {(self._directory / '.servers').read_text()}"


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)
    assert process.stdout is not None
    process.stdout.close()


def _free_port() -> int:
    """One that the kernel gives to nobody meanwhile, as it is below those that it chooses from."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
