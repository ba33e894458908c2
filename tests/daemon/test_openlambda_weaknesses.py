"""What OpenLambda was measured to do wrong, each as a test that it is otherwise here. Rows: its issue list, by number.

Elsewhere: 1 (lost requests), 6 (chunked bodies), 7 (handlers that end the process) and half of 2 in their own modules;
3 and 21 (the import cache that never hits) in test_zygote_tree_of_a_daemon. Not in this daemon: 4, 5, 11, 15-19, 22.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from sockd.worker.process_setup import FDS_OF_SANDBOX
from tests.daemon.gate import WAITS, Gate
from tests.daemon.kernel_view import cgroup_directories, host_pid, open_fds, rss_kb, unified, wait_event
from tests.daemon.running import DEADLINE_S, Answer, RunningDaemon
from tests.support.measured import at_least_once
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import at_once, in_background

FDS_OF_CGROUP = 12
"""On a hybrid host; 7 with v2 alone."""
FDS_MADE_AHEAD = 24
"""Descriptors of the roots and connections that wait for the next sandboxes (sockd/isolation/roots/premade.py): right after a
start there are none."""
CGROUP = "open('/proc/self/cgroup').read().split('0::')[1].strip()"
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"


@pytest.fixture(scope="module")
def config() -> str:
    return "[sandbox]\npause_after_s = 0.1\n"


@pytest.fixture(autouse=True)
def empty(daemon: RunningDaemon) -> None:
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])


class Client:
    """One kept-alive connection."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)

    def post(self, path: str, body: bytes = b"{}") -> tuple[int, bytes]:
        self._connection.request("POST", path, body)
        response = self._connection.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def client(daemon: RunningDaemon) -> Client:  # type: ignore[misc]
    client = Client(daemon)
    yield client
    client.close()


