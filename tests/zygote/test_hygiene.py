"""What must differ between forks, with stand-ins for the packages whose state it is; and the Zygote's import diet."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from zygote import hygiene, import_timer
from zygote.import_timer import ImportTimer

REPOSITORY = Path(__file__).parents[2]

FORBIDDEN = {
    *("argparse", "ast", "asyncio", "dataclasses", "hashlib", "inspect", "logging", "pathlib", "random"),
    *("subprocess", "tempfile", "threading", "traceback", "typing", "uuid"),
}
"""Each costs every fork page tables, and milliseconds at the start. (enum and selectors come with socket.)"""


@pytest.mark.parametrize("name", sorted(hygiene.RESEED))
def test_global_generators_are_seeded_anew_after_a_fork(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[tuple[object, ...]] = []
    stand_in = types.ModuleType(name)
    stand_in.seed = lambda *args: seeded.append(args)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, stand_in)
    hygiene.settle()
    try:
        hygiene.after_fork()
    finally:
        gc.unfreeze()
        monkeypatch.undo()
        hygiene.settle()  # forget the stand-in
        gc.unfreeze()
    assert seeded == [()]  # without an argument: from the system's randomness


def test_packages_that_are_not_there_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in hygiene.RESEED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    hygiene.after_fork()
    assert not set(hygiene.RESEED) & set(sys.modules)


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
    program += "from zygote import fork_server, handler_server, hygiene, linux, rehearsal\n"
    program += "print(*sorted(set(sys.modules) - bare))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & FORBIDDEN, loaded & FORBIDDEN
    assert not {name for name in loaded if name.startswith("sockd")}


class Clock:
    """`time`, which goes on when a module says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_import_times_are_each_modules_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    clock = Clock()
    monkeypatch.setattr(import_timer, "time", clock)
    takes = "from zygote import import_timer\nimport_timer.time.now += {}\n"
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
