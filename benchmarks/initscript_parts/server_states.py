"""States that servers in a benchmark start from, each made by the program that will read it. Owns the programs that make them."""

from __future__ import annotations

import array
import base64
import json
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

DIMENSIONS = 128
VALUE_BYTES, VALUES = 4096, 3300
"""The values of an etcd, 14 MB."""
KEPT = "kept"
"""A key of memcached that was set last, so that no other has taken its place."""
READY_S = 20.0


def free_port() -> int:
    """A port of the host that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def connected(port: int) -> socket.socket:
    """A connection to a server that is starting. Raises: OSError, if it does not take one in time."""
    until_s = time.monotonic() + READY_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=READY_S)
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def memcached_state(scratch: Path, megabytes: int) -> tuple[bytes, bytes]:
    """Fill a memcached and end it. Returns: its memory, and what it has written of it."""
    memory, port = scratch / "memory", free_port()
    options = ["-l", "127.0.0.1", "-p", str(port), "-m", str(megabytes), "-e", str(memory), "-u", "root"]
    with subprocess.Popen(["memcached", *options]) as process:
        with connected(port) as client, client.makefile("rb") as answers:
            value = b"v" * 5000
            for number in range(megabytes * 150):
                client.sendall(b"set key-%d 0 0 5000 noreply\r\n%b\r\n" % (number, value))
            client.sendall(b"set %b 0 0 5000\r\n%b\r\n" % (KEPT.encode(), value))
            answers.readline()
        process.send_signal(signal.SIGUSR1)
        process.wait()
    return memory.read_bytes(), memory.with_suffix(".meta").read_bytes()


def etcd_state(scratch: Path) -> bytes:
    """Fill an etcd, and return a snapshot of it."""
    clients, peers = free_port(), free_port()
    url, peer = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
    urls = ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer]
    urls += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    command = ["etcd", "--data-dir", str(scratch / "etcd"), *urls]
    value = base64.b64encode(random.Random(0).randbytes(VALUE_BYTES)).decode()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            connected(clients).close()
            for first in range(0, VALUES, 100):
                names = [base64.b64encode(b"key-%d" % number).decode() for number in range(first, first + 100)]
                puts = [{"requestPut": {"key": name, "value": value}} for name in names]
                body = json.dumps({"success": puts}).encode()
                with urllib.request.urlopen(f"{url}/v3/kv/txn", body, timeout=READY_S) as answer:
                    answer.read()
            file = scratch / "etcd.db"
            save = ["etcdctl", "--endpoints", url, "snapshot", "save", str(file)]
            subprocess.run(save, check=True, capture_output=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
        finally:
            process.terminate()
    return file.read_bytes()


def vectors(count: int = 18_000) -> bytes:
    """Vectors of 128 numbers, each unlike all others: 9.2 MB."""
    drawn = random.Random(0)
    return array.array("f", (drawn.random() for _ in range(count * DIMENSIONS))).tobytes()


def lacking(*programs: str) -> str:
    """Why a server cannot be measured here; empty: it can."""
    missing = [program for program in programs if shutil.which(program) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""
