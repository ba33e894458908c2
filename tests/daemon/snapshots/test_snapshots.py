"""Functions whose starts are forks of a process that has run their init."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys

import pytest

from sockd.linux.ways import DETACHED, Ways
from tests.daemon.gate import Gate
from tests.daemon.running import REPO, RunningDaemon
from tests.daemon.snapshots.snapshotted import TOKEN, command_line, deploy, has_template, origin, state
from tests.support import older_kernel, sockd_template
from tests.support.cases import case
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root


def sockd(daemon: RunningDaemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of sockd against the daemon."""
    env = {**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "NO_COLOR": "1"}
    return sockd_template.run([sys.executable, "-m", "sockd", *arguments], env=env, cwd=REPO)


@case("T7", "start a function again and again from its template", expect="one init; random numbers of each start's own")
def test_each_start_is_a_fork_of_one_init(daemon: RunningDaemon) -> None:
    function, said = deploy(daemon, "one", TOKEN)
    assert function["snapshot"] == "serving"
    assert any(line.startswith("snapshot made: it saves each start") for line in said), said
    answers = [daemon.run("one") for _ in range(5)]
    assert {origin(answer) for answer in answers} == {"template"}
    assert len({answer.json["token"] for answer in answers}) == 1
    assert {answer.json["count"] for answer in answers} == {1}
    assert len({answer.json["random"] for answer in answers}) == 5
    assert {answer.json["type"] for answer in answers} == {"snap-start"}
    (row,) = [row for row in daemon.tree()["templates"] if row["function"] == "one"]
    assert (row["version"], row["state"], row["starts"]) == ("$LATEST", "serving", 5)
    assert row["memory_bytes"] > 1 << 20
    trace = daemon.manage("GET", f"/traces/{answers[0].headers['x-amzn-requestid']}").json
    assert (trace["origin"], trace["zygote"]) == ("template", "the version's snapshot")
    (log,) = [record["text"] for record in daemon.logs("one") if "the init of" in record["text"]]
    assert log == f"the init of {answers[0].json['token']}\n"


def test_a_function_without_one_runs_its_init_in_each_start(daemon: RunningDaemon) -> None:
    function, _ = deploy(daemon, "without", TOKEN, snapshot=False)
    assert function["snapshot"] == ""
    answers = [daemon.run("without") for _ in range(2)]
    assert not {origin(answer) for answer in answers} & {"template"}
    assert len({answer.json["token"] for answer in answers}) == 2
    assert {answer.json["type"] for answer in answers} == {"on-demand"}


HOOKS = """
import snapshot_restore_py as hooks
from snapshot_restore_py import register_after_restore, register_before_snapshot
order = []
for name in ("b1", "b2"):
    register_before_snapshot(order.append, name)
@register_after_restore
def a1(): order.append("a1")
register_after_restore(lambda name, end: order.append(name + end), "a", end="2")
register_after_restore(a1)
def handler(event, context): return order, len(hooks.get_before_snapshot()), len(hooks.get_after_restore())
"""


def test_hooks_run_in_the_order_of_aws(daemon: RunningDaemon) -> None:
    deploy(daemon, "hooks", HOOKS)
    for _ in range(2):
        answer = daemon.run("hooks")
        assert origin(answer) == "template"
        assert answer.json == [["b2", "b1", "a1", "a2", "a1"], 0, 3]


def test_hooks_are_importable_without_a_snapshot_and_do_not_run(daemon: RunningDaemon) -> None:
    deploy(
        daemon,
        "hooksless",
        HOOKS.replace("import snapshot_restore_py", "import threading\nimport snapshot_restore_py")
        + ("threading.Thread(target=threading.Event().wait, name='waits', daemon=True).start()\n"),
    )
    assert state(daemon, "hooksless")[0] == "refused"
    assert daemon.call("hooksless") == [[], 2, 3]
    daemon.deploy("no-snapshot", {"handler.py": HOOKS})
    assert daemon.call("no-snapshot") == [[], 2, 3]


