"""Services whose programs fail, or whose worker does: who gets an error, what serves next, and what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.running import Answer, RunningDaemon
from tests.daemon.services.test_services import SERVER, files, get, log_of, programs, row, wait_state
from tests.support.cases import case

pytestmark = pytest.mark.root

LEAVING = """
import os, socket, uuid
token = uuid.uuid4().hex
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
def is_leaving():
    \"\"\"Answer one request. Returns: whether it was for /last.\"\"\"
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as stream:
        words, length = stream.readline().split(), 0
        if not words:
            return False  # it was asked whether it is ready
        while line := stream.readline().strip():
            length = int(line.split()[1]) if line.startswith(b"content-length") else length
        print("asked by", words[0].decode(), stream.read(length).decode(), flush=True)
        stream.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 32\\r\\n\\r\\n" + token.encode())
    return words[1] == b"/last"
def has_unread():
    \"\"\"Whether bytes have come on a connection that was not accepted: its socket has no inode yet (proc(5), tcp).\"\"\"
    with open("/proc/self/net/tcp") as lines:
        rows = [line.split() for line in lines][1:]
    return any(row[3] == "01" and row[9] == "0" and not row[4].endswith(":00000000") for row in rows)
while not is_leaving():
    pass
while not has_unread():
    pass
os._exit(0)
"""
"""Answers one request at a time; after /last it accepts no more, and ends as soon as one has been sent to it."""


@case(
    "L1",
    "end the program in mid-request",
    expect="502 for this request; the next one has a new program, the log says why",
)
def test_a_kept_service_runs_without_a_request_and_is_started_again(daemon: RunningDaemon) -> None:
    daemon.deploy("kept", files("min = 1\nidle_s = 0.1\n"))
    wait_state(daemon, "kept", "running")
    token = get(daemon, "kept/")["token"]
    assert daemon.request("GET", "/run/kept/exit").status == 502
    again = daemon.when(lambda: found if (found := row(daemon, "kept"))["starts"] == 2 else None)
    assert again["failures"] == 1 and "exit status 3" in again["reason"]
    assert get(daemon, "kept/")["token"] != token
    daemon.when(lambda: "the service has ended: Runtime exited with error: exit status 3" in log_of(daemon, "kept"))
    assert "leaving" in log_of(daemon, "kept")


@case(
    "L2",
    "have the program take more memory than it may",
    expect="502 for this request; a new program serves the next one",
)
def test_a_program_over_its_memory_is_started_again_and_the_reason_is_reported(daemon: RunningDaemon) -> None:
    daemon.deploy("eater", files(), memory_mb=64)
    assert daemon.request("GET", "/run/eater/eat").status == 502
    found = daemon.when(lambda: found if (found := row(daemon, "eater"))["failures"] else None)
    assert "memory" in found["reason"].lower()
    get(daemon, "eater/")


@case("L3", "have the program close its port and go on", expect="a new program serves; the reason is said")
def test_a_program_that_refuses_connections_is_replaced(daemon: RunningDaemon) -> None:
    daemon.deploy("deaf", files())
    token = get(daemon, "deaf/")["token"]
    daemon.request("GET", "/run/deaf/close")
    # A thread that polls the socket keeps it open for a moment.
    answers: list[Answer] = []

    def is_replaced() -> bool:
        answers.append(daemon.request("GET", "/run/deaf/"))
        return bool(row(daemon, "deaf")["starts"] == 2)

    daemon.when(is_replaced)
    assert answers[-1].status == 200 and answers[-1].json["token"] != token, (
        "it was refused, and waited for the next one"
    )
    assert "refuses connections" in row(daemon, "deaf")["reason"]


@case(
    "L4", "have each start of the program fail", expect="503 with the reason; longer and longer delays between starts"
)
def test_failures_in_a_row_lengthen_the_delay_and_requests_get_its_reason(daemon: RunningDaemon) -> None:
    daemon.deploy("failing", files(), env={"FAILS": "1"}, timeout_s=0.3)
    refused = [daemon.request("GET", "/run/failing/") for _ in range(4)]
    assert {each.status for each in refused} == {503}
    assert all(each.json["errorType"] == "Service.NotReady" for each in refused)
    assert "exit status 7" in refused[0].json["errorMessage"]
    assert "is started again in" in refused[-1].json["errorMessage"] and int(refused[-1].headers["retry-after"]) >= 1
    found = row(daemon, "failing")
    assert found["state"] == "waiting" and found["failures"] == 2 and found["retry_in_s"] > 0
    assert "cannot go on" in log_of(daemon, "failing")


@case("L5", "deploy a version whose program fails", expect="the old one serves until one starts")
def test_a_new_version_that_does_not_start_leaves_the_old_one_serving(daemon: RunningDaemon) -> None:
    daemon.deploy("careful", files())
    token = get(daemon, "careful/")["token"]
    daemon.deploy("careful", files(), env={"FAILS": "1"})
    daemon.when(lambda: row(daemon, "careful")["failures"] >= 2)
    assert get(daemon, "careful/")["token"] == token
    daemon.deploy("careful", files(source=SERVER.replace('"one"', '"three"')))
    daemon.when(lambda: get(daemon, "careful/")["version"] == "three")


@case("L6", "remove a service that runs", expect="404, and no process of it")
def test_a_removed_service_ends_and_leaves_no_process(daemon: RunningDaemon) -> None:
    daemon.deploy("removed", files("min = 1\n"), command=["/usr/bin/python3", "server.py", "of-removed"])
    wait_state(daemon, "removed", "running")
    assert programs(daemon, "of-removed")
    assert daemon.remove("removed").status == 200
    assert daemon.request("GET", "/run/removed/").status == 404
    assert all(each["name"] != "removed" for each in daemon.manage("GET", "/services").json)
    assert not programs(daemon, "of-removed")


@case(
    "L7",
    "kill the worker, with SIGKILL, while a service runs",
    expect="nothing of it is left; the next worker starts it",
)
def test_a_killed_daemon_leaves_nothing_of_a_service_and_the_next_one_starts_it(tmp_path: Path) -> None:
    daemon = RunningDaemon.start(tmp_path / "state")
    try:
        daemon.deploy("kept", files("min = 1\n"))
        wait_state(daemon, "kept", "running")
        token = get(daemon, "kept/")["token"]
        daemon.kill()
        daemon.end_reading()
        daemon = RunningDaemon.start(tmp_path / "state")
        wait_state(daemon, "kept", "running")
        assert get(daemon, "kept/")["token"] != token
        assert daemon.terminate() == 0, daemon.lines
        assert not daemon.pids()
    finally:
        daemon.close()


@case(
    "L8",
    "look for rights of the program, and leave processes without a parent",
    expect="no capability, seccomp; what is left is reaped",
)
def test_the_program_of_a_service_is_confined_as_a_function_is(daemon: RunningDaemon) -> None:
    daemon.deploy("confined", files())
    reported = get(daemon, "confined/")
    assert reported["confined"] == ["0000000000000000", "2", "1"]
    assert reported["inherited"] == ["0", "1", "2", "3"], "standard streams, and the listing itself"
    get(daemon, "confined/orphan")
    # The sandbox's first process and the program: what it has left is reaped.
    daemon.when(lambda: len(get(daemon, "confined/")["processes"]) == 2)


@case(
    "L16",
    "send requests to a program that is ending and accepts no more",
    expect="a new program serves them; 502 for one that may not be sent twice",
)
@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", b""), ("PUT", b"once"), ("POST", b"once")])
def test_a_request_that_an_ending_program_has_not_read_is_served_by_the_next(
    daemon: RunningDaemon, method: str, body: bytes
) -> None:
    name = f"leaving-{method.lower()}-{len(body)}"
    daemon.deploy(name, files(source=LEAVING))
    first = daemon.request("GET", f"/run/{name}/last").body
    answer = daemon.request(method, f"/run/{name}/", body)
    if (method, body) == ("POST", b"once"):
        assert answer.status == 502 and answer.json["errorType"] == "Service.AnswerLost"
        assert daemon.request("GET", f"/run/{name}/").status == 200
        assert "asked by POST" not in log_of(daemon, name)
    else:
        assert answer.status == 200 and answer.body != first, "another program has answered"
        daemon.when(lambda: log_of(daemon, name).count(f"asked by {method} {body.decode()}") >= 1)
    assert row(daemon, name)["starts"] == 2
