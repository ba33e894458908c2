"""What must differ between forks, with stand-ins for the packages whose state it is; and the Zygote's import diet."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import random
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import AuthenticationString  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.forks import hygiene, randomness
from sockd_zygote.handlers import import_hooks
from sockd_zygote.handlers.import_hooks import ImportTimer

REPOSITORY = Path(__file__).parents[3]

FORBIDDEN = {
    *("argparse", "ast", "asyncio", "dataclasses", "hashlib", "inspect", "logging", "pathlib", "random"),
    *("subprocess", "tempfile", "threading", "traceback", "typing", "uuid"),
}
"""Each costs every fork page tables, and milliseconds at the start. (enum and selectors come with socket.)"""


@contextmanager
def settled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as a Zygote with stand-ins for packages, which it forgets."""
    forget()
    hygiene.settle()
    try:
        yield
    finally:
        gc.unfreeze()
        monkeypatch.undo()
        forget()


def forget() -> None:
    for each in (
        hygiene._seen,
        hygiene._seeders,
        hygiene._mends,
        hygiene.in_child,
        randomness._known,
        randomness._held,
    ):
        each.clear()


@pytest.mark.parametrize("name", sorted(hygiene.SEEDERS))
def test_global_generators_are_seeded_anew_after_a_fork(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[tuple[object, ...]] = []
    stand_in = types.ModuleType(name)
    stand_in.seed = lambda *args: seeded.append(args)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, stand_in)
    with settled(monkeypatch):
        seeded.clear()
        hygiene.after_fork()
    assert seeded == [()]  # without an argument: from the system's randomness


FORKS_WITH_ONE_PID = """
import ctypes, os, ssl
from sockd_zygote.forks import hygiene

def as_pid_1(task):
    child = os.fork()
    if child == 0:
        assert ctypes.CDLL(None).unshare(0x20000000) == 0
        inner = os.fork()
        if inner == 0:
            assert os.getpid() == 1
            task()
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    assert os.waitpid(child, 0)[1] == 0

def zygote():
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    hygiene.settle()
    for _ in range(2):
        as_pid_1(fork)

def fork():
    hygiene.after_fork()
    print(ssl.RAND_bytes(16).hex(), flush=True)

as_pid_1(zygote)
"""


@pytest.mark.root
def test_openssl_draws_other_numbers_in_a_fork_with_the_pid_of_its_zygote() -> None:
    command = [sys.executable, "-c", FORKS_WITH_ONE_PID]
    drawn = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True).stdout.split()
    assert len(drawn) == len(set(drawn)) == 2


