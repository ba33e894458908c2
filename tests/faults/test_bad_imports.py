"""Packages that harm the Zygote that imports them, at once or later: refused with a reason, and nobody's request fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.starts.zygotes.top_levels.refusals import AFTER_DEADLINE_S
from tests.faults.conftest import CONFIG
from tests.faults.packages import IN_ZYGOTE, SLOW, Refusals, deploy, package, refusals
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.threads import at_once

pytestmark = pytest.mark.root

HARMFUL = {
    "raises": (IN_ZYGOTE + "raise ValueError('not here')\nN = 1\n", "ValueError: not here"),
    "segfaults": (IN_ZYGOTE + "import ctypes; ctypes.string_at(0)\n", ""),
    "calls-exit": (IN_ZYGOTE + "import sys; sys.exit(3)\nN = 1\n", "SystemExit"),
    "leaves": (IN_ZYGOTE + "os._exit(3)\n", ""),
    "hangs": (IN_ZYGOTE + "import threading; threading.Event().wait()\n", ""),
    "stops-itself": (IN_ZYGOTE + "os.kill(os.getpid(), 19)\n", ""),
    "forks": (IN_ZYGOTE + "os.fork()\n", "an import starts a fork"),
    "starts-thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "threads",
    ),
    "eats": (IN_ZYGOTE + "x = b'x' * (1 << 30)\n", ""),
    "hides": (IN_ZYGOTE + "import sys; sys.meta_path = sys.meta_path[1:]\n", "cannot be observed"),
    "closes": (IN_ZYGOTE + "os.closerange(0, 100)\n", ""),
}
"""Package -> (what its module does, a part of the reason)."""

IN_FORK = IN_ZYGOTE + "here = os.getpid()\n    def fails(*_, **__):\n        raise OSError('not in a fork')\n"
"""Defines a function for what must work in no fork of the Zygote; one line more puts it in its place."""

BAD_FORKS = {
    "holds-a-lock": (
        IN_ZYGOTE + "import threading\n    lock = threading.Lock()\n    lock.acquire()\n    here = os.getpid()\n"
        "    os.register_at_fork(after_in_child=lambda: os.getpid() == here or lock.acquire())\n",
        "",
    ),
    "keeps-a-worker": (
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
        "pool.submit(int).result()\n",
        "",
    ),
    "ends-its-forks": ("import os\nos.register_at_fork(after_in_child=lambda: os._exit(5))\n", ""),
    "breaks-calls": (
        IN_FORK + "    import builtins\n    real = builtins.__import__\n"
        "    builtins.__import__ = lambda *args: fails() if os.getpid() == 1 else real(*args)\n",
        "the first call of a handler: a fork of it failed",
    ),
    "breaks-threads": (
        IN_FORK + "    import threading\n    threading.Thread.run = fails\n",
        "a thread fails: did not run",
    ),
    "hangs-threads": (
        IN_FORK + "    import threading\n    threading.Thread.join = lambda *_: threading.Event().wait()\n",
        "a thread: a fork of it did not answer in time",
    ),
    "breaks-fork": (
        IN_FORK + "    os.register_at_fork(after_in_child=lambda: os.getpid() in (1, here) or os._exit(9))\n",
        "fork fails: ends with 9",
    ),
    "breaks-ssl": (IN_FORK + "    import ssl\n    ssl.SSLContext.wrap_bio = fails\n", "ssl fails: OSError"),
    "breaks-sockets": (IN_FORK + "    import socket\n    socket.socket.recv = fails\n", "a socket fails: OSError"),
    "numpy": (IN_FORK + "    ones, dot = tuple, fails\n", "numpy.dot fails: OSError"),
}
"""Package -> (what its module does, a part of the reason)."""


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[PrivateWorker]:
    """A worker whose Zygotes serve as soon as they are there, without a comparison."""
    worker = PrivateWorker(tmp_path, zygotes=CONFIG.replace("[sandbox]", "verify = false\n[sandbox]"))
    try:
        yield worker
    finally:
        worker.close()


def try_all(worker: PrivateWorker, codes: dict[str, str]) -> dict[str, str]:
    """Each package in a function of its own, all served; the worker's reasons for refusing the packages."""
    names = list(codes)

    def serve(number: int) -> None:
        name = names[number]
        module = name.replace("-", "_")
        deploy(worker, f"a-{name}", name, f"import {module}\ndef f(event): return event", package(name, codes[name]))
        for event in range(2):
            assert worker.call(f"a-{name}", event) == event

    at_once(len(names), serve)
    seen, wanted = Refusals(worker), {f"{name}==1.0" for name in names}
    worker.daemon.when(lambda: wanted <= seen.look().keys(), deadline_s=2 * worker.patience_s)
    for name in names:
        deploy(worker, f"b-{name}", name, f"import {name.replace('-', '_')}\ndef f(event): return event")
        assert worker.call(f"b-{name}", "later") == "later"
        assert worker.daemon.node(f"{name}==1.0") is None
    return {name: seen.rows[f"{name}==1.0"]["reason"] for name in names}


