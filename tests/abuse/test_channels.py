"""Group B: what a sandbox says on its channel, and what it leaves for the next one to find."""

from __future__ import annotations

import os

from tests.abuse.victim import victim
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

CHANNEL_ATTACKS = {
    "garbage": "os.write(3, os.urandom(4096))",
    "a header of 1 GB": "os.write(3, struct.pack('<IBBHQ', 1 << 30, 5, 0, 0, 1))",
    "an unknown frame": "os.write(3, struct.pack('<IBBHQ', 0, 99, 0, 0, 1))",
    "a zero frame": "os.write(3, bytes(16))",
    "PRIMED twice": "os.write(3, struct.pack('<IBBHQ', 0, 1, 0, 0, 0) * 2); return 'fine'",
    "READY again": "os.write(3, struct.pack('<IBBHQ', 16, 3, 0, 0, 0) + bytes(16))",
    "INIT to the daemon": "os.write(3, struct.pack('<IBBHQ', 2, 2, 0, 0, 0) + b'{}')",
    "a RESULT without times": "os.write(3, struct.pack('<IBBHQ', 1, 5, 0, 0, 1) + b'x')",
    "MODULES of nonsense": "os.write(3, struct.pack('<IBBHQ', 9, 7, 0, 0, 0) + b'[[1,2,3]]'); return 'fine'",
    "MODULES nested deeply": "os.write(3, struct.pack('<IBBHQ', 99000, 7, 0, 0, 0) + b'[' * 99000); return 'fine'",
    "half a frame, for ever": "os.write(3, b'x'); threading.Event().wait()",
    "one byte at a time": "[os.write(3, bytes([n % 7])) and time.sleep(0.01) for n in range(1000)]",
    "descriptors beside it": (
        "s = socket.socket(fileno=os.dup(3)); fds = array.array('i', [0, 1, 2, 3] * 60);"
        " [s.sendmsg([b'\\0'], [(1, 1, fds)]) for _ in range(16)]"
    ),
    "a flood": "[os.write(3, bytes(65536)) for _ in range(16384)]",
    "shutdown": "socket.socket(fileno=os.dup(3)).shutdown(socket.SHUT_RDWR); threading.Event().wait()",
}


@case(
    "B9",
    "garbage, 1 GB, slow bytes, descriptors on the channel to the daemon",
    expect="the sandbox is destroyed; the daemon is well",
)
def test_the_channel_takes_nothing_but_its_protocol(worker: PrivateWorker, happened: Happened) -> None:
    fds_before = len(os.listdir(f"/proc/{worker.daemon.pid}/fd"))
    reported = {}
    with worker.watching() as watch:
        for number, (name, code) in enumerate(CHANNEL_ATTACKS.items()):
            modules = "import array, os, socket, struct, threading, time\n"
            worker.deploy(
                f"channel-{number}", f"{modules}def f(event):\n    {code}\n    return 'lived'\n", timeout_s=1.0
            )
            answer = worker.invoke(f"channel-{number}")
            reported[name] = f"{answer.status} {answer.error}".strip()
            assert answer.status in (502, 504) or (answer.status == 200 and "fine" in code), (name, answer)
            worker.daemon.remove(f"channel-{number}")
    counts = {text: list(reported.values()).count(text) for text in sorted(set(reported.values()))}
    happened(f"{len(reported)} attacks: {counts}; {watch}")
    assert watch.wrong == []
    assert len(os.listdir(f"/proc/{worker.daemon.pid}/fd")) < fds_before + 150


@case(
    "B10",
    "close descriptors 0 to 2, or the channel, and go on",
    expect="closing 0-2 harms nobody; without channel Runtime.ExitError",
)
def test_a_handler_without_descriptors(worker: PrivateWorker, happened: Happened) -> None:
    worker.deploy("closes-stdio", "import os\ndef f(event):\n    os.closerange(0, 3)\n    return 'answered'\n")
    stdio = worker.invoke("closes-stdio")
    worker.deploy("closes-all", "import os\ndef f(event):\n    os.closerange(0, 100)\n    return 'answered'\n")
    channel = worker.invoke("closes-all")
    happened(f"0-2: {stdio.status} {stdio.body.decode()[:40]}; all: {channel.status} {channel.error}")
    assert stdio.status == 200 or stdio.error == "Runtime.ExitError"
    assert (channel.status, channel.error) == (502, "Runtime.ExitError")


