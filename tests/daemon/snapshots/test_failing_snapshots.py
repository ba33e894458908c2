"""Snapshots that cannot be made, and those that fail later: no request is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import COMMAND, RunningDaemon
from tests.daemon.snapshots.snapshotted import TOKEN, deploy, kill_template, origin, state, template_pid
from tests.daemon.test_runtime_api import archive
from tests.support.cases import case
from tests.support.threads import in_background

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def config() -> str:
    """A start is a fork that is waited for, not a spare."""
    return "[zygote]\nspares = 0\n"


REFUSED = {
    "thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, name='my-poller', daemon=True).start()\n",
        "init leaves the thread 'my-poller' running",
    ),
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(1)\nPOOL.submit(int).result()\n",
        "init leaves the thread 'ThreadPoolExecutor-0_0' running",
    ),
    "pipe": ("import os\nENDS = os.pipe()\n", "init leaves a pipe open (descriptor "),
    "listener": (
        "import socket\nLISTENER = socket.create_server(('127.0.0.1', 0))\n",
        "init leaves a socket open (descriptor ",
    ),
    "process": (
        "import subprocess\nCHILD = subprocess.Popen(['/bin/sh', '-c', 'read x'], stdin=subprocess.PIPE)\n",
        "init leaves a process running",
    ),
    "raises": ("raise ValueError('no model')\n", "init fails in a template: ValueError: no model"),
    "exits": ("import sys\nsys.exit('no model')\n", "init fails in a template: SystemExit: no model"),
    "dies": ("import os, time\nos._exit(3)\n", "the process of the template ended while it runs init"),
    "memory": ("BLOCKS = [bytearray(1 << 20) for _ in range(500)]\n", "needs more memory than memory_mb = 128"),
    "before": (
        "import snapshot_restore_py as s\n@s.register_before_snapshot\ndef flush(): raise OSError('no disk')\n",
        "init fails in a template: Runtime.BeforeSnapshotError: flush: OSError: no disk",
    ),
    "after": (
        "import snapshot_restore_py as s\n@s.register_after_restore\ndef connect(): raise OSError('no host')\n",
        "the first start from the template failed: Runtime.AfterRestoreError: connect: OSError: no host",
    ),
}


@case(
    "T1",
    "an init leaves a thread or a pipe, dies, or a hook fails",
    expect="no snapshot, with the reason; it serves",
)
@pytest.mark.parametrize("left", REFUSED)
def test_a_deploy_goes_on_without_a_snapshot_and_says_why(daemon: RunningDaemon, left: str) -> None:
    source, reason = REFUSED[left]
    is_broken = left in ("raises", "exits", "dies", "memory")
    only_in_templates = "import os\nif os.environ['AWS_LAMBDA_INITIALIZATION_TYPE'] == 'snap-start':\n"
    text = only_in_templates + "".join(f"    {line}\n" for line in source.splitlines()) if is_broken else source
    function, said = deploy(daemon, f"refused-{left}", text + "def handler(event, context): return 5\n")
    assert function["snapshot"] == "refused"
    assert reason in function["snapshot_reason"]
    assert any(
        line.startswith("no snapshot, and each start runs its own init: ") and reason in line for line in said
    ), said
    answer = daemon.run(f"refused-{left}")
    assert origin(answer) != "template" and answer.json == 5


def test_a_program_has_no_snapshot(daemon: RunningDaemon) -> None:
    function, _ = deploy(daemon, "program", archive("#!/bin/sh\nread forever\n"))
    assert function["snapshot"] == "refused"
    assert "a program behind the Runtime API starts an interpreter of its own" in function["snapshot_reason"]


@case("T2", "an init prints more than a pipe holds", expect="a snapshot")
def test_more_output_than_a_pipe_holds_does_not_block_an_init(daemon: RunningDaemon) -> None:
    source = "print('x' * 300_000)\ndef handler(event, context): return 5\n"
    function, said = deploy(daemon, "talkative", source)
    assert function["snapshot"] == "serving", said
    assert origin(daemon.run("talkative")) == "template"


@case("T3", "kill a template between two requests", expect="it is made again; no request fails")
def test_a_template_that_is_killed_costs_no_request_and_is_made_again(daemon: RunningDaemon) -> None:
    deploy(daemon, "killed", TOKEN)
    since = len(daemon.lines)
    kill_template(daemon, "killed")
    daemon.wait_line("the template of killed .LATEST is given up: its process has ended", since=since)
    daemon.when(lambda: state(daemon, "killed") == ("serving", "") or None)
    assert origin(daemon.run("killed")) == "template"


@case("T4", "kill a template while it forks", expect="one start by the next source; no request fails")
def test_one_that_is_killed_while_it_forks_costs_one_start_by_the_next_source(daemon: RunningDaemon) -> None:
    deploy(daemon, "midst", TOKEN)
    pid = template_pid(daemon, "midst")
    os.kill(pid, signal.SIGSTOP)
    with in_background(lambda: daemon.run("midst")) as answered:
        daemon.when(lambda: daemon.status()["sandboxes"]["busy"] or None)
        os.kill(pid, signal.SIGKILL)
        answer = answered()
    assert origin(answer) != "template"
    assert (
        'cold;desc="not started from its snapshot: it could not be forked: the Zygote died"'
        in answer.headers["server-timing"]
    )


HASTY = """
import sys
from sockd.client.cli.main import main
from sockd.starts.templates import template_maker
template_maker.LEAST_DEADLINE_S = 1.0
sys.argv[0] = "sockd"
main()
"""
"""A worker in which inits have 1 s, or the function's timeout, instead of 130."""


