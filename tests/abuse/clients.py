"""Programs of a user of this host: a client in Python, an impostor that answers in the worker's place, somebody else's eyes."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.daemon.running import REPO, RunningDaemon
from tests.support.emulated import SLOWER

NOBODY = 65534
DEADLINE_S = 30 * SLOWER


def environment(daemon: RunningDaemon, home: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a client of this worker, whose keys are in `home`."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("SOCKD_")}
    ours = {"SOCKD_STATE_DIR": str(daemon.state), "PYTHONPATH": str(REPO), "XDG_CONFIG_HOME": str(home)}
    return {**known, **ours, "NO_COLOR": "1", **variables}


def client(daemon: RunningDaemon, script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script, or with `-m` a module, beside its files."""
    command = [sys.executable, *(arguments or (script.name,))]
    env = environment(daemon, script.parent.parent, **variables)
    return subprocess.run(command, cwd=script.parent, env=env, capture_output=True, text=True, timeout=DEADLINE_S)


@contextmanager
def impostor(answer: Callable[[bytes, Mapping[str, str], str], tuple[int, bytes, Mapping[str, str]]]) -> Iterator[str]:
    """The address of a server that answers in the worker's place. Args: answer: body, headers and path to an answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, reported, headers = answer(
                body, {name.lower(): value for name, value in self.headers.items()}, self.path
            )
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(reported))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reported)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def relayed(
    daemon: RunningDaemon, body: bytes, headers: Mapping[str, str], path: str
) -> tuple[int, bytes, dict[str, str]]:
    """What the worker answers to a request that an impostor has got."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=DEADLINE_S)
    try:
        connection.request("POST", path, body, {name: value for name, value in headers.items() if name != "host"})
        response = connection.getresponse()
        reported = response.read()
        return (
            response.status,
            reported,
            {name: value for name, value in response.getheaders() if name.startswith("x-")},
        )
    finally:
        connection.close()


AS_NOBODY = f"""
import json, os, socket, sys
directory = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
paths = json.load(sys.stdin)
seen = {{}}
for path in ["."] + paths:
    for how, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY), ("list", os.O_RDONLY | os.O_DIRECTORY)):
        try:
            os.close(os.open(path, flags | os.O_NONBLOCK, dir_fd=directory))
            seen.setdefault(path, []).append(how)
        except OSError:
            pass
def reaches(name):
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(f"/proc/self/fd/{{directory}}/{{name}}")
            return True
        except OSError:
            return False
print(json.dumps({{"seen": seen, "run.sock": reaches("run.sock"), "sockd.sock": reaches("sockd.sock")}}))
"""


def as_nobody(state: Path) -> dict[str, Any]:
    """What a user without rights can open of a directory, of all paths in it that root knows.

    It is given the directory itself, so that closed directories above it (a test's own) hide nothing."""
    paths = [str(path.relative_to(state)) for path in state.rglob("*")]
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(state)],
        input=json.dumps(paths),
        capture_output=True,
        text=True,
        check=True,
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    return {**seen, "paths": len(paths)}


COMMAND_AS_NOBODY = f"""
import json, os, shutil, sys
from sockd.client.cli.main import main
def run(user):
    sys.argv = ["sockd", "invoke", sys.argv[2], "-d", json.dumps(user), "--state-dir", sys.argv[1]]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
directory = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
sys.argv[1:2] = [f"/proc/self/fd/{{directory}}"]
given = sys.argv[1:]
run("root")  # imports what the second run needs, out of directories that may be closed to it
os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
sys.argv[1:] = given
run("nobody")
"""


def invoke_as_nobody(state: Path, name: str) -> subprocess.CompletedProcess[str]:
    """`sockd invoke` by root and then by a user without rights, with the user's name as the payload."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND_AS_NOBODY, str(state), name], capture_output=True, text=True, check=False
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
