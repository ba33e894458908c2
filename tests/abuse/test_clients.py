"""Group K: what stands in the worker's place, or in a function's, gets nothing from a client and runs nothing in it."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.clients import DEADLINE_S, NOBODY, client, environment, free_port, impostor, relayed
from tests.daemon.running import DeployFailed
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

APP = """
import sys
import sockd

@sockd.function
def turned(pair):
    return pair[1], pair[0]

if __name__ == "__main__":
    for line in sys.stdin:
        try:
            print(turned.remote((1, int(line))), flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
"""
ANSWERING = '''
import socket, time
ANSWER = b"""%s"""
def f(event):
    """Be a worker on the host's loopback, for one request."""
    server = socket.create_server(("127.0.0.1", event["port"]))
    while True:
        peer, _ = server.accept()
        with peer:
            data = peer.recv(65536)
            if not data:
                continue
            while data.count(b"pickle") < 1:
                data += peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\\r\\nconnection: close\\r\\ncontent-length: %%d\\r\\n\\r\\n" %% len(ANSWER) + ANSWER)
            return True
'''


class Touch:
    """Makes a directory where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def program(directory: Path, text: str = APP, name: str = "app.py") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    return directory / name


def called(worker: PrivateWorker, script: Path, lines: str = "2\n", **variables: str) -> str:
    """What the program says to these lines."""
    env = environment(worker.daemon, script.parent.parent, **variables)
    command = [sys.executable, script.name]
    done = subprocess.run(
        command, cwd=script.parent, env=env, input=lines, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@case(
    "K1",
    "a function listens in the worker's place and answers a client with a pickle of its own",
    expect="UnverifiedAnswer; nothing is unpickled",
)
def test_an_impostors_pickle_is_not_read(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    script = program(tmp_path / "project")
    assert called(worker, script) == "(2, 1)\n"
    text = base64.b64encode(pickle.dumps(Touch(tmp_path / "touched"))).decode()
    worker.deploy("impostor", ANSWERING % f'{{"sockd": 1, "pickle": "{text}"}}', timeout_s=20)
    port = free_port()
    listening = threading.Thread(target=worker.invoke, args=("impostor", {"port": port}))
    listening.start()
    for _ in range(100_000):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            continue
    said = called(worker, script, SOCKD_URL=f"http://127.0.0.1:{port}")
    listening.join()
    happened(said.strip()[:80])
    assert said.startswith("UnverifiedAnswer ")
    assert not (tmp_path / "touched").exists()


@case(
    "K1",
    "an impostor passes a signed call on to the worker, and answers the next call with the same answer",
    expect="the worker's own answer is taken, the one that is repeated or changed is refused",
)
def test_an_answer_is_good_for_one_call(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    script = program(tmp_path / "project")
    assert called(worker, script) == "(2, 1)\n"
    answers: list[tuple[int, bytes, dict[str, str]]] = []

    def repeat(body: bytes, headers: Mapping[str, str], path: str) -> tuple[int, bytes, Mapping[str, str]]:
        if not answers:
            answers.append(relayed(worker.daemon, body, headers, path))
        return answers[0]

    def unsign(body: bytes, headers: Mapping[str, str], path: str) -> tuple[int, bytes, Mapping[str, str]]:
        status, reported, _ = relayed(worker.daemon, body, headers, path)
        return status, reported, {}

    def change(body: bytes, headers: Mapping[str, str], path: str) -> tuple[int, bytes, Mapping[str, str]]:
        status, reported, signed = relayed(worker.daemon, body, headers, path)
        return status, reported + b" ", signed

    with impostor(repeat) as url:
        said = called(worker, script, "2\n3\n", SOCKD_URL=url).splitlines()
    happened(f"first {said[0]}, then {said[1][:16]}")
    assert said[0] == "(2, 1)" and said[1].startswith("UnverifiedAnswer ")
    for dishonest in (unsign, change):
        with impostor(dishonest) as url:
            assert called(worker, script, SOCKD_URL=url).startswith("UnverifiedAnswer "), dishonest.__name__


@case(
    "K1", "a function looks for the key of pickles in its code, its environment and its memory", expect="it is nowhere"
)
def test_a_function_never_has_the_key(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    looking = """
import sockd
@sockd.function
def looks(forms):
    import os
    places = {path: open(path, "rb").read() for path in ("/var/task/sockd.py", "/var/task/sockd.toml", "/proc/self/environ")}
    places["os.environ"] = repr(dict(os.environ)).encode()
    half = [form[:len(form) // 2] for form in forms]
    return {place: any(form in text for form in half) for place, text in places.items()}
if __name__ == "__main__":
    from sockd.client.python.values import key_of
    key = key_of("looks")
    print(looks.remote((key, key.hex().encode(), repr(key).encode()))
          , key.hex())
"""
    done = client(worker.daemon, program(tmp_path / "project", looking))
    assert done.returncode == 0, done.stderr
    found, _, key = done.stdout.rpartition(" ")
    happened(found)
    assert "True" not in found and "sockd.toml" in found
    registry = (worker.daemon.state / "registry.sqlite").read_bytes()
    wal = (worker.daemon.state / "registry.sqlite-wal").read_bytes()
    assert key.strip().encode() not in registry + wal, "sealed on the disk"
    assert key.strip() not in worker.daemon.manage("GET", "/functions/looks").body.decode()


@case(
    "K1",
    "another user listens at run.sock of a directory that a client was given",
    expect="the kernel tells who listens; the client sends nothing",
)
def test_a_socket_of_another_user_is_sent_nothing(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    script = program(tmp_path / "project")
    listen = f"""
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind("run.sock")
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
sock.listen()
print("listening", flush=True)
got = b""
for _ in range(2):
    peer, _ = sock.accept()
    got += peer.recv(65536)
print(len(got), flush=True)
"""
    command = [sys.executable, "-c", listen]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "listening\n"
        said = called(worker, script, SOCKD_STATE_DIR=str(tmp_path))
        cli = client(worker.daemon, script, "-m", "sockd", "invoke", "f", SOCKD_STATE_DIR=str(tmp_path))
        received = listener.stdout.readline()
    happened(f"{said.strip()[:60]}; received {received.strip()} bytes")
    assert said.startswith("NoWorker ") and f"uid {NOBODY} listens there" in said
    assert cli.returncode == 69 and f"uid {NOBODY} listens there" in cli.stderr
    assert received == "0\n"


ALONE_ON_5000 = """
import fcntl, os, socket, struct, subprocess, sys
from sockd.linux import syscalls
syscalls.unshare(0x40000000)  # CLONE_NEWNET: port 5000 is ours here
with socket.socket() as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
server = socket.create_server(("127.0.0.1", 5000))
server.setblocking(False)
for state in sys.argv[1:]:
    for command in (["-m", "sockd", "invoke", "neighbour", "-d", "7"], ["app.py"]):
        done = subprocess.run([sys.executable, *command], env={**os.environ, "SOCKD_STATE_DIR": state}, input="2\\n",
                              capture_output=True, text=True)
        print(done.returncode, (done.stdout + done.stderr).strip().splitlines()[0])
try:
    server.accept()
    print("asked")
except BlockingIOError:
    print("not asked")
"""


@case(
    "K1",
    "a program listens on 127.0.0.1:5000 while the worker is elsewhere, and while there is none",
    expect="no client asks it: the state directory says where the worker is",
)
def test_no_client_guesses_a_port(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    script = program(tmp_path / "project")
    assert called(worker, script) == "(2, 1)\n"
    (tmp_path / "empty").mkdir()
    arguments = ("-c", ALONE_ON_5000, str(tmp_path / "empty"), str(worker.daemon.state))
    done = client(worker.daemon, script, *arguments)
    assert done.returncode == 0, done.stderr
    nobody, no_worker, invoked, answered, asked = done.stdout.splitlines()
    happened(f"{nobody}; {no_worker[:40]}; {invoked}; {answered}; {asked}")
    assert nobody.startswith("69 error: no worker answers at") and no_worker.startswith("0 NoWorker ")
    assert (invoked, answered, asked) == ("0 7", "0 (2, 1)", "not asked")


@case(
    "K12",
    "project B deploys a decorated function under the name of A's, or of one of `sockd deploy`, and the reverse",
    expect="NameTaken; with force A's running program gets OtherCode, never B's answer",
)
def test_a_name_is_not_taken_over(worker: PrivateWorker, happened: Happened, tmp_path: Path) -> None:
    ours = program(tmp_path / "a" / "project")
    theirs = program(tmp_path / "a" / "other", APP.replace("pair[1], pair[0]", "'of B', pair[0]"))
    env = environment(worker.daemon, ours.parent.parent)
    command = [sys.executable, ours.name]
    with subprocess.Popen(
        command, cwd=ours.parent, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:

        def ask(number: int) -> str:
            assert running.stdin is not None and running.stdout is not None
            running.stdin.write(f"{number}\n")
            running.stdin.flush()
            return running.stdout.readline()

        assert ask(2) == "(2, 1)\n"
        refused = called(worker, theirs)
        assert refused.startswith("NameTaken ") and str(ours) in refused and "--force" in refused
        assert ask(3) == "(3, 1)\n", "A goes on"
        with pytest.raises(DeployFailed, match="was deployed from") as plain:
            worker.deploy("turned", "def f(event): return {'sockd': 1, 'json': 'of a directory'}")
        assert plain.value.status == 409
        by_cli = client(worker.daemon, theirs, "-m", "sockd", "deploy", theirs.name)
        assert by_cli.returncode == 1 and "was deployed from" in by_cli.stderr
        forced = client(worker.daemon, theirs, "-m", "sockd", "deploy", theirs.name, "--force")
        assert forced.returncode == 0, forced.stderr
        lost = ask(4)
        assert lost.startswith("OtherCode ") and "of B" not in lost
    assert called(worker, theirs) == "('of B', 1)\n"
    again = called(worker, ours)
    happened(f"{refused[:9]}; {lost[:9]}; a new run of A: {again[:9]}")
    assert again.startswith("NameTaken ")
    worker.deploy("turned", "def f(event): return {'sockd': 1, 'json': 'of a directory'}", force=True)
    assert called(worker, theirs).startswith("NameTaken "), (
        "the reverse: a directory's function is not taken over either"
    )
    worker.daemon.remove("turned")
    assert called(worker, ours) == "(2, 1)\n"


@case(
    "K12", "code changes between a call's admission to the queue and its turn", expect="412; the other code is not run"
)
def test_a_queued_call_does_not_run_other_code(worker: PrivateWorker, happened: Happened) -> None:
    first = worker.deploy("changing", "def f(event): return 1")["version"]
    assert worker.invoke("changing", None, x_sockd_if_code=first).status == 200
    worker.deploy("changing", "def f(event): return 2")
    refused = worker.invoke("changing", None, x_sockd_if_code=first)
    happened(f"{refused.status} {refused.error}")
    assert (refused.status, refused.error) == (412, "PreconditionFailedException")
    assert "x-sockd-sandbox" not in refused.headers
    assert worker.invoke("changing", None, x_sockd_if_code="nonsense").status == 400