@case("T10", "an init, or a hook before the snapshot, hangs", expect="no snapshot, with the reason; it serves")
def test_an_init_that_hangs_in_a_template_is_ended(tmp_path: Path) -> None:
    asleep = "os.environ['AWS_LAMBDA_INITIALIZATION_TYPE'] == 'snap-start' and time.sleep(60)"
    hangs = {
        "in-init": (f"import os, time\n{asleep}\n", "runs init"),
        "in-hook": (
            "import time, snapshot_restore_py\nsnapshot_restore_py.register_before_snapshot(time.sleep, 60)\n",
            "runs hooks before the snapshot",
        ),
    }
    command = (COMMAND[0], "-c", HASTY, *COMMAND[3:])
    daemon = RunningDaemon.start(tmp_path / "state", command=command)
    try:
        for name, (source, stage) in hangs.items():
            source += "def handler(event, context): return 5\n"
            function, _ = deploy(daemon, name, source, timeout_s=2)
            assert function["snapshot_reason"] == (
                f"SnapStartTimeoutException: the template {stage}, and that has not ended within 2 s"
            )
            answer = daemon.run(name)
            assert origin(answer) != "template" and answer.json == 5
        assert daemon.terminate() == 0
    finally:
        daemon.close()


CHOICE = """
import os, snapshot_restore_py, time
from gate import wait
@snapshot_restore_py.register_after_restore
def choose():
    word = wait({port})
    if word == "exit": os._exit(3)
    if word == "hang": time.sleep(600)
    if word == "raise": raise OSError("no host")
    if word == "memory": BLOCKS = [bytearray(1 << 20) for _ in range(500)]
def handler(event, context): return os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]
"""


def let_on(gate: Gate, *words: str) -> None:
    """Tell the hooks that come, one after the other, what to do."""
    for word in words:
        gate.arrived()
        gate.open(word)


@case(
    "T5",
    "a start ends, hangs, or runs out of memory in a hook",
    expect="one start by the next source; no request fails",
)
@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("exit", "exit status 3"),
        ("memory", "out of memory"),
        ("hang", "SnapStartTimeoutException: loading and the hooks after the restore have not ended within 10 s"),
    ],
)
def test_a_start_that_dies_before_it_is_ready_is_one_by_the_next_source(
    daemon: RunningDaemon, gate: Gate, word: str, words: str
) -> None:
    name = f"dying-{word}"
    with in_background(lambda: let_on(gate, "go")):
        function, said = deploy(daemon, name, {"handler.py": CHOICE.format(port=gate.port), "gate.py": Gate.CODE})
    assert function["snapshot"] == "serving", said
    since = len(daemon.lines)
    with in_background(lambda: let_on(gate, word, "go")):
        answer = daemon.run(name)
        assert origin(answer) != "template" and answer.json == "on-demand"
        assert "not started from its snapshot: a start from it failed" in answer.headers["server-timing"]
        daemon.wait_line(f"the template of {name} .LATEST is given up: .*{words}", since=since)
        daemon.when(lambda: state(daemon, name) == ("serving", "") or None)


@case("T6", "a hook after the restore raises", expect="the request's answer is its error, as on AWS")
def test_a_hook_that_raises_is_the_functions_own_error(daemon: RunningDaemon, gate: Gate) -> None:
    with in_background(lambda: let_on(gate, "go")):
        deploy(daemon, "raising", {"handler.py": CHOICE.format(port=gate.port), "gate.py": Gate.CODE})
    with in_background(lambda: let_on(gate, "raise")):
        answer = daemon.run("raising")
    assert answer.json["errorType"] == "Runtime.AfterRestoreError"
    assert answer.json["errorMessage"] == "choose: OSError: no host"
    assert state(daemon, "raising") == ("serving", "")