def test_a_function_with_hooks_works_after_its_snapshot_is_switched_off_and_on(daemon: RunningDaemon) -> None:
    deploy(daemon, "switched", HOOKS)
    assert daemon.call("switched") == [["b2", "b1", "a1", "a2", "a1"], 0, 3]
    assert sockd(daemon, "config", "switched", "--no-snapshot").returncode == 0
    assert daemon.call("switched") == [[], 2, 3]
    said = sockd(daemon, "config", "switched", "--snapshot")
    assert said.returncode == 0 and "its starts come from a snapshot" in said.stderr, said
    answer = daemon.run("switched")
    assert origin(answer) == "template" and answer.json[1:] == [0, 3]


def test_a_functions_own_module_of_hooks_is_found_first(daemon: RunningDaemon) -> None:
    own = "MINE = True\n"
    source = (
        "import sys\nfrom snapshot_restore_py import MINE\ndef handler(event): return MINE, str(sys.meta_path[-1])\n"
    )
    for name in ("own-hooks-template", "own-hooks"):
        deploy(daemon, name, {"handler.py": source, "snapshot_restore_py.py": own}, snapshot=name.endswith("template"))
        mine, last = daemon.call(name)
        assert mine and "PathFinder" in last


def test_an_init_without_network_has_none(daemon: RunningDaemon) -> None:
    look = "[line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]"
    source = f"import os\nLINKS = {look}\ndef handler(event, context): return LINKS, {look}\n"
    function, said = deploy(daemon, "no-network", source, network="none")
    assert function["snapshot"] == "serving", said
    answer = daemon.run("no-network")
    assert origin(answer) == "template"
    assert answer.json == [["lo"], ["lo"]]


def test_another_deploy_ends_the_template_and_makes_its_own(daemon: RunningDaemon) -> None:
    deploy(daemon, "updated", TOKEN)
    before = daemon.call("updated")["token"]
    deploy(daemon, "updated", TOKEN + "# another\n")
    answer = daemon.run("updated")
    assert origin(answer) == "template" and answer.json["token"] != before
    daemon.deploy("updated", {"handler.py": TOKEN}, snapshot=False)
    assert origin(daemon.run("updated")) != "template"
    daemon.when(lambda: not has_template(daemon, "updated"))


def test_a_removed_function_has_no_template(daemon: RunningDaemon) -> None:
    deploy(daemon, "removed", TOKEN)
    assert has_template(daemon, "removed")
    daemon.manage("DELETE", "/functions/removed")
    daemon.when(lambda: not has_template(daemon, "removed"))  # a killed process is there for a moment


def test_secrets_and_the_request_are_the_sandboxes_own(daemon: RunningDaemon) -> None:
    source = "import os\ndef handler(event, context): return os.environ['MODE'], context.aws_request_id, event\n"
    deploy(daemon, "env", source, env={"MODE": "one"})
    answer = daemon.run("env", 5)
    assert answer.json == ["one", answer.headers["x-amzn-requestid"], 5]


@case(
    "T13",
    "an init leaves a connection open, and a timer of an event loop",
    expect="each start finds it closed; the loop runs on",
)
def test_connections_are_closed_and_loops_run_on(daemon: RunningDaemon, gate: Gate) -> None:
    source = f"""
import asyncio, socket
CONNECTION = socket.create_connection(("127.0.0.1", {gate.port}))
CONNECTION.sendall(b"init\\n")
NUMBER = CONNECTION.fileno()
LOOP = asyncio.new_event_loop()
LATER = []
LOOP.call_later(0.001, LATER.append, 1)
def handler(event, context):
    try:
        CONNECTION.sendall(b"x")
        alive = True
    except OSError:
        alive = False
    async def work():
        await asyncio.sleep(0.01)
        await asyncio.get_running_loop().run_in_executor(None, int)
        return 7
    return alive, CONNECTION.fileno() == NUMBER, LOOP.run_until_complete(work()), LATER
"""
    with in_background(gate.arrived):
        function, said = deploy(daemon, "parked", source)
    assert function["snapshot"] == "serving", said
    assert (
        f"the connection to 127.0.0.1:{gate.port} is closed by the snapshot: clients connect again in each start"
        in said
    )
    for _ in range(2):
        answer = daemon.run("parked")
        assert origin(answer) == "template"
        assert answer.json == [False, True, 7, [1]]


