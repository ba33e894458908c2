"""Images whose mount is lost under functions: the agent of images is given up, or the holder of its connection is gone.

What ran in the image ends, requests get the reason, and new sandboxes and Zygotes are made on the image's next mount.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.images.test_image_failures import agents_of, function_in_an_image
from tests.daemon.images.test_image_zygotes import zygotes
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import Answer, RunningDaemon
from tests.support.cases import case
from tests.support.fuse import workers_resend
from tests.support.images.image_layouts import Files, python_files, write_layout

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

HANDLER = """
import mmap, os, socket
born = os.urandom(8).hex()
with open("/large", "rb") as file:
    large = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def handler(event, context):
    if "port" in event:
        with socket.create_connection(("127.0.0.1", event["port"])) as connection:
            connection.recv(1)
    if "who" in event:
        return born
    return large[event["at"]]
"""
LARGE = 8 << 20
END = LARGE - 1
LONGEST_S = 30
"""For which no agent is started (`sockd.images.agent_keeper.image_agent.GIVEN_UP_S`)."""
WAIT_S = 150.0
REFUSED_S = 0.1
"""After which a client asks again that was refused."""


def handler_image(daemon: RunningDaemon, tmp_path: Path) -> str:
    """Make the image of a handler that has a file of 8 MiB mapped. Returns: its digest."""
    files = Files({"app/mapped.py": HANDLER, "large": os.urandom(LARGE // 2).hex()})
    write_layout(tmp_path / "handler", [python_files().tar(), files], {**CONFIG, "Entrypoint": []})
    return upload(daemon, tmp_path / "handler")


def holder_of(daemon: RunningDaemon) -> int:
    """The process that holds /dev/fuse."""
    children = [
        child
        for each in Path(f"/proc/{daemon.process.pid}/task").iterdir()
        for child in (each / "children").read_text().split()
    ]
    found = []
    for pid in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # another child, which has ended meanwhile
            if b"agent_keeper.holding_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    [holder] = found
    return holder


def lose_images(daemon: RunningDaemon, how: str) -> None:
    """Kill agents until they are given up. Args: how: "holder": it is killed first; then the first end is enough."""
    mark, killed = daemon.mark, set[int]()
    if how == "holder":
        os.kill(holder_of(daemon), signal.SIGKILL)

    def is_given_up() -> bool:
        for pid in agents_of(daemon) - killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        return any("cannot be read any more" in line for line in daemon.lines[mark:])

    daemon.when(is_given_up, deadline_s=WAIT_S)


def until_served(daemon: RunningDaemon, ask: Callable[[], Answer]) -> tuple[Answer, list[Answer]]:
    """The first answer with status 200, and those before."""
    before: list[Answer] = []

    def is_served() -> Answer | None:
        answer = ask()
        if answer.status == 200:
            return answer
        before.append(answer)
        return None

    return daemon.when(is_served, deadline_s=WAIT_S), before


def is_told_why(answer: Answer) -> bool:
    """Whether it is a 503 with the cause, and says when to try again."""
    return (
        (answer.status, answer.json["errorType"]) == (503, "Images.Unavailable")
        and "the agent of images is given up" in answer.json["errorMessage"]
        and 1 <= int(answer.headers["retry-after"]) <= LONGEST_S
    )


@case(
    "I23",
    "SIGKILL agents until they are given up, while requests are about to read mapped files",
    expect="503 with the cause, in place of exit status 135; later new sandboxes serve",
)
def test_a_mapped_file_that_a_given_up_agent_does_not_serve_has_its_cause(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    function_in_an_image(daemon, "mapped", tmp_path)
    deploy(daemon, "mapped-handler", handler_image(daemon, tmp_path), handler="mapped:handler", runtime="python")
    daemon.call("mapped", {"what": "map", "path": "/large"})
    daemon.call("mapped-handler", {"at": 0})
    names = {"mapped": (2 << 20) - 1, "mapped-handler": END}
    with ThreadPoolExecutor(2) as pool, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asked = [pool.submit(daemon.run, name, {"what": "touch", "at": at, "port": port}) for name, at in names.items()]
        connections = [server.accept()[0] for _ in asked]
        lose_images(daemon, "agents")
        for connection in connections:
            with connection:
                connection.send(b"1")
        for each in asked:
            assert is_told_why(each.result()), each.result().body
    until_served(daemon, lambda: daemon.run("mapped"))
    until_served(daemon, lambda: daemon.run("mapped-handler", {"at": END}))


@case(
    "I56",
    "give up the agent of images, or its connection, while functions have Zygotes and warm sandboxes in an image",
    expect="these end; a request under way gets 503 with the cause; new sandboxes serve as soon as an agent does",
)
@pytest.mark.parametrize("how", ["holder", "agents"])
def test_what_runs_in_a_lost_image_ends_and_starts_anew(daemon: RunningDaemon, tmp_path: Path, how: str) -> None:
    digest = handler_image(daemon, tmp_path)
    deploy(daemon, f"handler-{how}", digest, handler="mapped:handler", runtime="python", concurrency=4)
    write_layout(tmp_path / "program", [python_files().tar(), app("1")], CONFIG)
    deploy(daemon, f"program-{how}", upload(daemon, tmp_path / "program"))
    events = {f"handler-{how}": {"at": 0}, f"program-{how}": {}}
    for name, event in events.items():
        assert [daemon.run(name, event).headers["x-sockd-cold"] for _ in range(2)] == ["1", "0"]
    old, mark = set(zygotes(daemon)), daemon.mark
    assert old
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        under_way = pool.submit(daemon.run, f"handler-{how}", {"at": END, "port": port})
        connection, _ = server.accept()
        lose_images(daemon, how)
        daemon.when(lambda: not old & set(zygotes(daemon)), deadline_s=WAIT_S)
        with connection:
            connection.send(b"1")
        assert is_told_why(under_way.result()), under_way.result().body
    refused: list[Answer] = []
    for name, event in events.items():
        answer, before = until_served(daemon, lambda name=name, event=event: daemon.run(name, event))  # type: ignore[misc]
        assert answer.headers["x-sockd-cold"] == "1", "it is a sandbox on the new mount"
        assert all(map(is_told_why, before)), [each.body for each in before]
        assert daemon.run(name, event).headers["x-sockd-cold"] == "0"
        refused += before
    if workers_resend():
        assert refused or how == "holder", "an agent that ended too often is not started again at once"
    lines = [line for line in daemon.lines[mark:] if f"the root Zygote of the image {digest[:19]}" in line]
    assert [line for line in lines if "is ended: the agent of images is given up" in line] == lines[:1], lines
    assert len(lines) <= 2 and all("cannot be started: the agent of images" in line for line in lines[1:]), lines


@case(
    "I58",
    "give up the connection of images while a provisioned sandbox waits in an image",
    expect="it is replaced before a request needs it",
)
def test_a_provisioned_sandbox_in_a_lost_image_is_replaced(daemon: RunningDaemon, tmp_path: Path) -> None:
    deploy(daemon, "kept", handler_image(daemon, tmp_path), handler="mapped:handler", runtime="python")
    assert daemon.manage("POST", "/functions/kept/versions", b"{}").status == 200
    assert daemon.manage("PUT", "/functions/kept/provisioned/1", b'{"wanted": 1}').status == 200

    def is_provisioned() -> bool:
        [status] = daemon.manage("GET", "/functions/kept/versions").json["provisioned"]
        return bool(status["available"] == 1)

    daemon.when(is_provisioned, deadline_s=WAIT_S)
    first = daemon.run("kept:1", {"who": 1})
    assert (first.status, first.headers["x-sockd-cold"]) == (200, "0")
    lose_images(daemon, "holder")
    daemon.when(is_provisioned, deadline_s=WAIT_S)
    second = daemon.run("kept:1", {"who": 1})
    assert (second.status, second.headers["x-sockd-cold"]) == (200, "0")
    assert second.json != first.json


@case(
    "I57",
    "give up the connection of images while requests read files that are in no cache",
    expect="each is answered, or gets 503 with the cause",
)
def test_no_request_fails_without_the_cause_while_images_are_lost(daemon: RunningDaemon, tmp_path: Path) -> None:
    digest = handler_image(daemon, tmp_path)
    deploy(daemon, "busy", digest, handler="mapped:handler", runtime="python", concurrency=8)
    daemon.call("busy", {"at": 0})
    is_over = threading.Event()
    kinds: Counter[str] = Counter()

    def ask(number: int) -> None:
        offsets = random.Random(number)
        while not is_over.is_set():
            answer = daemon.run("busy", {"at": offsets.randrange(LARGE)})
            is_right = answer.status == 200 or is_told_why(answer)
            kinds["right" if is_right else f"{answer.status} {answer.body[:300]!r}"] += 1
            if answer.status == 503:
                is_over.wait(REFUSED_S)

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            lose_images(daemon, "holder")
            until_served(daemon, lambda: daemon.run("busy", {"at": END}))
        finally:
            is_over.set()
        for each in asking:
            each.result()
    assert set(kinds) == {"right"}, kinds