@pytest.mark.parametrize("drawn", [True, False])
def test_the_key_of_multiprocessing_is_drawn_anew_after_a_fork(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.current_process()
    key = bytes(hygiene.KEY_BYTES if drawn else 5)
    monkeypatch.setitem(process._config, "authkey", AuthenticationString(key))  # type: ignore[attr-defined]
    with settled(monkeypatch):
        hygiene.after_fork()
        assert (process.authkey == key) != drawn and len(process.authkey) == len(key)


class TorchGenerator:
    """`torch.Generator`, as far as its seed is concerned; another one is drawn."""

    __slots__ = ()

    def initial_seed(self) -> int:
        return randomness.DRAWN_BY_TORCH

    def seed(self) -> None:
        raise AssertionError


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("torch")
    module.Generator = TorchGenerator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_generators_of_torch_are_found_where_asyncio_has_freed_objects(torch: Any) -> None:
    async def wait() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future

    asyncio.run(wait())
    torch.own = TorchGenerator()
    assert torch.own.seed in randomness.reseeds()
    gc.collect()  # it ends


def test_a_generator_of_torch_is_found_in_a_module_that_was_made_before(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.Generator = bytearray  # a class in C whose objects the collector does not know, as torch's
    monkeypatch.setattr(randomness, "SEEDERS", (("torch", "Generator", lambda found: found.clear),))
    blank = types.ModuleType("handler")
    gc.freeze()
    try:
        blank.own = bytearray(b"own")  # type: ignore[attr-defined]
        assert not gc.is_tracked(blank.own)
        assert blank.own.clear in randomness.reseeds()
    finally:
        gc.unfreeze()
        randomness._known.clear()


@pytest.mark.parametrize("seeds", [(None, 7), (7, None), (7, 8), (None, None)])
def test_the_last_seed_of_a_generator_decides(seeds: tuple[int | None, int | None]) -> None:
    """A Zygote finds a generator of a package, and what is imported later, or the init of a function, seeds it."""
    own = random.Random()
    with pytest.MonkeyPatch.context() as monkeypatch, settled(monkeypatch), randomness.Watch():
        for seed in seeds:
            own.seed(seed)
            hygiene.settle()
        hygiene.after_fork()
        drawn = own.random()
        own.seed(seeds[1])
        hygiene.settle()
        hygiene.after_fork()
    assert (own.random() == drawn) == (seeds[1] is not None)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_global_generator_that_is_seeded_by_hand_later_stays(by_hand: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Twister()
    sequence = types.SimpleNamespace(entropy=randomness.DRAWN)
    bits = types.SimpleNamespace(seed_seq=sequence)
    module.mtrand = types.SimpleNamespace(_rand=types.SimpleNamespace(_bit_generator=bits))
    monkeypatch.setitem(sys.modules, "numpy.random", module)
    with settled(monkeypatch):
        hygiene.after_fork()
        module.words[:] = list(range(626))
        sequence.entropy = 7 if by_hand else randomness.DRAWN
        hygiene.settle()
        hygiene.after_fork()
    assert (list(module.words) == list(range(626))) == by_hand


def test_a_key_of_multiprocessing_that_is_set_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "authkey", AuthenticationString(bytes(hygiene.KEY_BYTES)))  # type: ignore[attr-defined]
    with settled(monkeypatch):
        process.authkey = b"own"
        hygiene.settle()
        hygiene.after_fork()
        assert process.authkey == b"own"


CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Twister(types.ModuleType):
    """numpy.random, as far as its global generator's words are concerned; `offset` bytes from where it says they are."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__("numpy.random")
        self.mtrand: Any = None
        self.words = (ctypes.c_uint32 * 626)(*range(626))
        self.seeds, self.has_gauss = 0, 1
        self.bitgen = ctypes.c_void_p(ctypes.addressof(self.words) + offset)
        capsule = CAPSULE(ctypes.addressof(self.bitgen), b"BitGenerator", None)
        self.generator = types.SimpleNamespace(capsule=capsule)

    def seed(self) -> None:
        self.seeds += 1

    def get_state(self, *, legacy: bool) -> dict[str, object]:
        assert not legacy
        return {
            "bit_generator": "MT19937",
            "state": {"key": memoryview(self.words)[:624], "pos": 624},
            "has_gauss": self.has_gauss,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        assert state["state"]["key"] == memoryview(self.words)[:624]
        self.has_gauss = state["has_gauss"]

    def get_bit_generator(self) -> types.SimpleNamespace:
        return self.generator


def test_numpys_words_are_overwritten_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Twister()
    monkeypatch.setitem(sys.modules, "numpy.random", module)
    with settled(monkeypatch):
        assert (module.has_gauss, list(module.words)) == (0, list(range(626)))
        hygiene.after_fork()
        first = list(module.words)
        hygiene.after_fork()
    assert module.seeds == 0
    assert first[624:] == list(module.words)[624:] == [624, 625]  # what is behind them is not touched
    same = [a in (b, number) for number, (a, b) in enumerate(zip(first, module.words, strict=True))]
    assert sum(same[:624]) < 3


def test_numpy_seeds_itself_where_its_words_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Twister(offset=4)
    monkeypatch.setitem(sys.modules, "numpy.random", module)
    with settled(monkeypatch):
        hygiene.after_fork()
    assert (module.seeds, list(module.words)) == (1, list(range(626)))


def test_packages_that_are_not_there_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in hygiene.SEEDERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    hygiene.after_fork()
    assert not set(hygiene.SEEDERS) & set(sys.modules)


def test_a_zygotes_objects_are_out_of_the_collectors_sight() -> None:
    try:
        hygiene.settle()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_threads_that_run_python_are_counted() -> None:
    before = hygiene.thread_count()
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert hygiene.thread_count() == before + 1
    finally:
        end.set()
        thread.join()


def test_a_zygote_imports_little() -> None:
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); bare = set(sys.modules)\n"
    program += "from sockd_zygote import fork_server, linux, rehearsal\n"
    program += "print(*sorted(set(sys.modules) - bare))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & FORBIDDEN, loaded & FORBIDDEN
    assert {name.partition(".")[0] for name in loaded if name.startswith("sockd")} == {"sockd_zygote"}


class Clock:
    """`time`, which goes on when a module says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_import_times_are_each_modules_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    clock = Clock()
    monkeypatch.setattr(import_hooks, "time", clock)
    takes = "from sockd_zygote.handlers import import_hooks\nimport_hooks.time.now += {}\n"
    (tmp_path / "timed_inner.py").write_text(takes.format(3.0))
    (tmp_path / "timed_outer.py").write_text("import timed_inner\n" + takes.format(1.0))
    timer = ImportTimer()
    timer.start()
    try:
        __import__("timed_outer")
        with pytest.raises(ModuleNotFoundError):
            __import__("timed_nowhere")
    finally:
        timer.stop()
        for name in ("timed_outer", "timed_inner"):
            sys.modules.pop(name, None)
    assert (timer.seconds["timed_outer"], timer.seconds["timed_inner"]) == (1.0, 3.0)
    assert [name for name in timer.seconds if name.startswith("timed_")] == [
        "timed_outer",
        "timed_inner",
        "timed_nowhere",
    ]
    before = dict(timer.seconds)
    with pytest.raises(ModuleNotFoundError):
        __import__("timed_later")
    assert timer.seconds == before
