"""What must not be the same, and what must not be there at all, in two children of one Zygote."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.faults.packages import SLOW, deploy, grow_zygote, package
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

pytestmark = pytest.mark.root

NUMPY = wheel(
    "numpy",
    "1.0",
    {
        "numpy/__init__.py": SLOW + "from numpy import random\n",
        "numpy/random.py": "import os\nclass State:\n __slots__ = ('value',)\n_state = State()\n_state.value = 12345\n"
        "def seed():\n _state.value = int.from_bytes(os.urandom(8), 'little')\n"
        "def rand():\n _state.value = _state.value * 6364136223846793005 % (1 << 64) + 1\n return _state.value\n",
    },
)
"""A stand-in with what matters here: a global generator that is made at the import, and can be seeded; as numpy's it is an object
of which fingerprints do not describe the state."""
DRAWS = """
import numpy, os, random, secrets, ssl, tempfile, uuid
def f(event):
    return [numpy.random.rand(), random.random(), secrets.token_hex(8), str(uuid.uuid4()), str(uuid.uuid1()),
            os.urandom(8).hex(), tempfile.mktemp(), ssl.RAND_bytes(8).hex()]
"""
SOURCES = ("numpy", "random", "secrets", "uuid4", "uuid1", "urandom", "tempfile", "ssl")


@case(
    "E1",
    "random numbers of eight kinds drawn in six forks of one Zygote",
    expect="no two alike; a package's global generator is seeded anew",
)
def test_no_two_forks_draw_the_same(worker: PrivateWorker, happened: Happened) -> None:
    deploy(worker, "draws", "numpy", DRAWS, NUMPY)
    worker.call("draws")
    worker.daemon.when(lambda: worker.daemon.node("numpy==1.0"))
    for number in range(6):
        deploy(worker, f"draws-{number}", "numpy", f"# {number}\n{DRAWS}")
        worker.call(f"draws-{number}")
    drawn = [worker.daemon.run_learned(f"draws-{number}").json for number in range(6)]
    node = worker.daemon.node("numpy==1.0")
    assert node is not None and node["starts"] >= 6, "they came from elsewhere"
    alike = [source for source, column in zip(SOURCES, zip(*drawn, strict=True), strict=True) if len(set(column)) < 6]
    happened(f"{len(drawn)} forks of one Zygote ({node['starts']} starts); alike: {', '.join(alike) or 'none'}")
    assert not alike


@case(
    "E2",
    "a secret in a function's environment, event, code and memory; the memory of all other processes read",
    expect="it is in no Zygote, no spare and no other function",
)
def test_a_secret_stays_in_its_sandbox(worker: PrivateWorker, happened: Happened) -> None:
    wheels = package("shared")
    deploy(worker, "warms", "shared", "import shared\ndef f(event): return 1", wheels)
    grow_zygote(worker, "shared")
    secret = secrets.token_hex(24)
    code = (
        f"import shared, os, builtins\nCODE = '{secret}'\nbuiltins.leak = shared.leak = CODE\n"
        "def f(event):\n global kept\n kept = [event + os.environ['KEY'] for _ in range(100)]\n return len(kept)"
    )
    deploy(worker, "secretive", "shared", code, env={"KEY": secret})
    assert worker.call("secretive", secret) == 100
    for number in range(3):
        deploy(
            worker,
            f"curious-{number}",
            "shared",
            f"# {number}\nimport shared\ndef f(event): return vars(shared).get('leak')",
        )
        assert worker.call(f"curious-{number}") is None
        assert worker.daemon.run_learned(f"curious-{number}").json is None
    worker.daemon.wait_verified()  # it starts the function once more, for a moment
    found, searched = [], 0
    for process in worker.processes():
        hit, size = search(process.pid, secret.encode())
        searched += size
        if hit:
            found.append(process)
    happened(
        f"{searched >> 20} MB of {len(worker.processes())} processes searched; it is in {[each.kind for each in found]}"
    )
    assert len(found) == 1 and found[0].kind == "sandbox", "only its own sandbox has it"


def search(pid: int, needle: bytes) -> tuple[bool, int]:
    """Whether a process has these bytes in memory that it may write, and how much of it there is."""
    searched = 0
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for start, end in writable(maps):
                memory.seek(start)
                try:
                    data = memory.read(end - start)
                except OSError:
                    continue
                searched += len(data)
                if needle in data:
                    return True, searched
    except (FileNotFoundError, ProcessLookupError):
        pass  # gone meanwhile
    return False, searched


def writable(maps: Iterator[str]) -> Iterator[tuple[int, int]]:
    for line in maps:
        span, permissions = line.split()[:2]
        if permissions.startswith("rw"):
            start, _, end = span.partition("-")
            yield int(start, 16), int(end, 16)


@case(
    "E8",
    "a package in the store that shadows json and random, patches builtins, and brings a .pth and a sitecustomize",
    expect="a function that does not ask for it can neither import it nor feel it",
)
def test_a_package_is_nothing_to_who_did_not_ask_for_it(worker: PrivateWorker, happened: Happened) -> None:
    evil = wheel(
        "evil",
        "1.0",
        {
            "evil.py": SLOW
            + "import builtins, sys\nbuiltins.evil = 1\nsys.modules['surprise'] = sys\nsys.path.insert(0, '/tmp')\n",
            "json.py": "evil = 1\n",
            "random.py": "evil = 1\n",
            "sitecustomize.py": "import builtins\nbuiltins.evil = 2\n",
            "evil.pth": "import builtins; builtins.evil = 3\n",
        },
    )
    deploy(worker, "asks", "evil", "import evil\ndef f(event): return 1", evil)
    assert worker.call("asks") == 1
    worker.daemon.when(lambda: worker.daemon.node("evil==1.0") or "evil==1.0" in str(worker.json("/tree")["refused"]))
    code = (
        "import builtins, json, random, sys\n"
        "def f(event):\n"
        "    try:\n        import evil\n        found = 'imported'\n"
        "    except ModuleNotFoundError:\n        found = 'not there'\n"
        "    return [found, hasattr(builtins, 'evil'), hasattr(json, 'evil'), hasattr(random, 'evil'),\n"
        "            'surprise' in sys.modules, any('evil' in path for path in sys.path)]\n"
    )
    deploy(worker, "other", "good", code, package("good"))
    worker.deploy("bare", code)
    said = [worker.call(name) for name in ("other", "bare")]
    said += [worker.daemon.run_learned(name).json for name in ("other", "bare")]
    happened(f"import: {said[0][0]}; builtins, json, random, sys.modules, sys.path touched: {said[0][1:]}")
    assert said == [["not there", False, False, False, False, False]] * 4