def test_deleted_files_are_copied_for_each_start(daemon: RunningDaemon) -> None:
    source = """
import tempfile
FILE = tempfile.TemporaryFile("w+")
FILE.write("from init"); FILE.flush()
def handler(event, context):
    at = FILE.tell()
    FILE.write(", more"); FILE.flush(); FILE.seek(0)
    return at, FILE.read()
"""
    function, said = deploy(daemon, "deleted", source)
    assert function["snapshot"] == "serving", said
    for _ in range(2):
        answer = daemon.run("deleted")
        assert origin(answer) == "template"
        assert answer.json == [9, "from init, more"]


MUCH_IN_TMP = """
import os
os.makedirs("/tmp/cache/deep")
for number in range(200):
    with open(f"/tmp/cache/{number}", "w") as file:
        file.write(str(number))
with open("/tmp/model", "wb") as file:
    file.write(b"m" * (5 << 20))
os.symlink("model", "/tmp/link")
LOG = open("/tmp/log", "a+")
LOG.write("init")
LOG.flush()
def handler(event, context):
    found = os.path.getsize("/tmp/link"), len(os.listdir("/tmp/cache")), os.stat("/tmp/model").st_uid == os.getuid()
    with open("/tmp/model", "r+b") as file:
        first = file.read(1).decode()
        file.seek(0)
        file.write(b"x")
    os.remove("/tmp/cache/7")
    os.rename("/tmp/cache/deep", "/tmp/moved")
    LOG.write(", start")
    LOG.flush()
    LOG.seek(0)
    return found, first, LOG.read(), sorted(os.listdir("/tmp"))
"""


@pytest.mark.parametrize("spares", [False, True])
def test_much_in_tmp_is_under_the_tmp_of_each_start(daemon: RunningDaemon, spares: bool) -> None:
    name = f"much-in-tmp-{spares}"
    function, said = deploy(daemon, name, MUCH_IN_TMP, concurrency=4, tmp_mb=16)
    if Ways.find(older_kernel.release(), "auto").roots.name != DETACHED:
        assert (
            "more than 1048576 bytes or 128 files in /tmp, and this host has no overlays" in function["snapshot_reason"]
        )
        return
    assert function["snapshot"] == "serving", said
    for _ in range(6 if spares else 2):
        answer = daemon.run(name)
        assert origin(answer) == "template"
        names = ["cache", "link", "log", "model", "moved"]
        assert answer.json == [[5 << 20, 201, True], "m", "init, start", names]


def test_files_are_each_starts_own(daemon: RunningDaemon) -> None:
    source = """
import tempfile, os
os.makedirs("/tmp/cache/deep")
FILE = open("/tmp/cache/deep/file", "w+")
FILE.write("from init"); FILE.flush()
OWN = open(__file__)
OWN.read(3)
def handler(event, context):
    FILE.seek(0)
    text = FILE.read()
    FILE.write("more"); FILE.flush()
    return text, OWN.tell(), os.path.getsize("/tmp/cache/deep/file")
"""
    function, said = deploy(daemon, "files", source)
    assert function["snapshot"] == "serving", said
    for _ in range(2):
        answer = daemon.run("files")
        assert origin(answer) == "template"
        assert answer.json[0] == "from init" and answer.json[2] == 13


@case(
    "T14",
    "a secret in the environment and the memory of an init; the memory of all other processes read",
    expect="it is in the template, its spares and its sandboxes alone",
)
def test_a_secret_of_an_init_is_in_no_process_that_was_not_forked_from_its_template(daemon: RunningDaemon) -> None:
    secret = secrets.token_hex(24)
    source = "import os\nKEPT = [os.environ['KEY'][::-1] for _ in range(100)]\ndef handler(event, context): return len(KEPT)\n"
    function, said = deploy(daemon, "secretive", source, env={"KEY": secret}, reuse_sandbox=True)
    assert function["snapshot"] == "serving", said
    deploy(daemon, "curious", "def handler(event, context): return 1\n", reuse_sandbox=True)
    assert (daemon.call("secretive"), daemon.call("curious")) == (100, 1)
    needles = secret.encode(), secret[::-1].encode()
    holders = {command_line(pid) for pid in daemon.pids() if any(each in memory_of(pid) for each in needles)}
    assert {"sockd: template of secretive", "sockd: secretive"} <= holders
    assert holders <= {"sockd: template of secretive", "sockd: secretive", "sockd: spare"}