@case("B11", "answer for another request's number, or twice", expect="rejected: nobody gets an answer that is not his")
def test_answers_cannot_be_forged(worker: PrivateWorker, happened: Happened) -> None:
    forge = (
        "import os, struct\n"
        "def result(number, body): return struct.pack('<IBBHQ', 16 + len(body), 5, 0, 0, number) + bytes(16) + body\n"
        "def f(event):\n"
        "    if event == 'others':\n"
        "        for number in range(2, 100000): os.write(3, result(number, b'\"forged\"'))\n"
        "    if event == 'twice':\n"
        "        import sys\n"
        "        frame = sys._getframe()\n"
        "        while 'number' not in frame.f_locals: frame = frame.f_back\n"
        "        os.write(3, result(frame.f_locals['number'], b'\"first\"'))\n"
        "    return event\n"
    )
    worker.deploy("forger", forge, concurrency=1)
    with victim(worker), worker.watching() as watch:
        others = worker.invoke("forger", "others")
        twice = worker.invoke("forger", "twice")
        # Its second answer may come in the middle of the next request: then it has harmed itself once more.
        harmed = worker.invoke("forger", "harmed")
        after = worker.invoke("forger", "after")
    happened(
        f"for others: {others.status} {others.error}; twice: {twice.status} {twice.body.decode()[:30]}; "
        f"then: {after.body.decode()[:30]}; {watch}"
    )
    assert others.status == 502 and "forged" not in others.body.decode()
    assert (harmed.status, harmed.json) == (200, "harmed") or harmed.error == "Runtime.ExitError"
    assert (after.status, after.json) == (200, "after")
    assert watch.wrong == []


@case(
    "B12",
    "look for another sandbox's log, environment and /tmp, also after its uid was given to the next",
    expect="nothing",
)
def test_nothing_of_one_sandbox_is_left_for_the_next(worker: PrivateWorker, happened: Happened) -> None:
    leave = (
        "import os\nprint('canary-in-log')\n"
        "def f(event):\n"
        "    open('/tmp/canary-file', 'w').write('canary-in-tmp')\n"
        "    return os.environ['CANARY']\n"
    )
    look = (
        "import os\n"
        "def f(event):\n"
        "    import re\n"
        "    needle = re.compile(b'canary-in-env-of-[t]he-first')\n"
        "    found = [name for name in os.listdir('/tmp')] + [k for k, v in os.environ.items() if event in v]\n"
        "    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:\n"
        "        for line in maps:\n"
        "            span, mode = line.split()[:2]\n"
        "            first, last = (int(part, 16) for part in span.split('-'))\n"
        "            if 'r' in mode and last - first < 1 << 28 and 'vvar' not in line and 'vsyscall' not in line:\n"
        "                try:\n"
        "                    memory.seek(first)\n"
        "                    count = len(needle.findall(memory.read(last - first)))\n"
        "                except OSError: continue\n"
        "                if count: found.append(line)\n"
        "    return found\n"
    )
    uids = set()
    for _ in range(3):
        known = {process.pid for process in worker.processes("sandbox")}
        worker.deploy("leaves", leave, env={"CANARY": "canary-in-env-of-" + "the-first"})
        assert worker.call("leaves") == "canary-in-env-of-the-first"
        uids |= {process.uid for process in worker.processes("sandbox") if process.pid not in known}
        worker.daemon.remove("leaves")
    worker.settle()
    found, reused = [], 0
    for number in range(4):
        worker.deploy(f"looks-{number}", look, timeout_s=10)
        found += worker.call(f"looks-{number}", "canary-in-env")
        reused += sum(process.uid in uids for process in worker.processes("sandbox"))
        assert "canary" not in str(worker.daemon.logs(f"looks-{number}"))
    happened(f"4 sandboxes looked, {reused} uses of an old uid; {len(found)} traces found")
    assert found == []


@case(
    "K11", "read the number of its own requests, while others are answered", expect="it counts the sandbox's own alone"
)
def test_the_number_of_a_request_tells_nothing_of_others(worker: PrivateWorker, happened: Happened) -> None:
    code = (
        "import sys\n"
        "def f(event):\n"
        "    frame = sys._getframe()\n"
        "    while 'number' not in frame.f_locals: frame = frame.f_back\n"
        "    return frame.f_locals['number']\n"
    )
    worker.deploy("counts", code, concurrency=1)
    worker.deploy("counts-too", code, concurrency=1)
    seen = []
    for _ in range(3):
        seen.append((worker.call("counts"), worker.call("counts-too")))
        worker.call("neighbour", 1)
    happened(f"two functions, three requests each: {seen}")
    assert seen == [(1, 1), (2, 2), (3, 3)]