@case(
    "E5",
    "imports that raise, crash, exit, hang, stop, start threads, eat memory, close everything",
    expect="no request fails; the package is refused, with a reason, and imported by its users",
)
def test_harmful_imports_are_refused(worker: PrivateWorker, happened: Happened) -> None:
    reasons = try_all(worker, {name: code for name, (code, _) in HARMFUL.items()})
    happened("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    for name, (_, words) in HARMFUL.items():
        assert reasons[name] and words in reasons[name]
        assert str(worker.daemon.state) not in reasons[name]


@case(
    "E6",
    "packages whose forks hang or end, or can have no threads, forks, ssl, sockets or numpy.dot",
    expect="found out by a rehearsal or a canary fork, and refused with the reason",
)
@pytest.mark.timeout(120)
def test_bad_forks_are_found_out(worker: PrivateWorker, happened: Happened) -> None:
    reasons = try_all(worker, {name: code for name, (code, _) in BAD_FORKS.items()})
    happened("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    for name, (_, words) in BAD_FORKS.items():
        assert words in reasons[name], name


@case(
    "E7",
    "a Zygote that grows by 2 MB every 10 ms once it serves",
    expect="killed at zygote.memory_mb; the sandboxes forked from it live, later requests are served",
)
def test_a_zygote_that_grows_is_ended_and_its_children_live(hasty: PrivateWorker, happened: Happened) -> None:
    worker = hasty
    grows = (
        "import ctypes, signal\n"
        + IN_ZYGOTE
        + (
            "kept = []\n    signal.signal(signal.SIGALRM, lambda *_: kept.append(b'x' * (2 << 20)))\n"
            "    timer, times = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 10_000_000, 0, 10_000_000)\n"
            "    libc = ctypes.CDLL(None)  # a timer of timer_create(2): one of setitimer(2) is refused\n"
            "    def grow(*_):\n"
            "        assert libc.timer_create(1, None, ctypes.byref(timer)) == 0 == libc.timer_settime(timer, 0, times, None)\n"
            "    signal.signal(signal.SIGUSR1, grow)\n"
        )
    )
    mark = worker.daemon.mark
    code = "import grows\nseen = []\ndef f(event):\n seen.append(event)\n return len(seen)"
    deploy(worker, "child", "grows", code, package("grows", grows))
    assert worker.call("child", 1) == 1
    worker.daemon.wait_line(r"serves grows", since=mark)
    born = worker.invoke("child", 0, x_sockd_fresh="1")
    assert worker.json(f"/traces/{born.headers['x-amzn-requestid']}")["zygote"] == "grows"
    for zygote in worker.processes("zygote"):
        if "grows" in Path(f"/proc/{zygote.pid}/cmdline").read_text():
            os.kill(zygote.pid, signal.SIGUSR1)
    worker.daemon.wait_line(r"zygote-\d+ \(grows.*\) ended", since=mark)
    after = worker.invoke("child", 0)
    deploy(worker, "later", "grows", "# later\nimport grows\ndef f(event): return event")
    later = worker.invoke("later", 3)
    happened(
        f"child before: {born.json}, after: {after.json} ({after.headers['x-sockd-origin']}); later: {later.status}"
    )
    assert (born.json, after.json, later.json) == (1, 2, 3)
    assert after.headers["x-sockd-sandbox"] == born.headers["x-sockd-sandbox"]


@case(
    "P7",
    "a package that hangs in a Zygote, another that kills it, a harmless one behind them",
    expect="the harmless one is learned; refusals name module, Zygote, cause and time; a forgiven package is learned",
)
def test_refusals_end_and_delay_no_one(worker: PrivateWorker, happened: Happened) -> None:
    seen = Refusals(worker)
    wait = IN_ZYGOTE + "import threading; threading.Event().wait()\n"
    for name, code in (("slow-one", wait), ("slow-two", wait), ("dies", IN_ZYGOTE + "os._exit(3)\n")):
        module = name.replace("-", "_")
        top = package(name, "", **{f"{module}_inner": SLOW + code})
        deploy(worker, f"p7-{name}", name, f"import {module}, {module}_inner\ndef f(event): return 1", top)
        assert worker.call(f"p7-{name}") == 1
    deploy(worker, "p7-good", "harmless", "import harmless\ndef f(event): return 1", package("harmless"))
    assert worker.call("p7-good") == 1
    worker.daemon.when(lambda: [seen.look(), worker.daemon.node("harmless==1.0")][1], deadline_s=worker.patience_s)
    worker.daemon.when(lambda: {"slow-one==1.0", "slow-two==1.0", "dies==1.0"} <= seen.look().keys())
    rows = seen.rows
    happened("; ".join(f"{name}: {row['reason']}, {row['retry_in_s']:.0f} s" for name, row in rows.items()))
    for name in ("slow-one", "slow-two", "dies"):
        row = rows[f"{name}==1.0"]
        assert row["reason"].startswith(f"{name.replace('-', '_')}_inner: ") and row["zygote"] == name
    assert rows["slow-one==1.0"]["retry_in_s"] <= AFTER_DEADLINE_S < rows["dies==1.0"]["retry_in_s"] <= 86_400
    shown = {row["name"]: row for row in worker.json("/packages")}
    assert shown["dies"]["reason"] == rows["dies==1.0"]["reason"]
    assert "forgiven: dies-1.0" in worker.cli("packages", "forgive", "dies").stdout
    assert "dies==1.0" not in refusals(worker)


@case(
    "P40",
    "one function with four harmless packages and one that starts a thread",
    expect="the search by single imports refuses that one and no other",
)
def test_a_search_finds_the_harmful_package_and_no_other(worker: PrivateWorker, happened: Happened) -> None:
    harmless = [f"p40-harmless-{number}" for number in range(4)]
    code = SLOW + SLOW + HARMFUL["starts-thread"][0]
    names = [*harmless, "p40-threads"]  # the slowest is tried last
    imports = "\n".join(f"import {name.replace('-', '_')}" for name in names)
    wheels = [*map(package, harmless), package("p40-threads", code)]
    code = f"{imports}\ndef f(event): return 1"
    worker.deploy("p40", code, requirements=names, wheels=wheels, reuse_sandbox=False)

    def found() -> dict[str, str]:
        """What is refused, after one more start: the first may have looked too large for a Zygote on a busy host."""
        assert worker.call("p40") == 1
        return {key: reason for key, reason in refusals(worker).items() if key.startswith("p40-")}

    refused = worker.daemon.when(found, deadline_s=2 * worker.patience_s)
    happened("; ".join(f"{key}: {reason}" for key, reason in refused.items()))
    assert refused.keys() == {"p40-threads==1.0"}
    assert "threads" in refused["p40-threads==1.0"]