def memory_of(pid: int) -> bytes:
    """All that a process may write to; what is gone meanwhile is left out."""
    parts = []
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                place, permissions, *_ = line.split()
                if permissions.startswith("rw"):
                    begin, end = (int(each, 16) for each in place.split("-"))
                    memory.seek(begin)
                    parts.append(memory.read(end - begin))
    except (FileNotFoundError, ProcessLookupError):
        return b""
    return b"".join(parts)


SEEDS = """
import os, random, secrets, ssl, tempfile, uuid
OWN = random.Random()
FIXED = random.Random(7)
import time
CLOCK = random.Random(time.time())
def handler(event, context):
    return {
        "random": random.random(), "own": OWN.random(), "clock": CLOCK.random(), "uuid": uuid.uuid4().hex,
        "secrets": secrets.token_hex(), "ssl": ssl.RAND_bytes(16).hex(), "tempfile": next(tempfile._get_candidate_names()),
        "fixed": FIXED.random(),
    }
"""


@case(
    "T8",
    "draw numbers in many starts from one template",
    expect="no number twice, but for generators with a fixed seed",
)
def test_no_two_starts_draw_the_same_numbers(daemon: RunningDaemon) -> None:
    _, said = deploy(daemon, "seeds", SEEDS, concurrency=4)
    assert any("each start draws another" in line for line in said), said
    answers = at_once(4, lambda _: [daemon.run("seeds") for _ in range(12)])
    seen = [answer.json for each in answers for answer in each if origin(answer) == "template"]
    assert len(seen) == 48
    for name in seen[0]:
        assert len({each[name] for each in seen}) == (1 if name == "fixed" else len(seen)), name


def test_the_tree_the_page_and_the_metrics_show_templates(daemon: RunningDaemon) -> None:
    deploy(daemon, "shown", TOKEN)
    daemon.call("shown")
    tree = sockd(daemon, "tree").stdout
    assert re.search(r"snapshot: shown \$LATEST: serving  \(\d+(\.\d)? MB; saves \d+\.\d\d s each; 1 starts", tree), (
        tree
    )
    page = daemon.request("GET", "/").body.decode()
    assert re.search(
        r'id="snapshots">.*<th scope="row">shown <small>\$LATEST</small></th><td title="">serving</td>', page, re.S
    )
    metrics = daemon.request("GET", "/metrics").body.decode()
    assert re.search(r'sockd_templates\{state="serving"\} [1-9]', metrics), metrics


@case("T15", "start a function 10 000 times from one template", expect="no number twice", default=False)
@pytest.mark.timeout(3600)
def test_ten_thousand_starts_share_no_number(daemon: RunningDaemon) -> None:
    deploy(daemon, "many", SEEDS, concurrency=8)
    seen: dict[str, set[object]] = {}
    answers = at_once(8, lambda _: [daemon.run("many") for _ in range(1250)])
    ids = {answer.headers["x-amzn-requestid"] for each in answers for answer in each}
    for answer in (answer for each in answers for answer in each):
        assert origin(answer) == "template"
        for name, drawn in answer.json.items():
            seen.setdefault(name, set()).add(drawn)
    assert {name: len(drawn) for name, drawn in seen.items()} == {
        name: 1 if name == "fixed" else 10_000 for name in seen
    }
    assert len(ids) == 10_000


@case("T9", "a template serves while its function is deployed again and again", expect="no request fails")
def test_no_request_fails_while_templates_come_and_go(daemon: RunningDaemon) -> None:
    deploy(daemon, "busy", TOKEN, concurrency=4)
    stopped: list[bool] = []

    def call(_: int) -> int:
        count = 0
        while not stopped:
            assert daemon.run("busy").status == 200
            count += 1
        return count

    with in_background(lambda: at_once(2, call)) as counts:
        try:
            for number in range(4):
                deploy(daemon, "busy", f"{TOKEN}# {number}\n", concurrency=4)
        finally:
            stopped.append(True)
        assert sum(counts()) > 8