def zygote_pids(daemon: RunningDaemon) -> list[int]:
    """Every process that serves forks: those of the farm's own pid namespace but its init."""
    found = []
    for pid in sorted(daemon.pids()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            numbers = Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"ygote" in words and len(numbers) == 2:  # by its command line, or by its title
            found.append(pid)
    return found


def root_zygote(daemon: RunningDaemon) -> int:
    """The one Zygote without a user namespace of its own; one that has ended may not be replaced yet."""
    while True:
        found = [pid for pid in zygote_pids(daemon) if uid_of(pid) == 0]
        if len(found) == 1:
            return found[0]
        daemon.status()  # a turn of its loop


def uid_of(pid: int) -> int | None:
    """Return the uid of a process, or None if it has ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return None


def cgroup_of(pid: int) -> Path:
    return unified(Path(f"/proc/{pid}/cgroup").read_text().split("0::")[1].splitlines()[0])


def test_row_2_one_client_gets_a_thousand_answers_a_second_also_after_a_pause(
    daemon: RunningDaemon, client: Client
) -> None:
    daemon.deploy("one", f"def f(event): return {CGROUP}")
    directory = unified(json.loads(client.post("/run/one")[1]))

    def per_second(path: str, status: int) -> float:
        started = time.monotonic()
        for _ in range(100):
            assert client.post(path)[0] == status
        return 100 / (time.monotonic() - started)

    # The best of several: what else the machine does delays some of them, what the daemon does wrong delays all.
    rates = [(per_second("/run/one", 200), per_second("/run/nobody", 404)) for _ in range(5)]
    invoked, refused = map(max, zip(*rates, strict=True))
    # OpenLambda: 100; here 2 000 on an idle machine, and on a busy one no much smaller part of what nobody works for.
    assert invoked > min(300, refused / 10), rates

    def thaw() -> float:
        wait_event(directory, "frozen", 1, DEADLINE_S)
        started = time.monotonic()
        assert client.post("/run/one")[0] == 200
        return time.monotonic() - started

    at_least_once(thaw, lambda seconds: seconds < 0.05, tries=20)


def test_row_8_killing_a_zygote_kills_no_one_and_it_is_replaced(
    daemon: RunningDaemon, gate: Gate, index: PackageIndex
) -> None:
    index.add(wheel("kept", "1.0", {"kept.py": SLOW}))
    waits = {
        "f.py": "import kept\nfrom gate import wait\nseen = []\n"
        "def f(event):\n seen.append(event)\n return event and [wait(event), len(seen)]\n",
        "gate.py": Gate.CODE,
        "requirements.txt": "kept",
    }
    daemon.deploy("first", waits, timeout_s=20)
    daemon.call("first")
    daemon.when(lambda: daemon.node("kept==1.0"))
    daemon.deploy("second", waits, timeout_s=20)
    daemon.call("second")
    for name in ("first", "second"):
        daemon.call_learned(name)
    with in_background(lambda: [daemon.run(name, gate.port) for name in ("first", "second")]) as running:
        gate.arrived()
        zygotes = zygote_pids(daemon)
        assert len(zygotes) >= 2
        mark = daemon.mark
        for pid in reversed(zygotes):
            os.kill(pid, signal.SIGKILL)
        gate.open()
        gate.arrived()
        gate.open()
        assert [answer.json for answer in running()] == [["go", 2], ["go", 2]]  # their sandboxes live, and remember
        daemon.wait_line("ended", since=mark)
    for name in ("third", "fourth"):
        daemon.deploy(name, waits)
        assert daemon.run(name).status == 200
    assert daemon.tree()["root"] is not None
    daemon.when(lambda: daemon.node("kept==1.0"))


def test_row_8_cold_starts_survive_the_death_of_the_zygote_that_makes_them(daemon: RunningDaemon) -> None:
    for number in range(6):
        daemon.deploy(f"cold-{number}", f"def f(event): return {number}", memory_mb=64)

    def call(number: int) -> Answer:
        return daemon.run(f"cold-{number % 6}")

    for _ in range(3):
        root = root_zygote(daemon)
        with in_background(lambda: at_once(24, call)) as answers:
            mark = daemon.mark
            os.kill(root, signal.SIGKILL)
            assert [answer.json for answer in answers()] == [n % 6 for n in range(24)]
        daemon.wait_line("ended", since=mark)
        for number in range(6):
            daemon.deploy(f"cold-{number}", f"x = {root}\ndef f(event): return {number}", memory_mb=64)


def test_row_9_a_zygote_s_memory_does_not_grow_with_its_forks(daemon: RunningDaemon, client: Client) -> None:
    daemon.deploy("dies", "import os\ndef f(event): os._exit(0)", memory_mb=32)
    root = root_zygote(daemon)
    memory = Path(daemon_memory_directory(daemon, root), memory_file())

    def fork(times: int) -> int:
        for _ in range(times):
            assert client.post("/run/dies")[0] == 502
        return int(memory.read_text())

    first = fork(50)
    starts = daemon.tree()["root"]["starts"]
    last = fork(300)
    assert daemon.tree()["root"]["starts"] >= starts + 300
    assert root_zygote(daemon) == root  # OpenLambda's was used up after 120 forks, and replaced
    assert last - first < 300 * 20_000, (first, last)  # there 300 KB each


def test_row_9_what_living_children_cost_their_zygote_comes_back_with_them(daemon: RunningDaemon, gate: Gate) -> None:
    """Copied pages and page tables are charged to the process that forks: some 0.7 MB a child, while it lives."""
    daemon.deploy("alive", WAITS, memory_mb=32, concurrency=100, timeout_s=20)
    root = root_zygote(daemon)
    memory = daemon_memory_directory(daemon, root) / memory_file()
    before = int(memory.read_text())
    with in_background(lambda: at_once(100, lambda n: daemon.run("alive", gate.port).status)) as statuses:
        for _ in range(100):
            gate.arrived()
        during = int(memory.read_text())
        gate.open()
        assert statuses() == [200] * 100
    daemon.remove("alive")
    settle(daemon)
    after = int(memory.read_text())
    assert during - before < 100 << 20
    assert after - before < 5 << 20, (before, during, after)
    assert root_zygote(daemon) == root


def daemon_memory_directory(daemon: RunningDaemon, pid: int) -> Path:
    leaf = cgroup_of(pid).name
    (directory,) = [path for path in cgroup_directories(f"{daemon.cgroup}/{leaf}") if (path / memory_file()).exists()]
    return directory


def memory_file() -> str:
    from sockd.linux.cgroups.tree import Hierarchies

    memory = Hierarchies.detect().memory
    assert memory is not None
    return "memory.current" if memory.version == 2 else "memory.usage_in_bytes"


def test_row_10_a_sandbox_is_charged_for_its_memory_from_its_first_page(daemon: RunningDaemon) -> None:
    daemon.deploy("charged", f"x = bytearray(b'1' * (20 << 20))\ndef f(event): return {CGROUP}")
    leaf = Path(daemon.call("charged")).name
    (directory,) = [p for p in cgroup_directories(f"{daemon.cgroup}/{leaf}") if (p / memory_file()).exists()]
    assert int((directory / memory_file()).read_text()) >= 20 << 20


@pytest.mark.timeout(360)
def test_row_12_twenty_thousand_unknown_names_leave_nothing(daemon: RunningDaemon, client: Client) -> None:
    def ask(start: int, count: int) -> None:
        for number in range(start, start + count):
            status, body = client.post(f"/run/bogus-{number}")
            assert status == 404 and b"ResourceNotFoundException" in body

    ask(0, 1000)
    rss, fds, metrics = rss_kb(daemon.pid), len(open_fds(daemon.pid)), len(daemon.request("GET", "/metrics").body)
    ask(1000, 19_000)
    assert rss_kb(daemon.pid) - rss < 4096
    assert len(open_fds(daemon.pid)) <= fds + 1
    assert len(daemon.request("GET", "/metrics").body) <= metrics + 500
    assert daemon.manage("GET", "/functions").json == []
    assert daemon.manage("GET", "/functions/bogus-5").status == 404
    assert daemon.manage("GET", "/functions/bogus-5/logs").status == 404


def test_row_11_asking_for_an_unknown_name_adds_no_phantom(daemon: RunningDaemon) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/logs"), ("POST", "/invoke")):
        assert daemon.manage(method, f"/functions/phantom{path}").status == 404
    assert daemon.manage("GET", "/functions").json == []
    daemon.deploy("phantom", "def f(event): return 1")
    assert daemon.call("phantom") == 1


def test_row_14_no_descriptor_is_lost_in_two_thousand_requests_and_many_pauses(
    daemon: RunningDaemon, client: Client
) -> None:
    daemon.deploy("fds", f"def f(event): return {CGROUP}")
    daemon.deploy("crash", "import os\ndef f(event): os._exit(1)")
    directory = unified(json.loads(client.post("/run/fds")[1]))

    def turn(requests: int, pauses: int, crashes: int) -> tuple[list[str], int]:
        """What the daemon has open then, and how much of it may be for spares, which are as many as the last starts ask for, and
        for cgroups in the pool, which makes more when starts find it low."""
        for _ in range(requests):
            assert client.post("/run/fds")[0] == 200
        for _ in range(pauses):
            wait_event(directory, "frozen", 1, DEADLINE_S)
            assert client.post("/run/fds")[0] == 200
        for _ in range(crashes):
            assert client.post("/run/crash")[0] == 502
        wait_event(directory, "frozen", 1, DEADLINE_S)
        settle(daemon)
        status = daemon.status()
        besides = status["sandboxes"]["spare"] * FDS_OF_SANDBOX + status["cgroups"]["made"] * FDS_OF_CGROUP
        return sorted(re.sub(r"\[\d+\]|-\d+", "", target) for target in open_fds(daemon.pid)), besides

    before, besides_before = turn(100, 2, 20)
    after, besides_after = turn(2000, 40, 40)  # 40: one that each of them loses is more than what comes and goes
    assert len(after) <= len(before) + besides_after - besides_before + FDS_MADE_AHEAD + 8, [
        target for target in set(after) if after.count(target) > before.count(target)
    ]


def settle(daemon: RunningDaemon) -> None:
    """Returns when no cgroup is being recycled."""
    ends = time.monotonic() + DEADLINE_S
    while daemon.status()["cgroups"]["recycling"]:
        assert time.monotonic() < ends


def test_row_19_a_burst_leaves_no_more_sandboxes_than_the_concurrency(daemon: RunningDaemon) -> None:
    daemon.deploy("scaled", "def f(event): return event", concurrency=5, memory_mb=64)
    for _ in range(3):
        assert at_once(50, lambda n: daemon.call("scaled", n)) == list(range(50))
    sandboxes = daemon.status()["sandboxes"]
    assert sandboxes["idle"] + sandboxes["paused"] <= 5


def test_security_a_handler_cannot_manage_the_worker(daemon: RunningDaemon) -> None:
    """There, a handler deleted another function through the worker's TCP port."""
    daemon.deploy("victim", "def f(event): return 'alive'")
    daemon.deploy(
        "attacker",
        """
import http.client, os, socket
def ask(port, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    connection.request(method, path)
    return connection.getresponse().status
def f(event):
    tried = [ask(event["port"], method, path) for method, path in event["requests"]]
    with socket.socket(socket.AF_UNIX) as unix:
        try:
            unix.connect(event["socket"])
            tried.append("connected")
        except OSError as error:
            tried.append(type(error).__name__)
    return [tried, os.path.exists(event["socket"])]
""",
        timeout_s=10,
    )
    requests = [
        ("DELETE", "/functions/victim"),
        ("PUT", "/functions/victim"),
        ("GET", "/functions"),
        ("GET", "/functions/victim/logs"),
        ("GET", "/tree"),
        ("GET", "/packages"),
        ("DELETE", "/run/victim"),
    ]
    event = {"port": daemon.port, "requests": requests, "socket": str(daemon.state / "sockd.sock")}
    tried, visible = daemon.call("attacker", event)
    assert all(status in (403, 404, 405) for status in tried[:-1]), tried
    assert tried[-1] == "FileNotFoundError" and not visible
    assert daemon.call("victim") == "alive"
    listening = [line for line in Path("/proc/net/tcp").read_text().splitlines() if f":{daemon.port:04X} " in line]
    assert listening
    assert os.stat(daemon.state / "sockd.sock").st_mode & 0o077 == 0


def test_security_a_handler_is_no_one_with_no_capability_and_cannot_fill_the_disk(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "nobody",
        "import os\n"
        "def f(event):\n"
        "    status = open('/proc/self/status').read()\n"
        "    caps = [line.split()[1] for line in status.splitlines() if line.startswith('Cap')]\n"
        "    try:\n"
        "        with open('/tmp/big', 'wb') as file:\n"
        "            for _ in range(64): file.write(b'x' * (1 << 20))\n"
        "        filled = 'yes'\n"
        "    except OSError as error:\n"
        "        filled = error.strerror\n"
        "    os.unlink('/tmp/big')\n"
        "    return [os.getuid(), caps, filled]\n",
        tmp_mb=16,
        memory_mb=128,
    )
    uid, capabilities, filled = daemon.call("nobody")
    assert uid == 1000 and set(capabilities) == {"0000000000000000"}
    assert filled == "No space left on device"
    daemon.deploy("where", f"def f(event): return {CGROUP}")
    pid = host_pid(unified(daemon.call("where")))
    assert Path(f"/proc/{pid}").stat().st_uid >= 0x10000000
