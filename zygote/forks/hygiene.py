"""What must differ between forks of one Zygote, and what must be still before a fork.

Same in all forks unless mended here: numpy's and torch's global generators, those that packages made
(`sockd_zygote.forks.randomness`), OpenSSL's, the key that `multiprocessing` drew, and the number that `threading` knows the main
thread by. `random`'s own, `uuid`, `secrets` and `tempfile` mend themselves (research: fork safety, measured). The hash secret
and the memory layout stay shared: that is the price of a Zygote, named in SECURITY."""

from __future__ import annotations

import gc
import os
import sys
from functools import partial

from sockd_zygote import _native

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def numpy_seeder(module: Any) -> Callable[[], object]:
    """What gives numpy's global generator other numbers. Its own `seed` takes a child 100 page faults, so the 624 words that
    are all of a Mersenne Twister's state but its position are overwritten where they are, as far as these are there."""
    from sockd_zygote.forks import randomness

    shared = getattr(getattr(module, "mtrand", None), "_rand", None)
    seed = module.seed if shared is None else shared._bit_generator.__init__
    try:
        randomness.forget_half(module)
        key = module.get_state(legacy=False)["state"]["key"].tobytes()
        words = _native.generator_state(module.get_bit_generator().capsule, len(key))
    except Exception:  # another numpy, or no numpy at all
        return seed  # type: ignore[no-any-return]
    return partial(fill, words) if words == key else seed


def fill(words: memoryview) -> None:
    words[:] = os.urandom(len(words))


def draw_key(process: Any) -> None:
    process.authkey = os.urandom(KEY_BYTES)


def stir(tls: Any) -> None:
    """Give OpenSSL's generators other numbers. It knows a fork by its pid, which in a pid namespace may be the Zygote's."""
    tls.RAND_add(os.urandom(KEY_BYTES), KEY_BYTES)


def numpy_by_hand(module: Any) -> bool:
    from sockd_zygote.forks import randomness

    shared = getattr(getattr(module, "mtrand", None), "_rand", None)
    return shared is not None and not randomness.was_drawn(shared._bit_generator)


def torch_by_hand(module: Any) -> bool:
    from sockd_zygote.forks import randomness

    return hasattr(module, "initial_seed") and module.initial_seed() < randomness.DRAWN_BY_TORCH


SEEDERS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Callable[[], object]]]] = {
    "numpy.random": (numpy_by_hand, numpy_seeder),
    "torch": (torch_by_hand, lambda module: module.seed),
}
"""Modules with a generator of their own: whether a package has seeded it by hand, and what gives its seeder."""
KEY_MODULES = ("multiprocessing.process", "multiprocess.process")
"""Both draw a key when they are imported, by which processes trust each other."""
KEY_BYTES = 32
_seen: set[str] = set()
"""Modules that were there when this Zygote, or one that it was forked from, settled."""
_seeders: dict[str, Callable[[], object]] = {}
"""What seeds the generators of modules, by name, but for those that were seeded by hand."""
_mends: list[Callable[[], object]] = []
"""What does not depend on how something was seeded."""
states: list[Callable[[], object]] = []
"""What gives a generator the state back that Python's own hook takes (`randomness.keep_by_hand`)."""
in_child: list[Callable[[], object]] = []
"""What `after_fork` does."""
pids: set[int] = set()
"""Pids of this Zygote and of those that it was forked from."""
is_forked = False
"""Whether the function of this sandbox has forked this process, with `os.fork`."""
with_code: list[Callable[[], object]] = []
"""What a sandbox does as soon as it has its code (`package_path`, `kept`, `clocks`)."""


def settle() -> None:
    """Before forking: find what `after_fork` has to do, collect once, and move every object out of the collector's sight.

    A child's first full collection then dirties 2-4 MB of shared pages instead of 50 (measured with pandas and django)."""
    pids.add(os.getpid())
    for name, (by_hand, seeder) in SEEDERS.items():
        if name not in sys.modules:
            continue
        if by_hand(sys.modules[name]):
            _seeders.pop(name, None)
        elif name not in _seeders:
            _seeders[name] = seeder(sys.modules[name])
    for name in KEY_MODULES:
        if name in sys.modules:
            process = sys.modules[name].current_process()
            _seeders.pop(name, None)
            if len(process.authkey) == KEY_BYTES:  # another one was set by hand
                _seeders[name] = partial(draw_key, process)
    if "_ssl" in sys.modules and "_ssl" not in _seen:
        _seen.add("_ssl")
        _mends.append(partial(stir, sys.modules["_ssl"]))
    if "threading" in sys.modules and "threading" not in _seen:
        _seen.add("threading")
        _mends.extend(menders_of_threading(sys.modules["threading"]))
    gc.collect()
    in_child[:] = [*_mends, *_seeders.values(), *reseeds(), *states]
    gc.freeze()


def reseeds() -> list[Callable[[], object]]:
    """Return what seeds the generators that code has made."""
    if "random" not in sys.modules and "torch" not in sys.modules:  # numpy imports the former
        return []
    from sockd_zygote.forks import randomness

    return randomness.reseeds()


def menders_of_threading(module: Any) -> list[Callable[[], object]]:
    """What gives the main thread its number, and its lock back to those of threads that run, which `threading` forgets in a
    child."""
    thread = module.main_thread()
    lock = getattr(thread, "_tstate_lock", None)  # until Python 3.12
    return [thread._set_native_id, *([lambda: module._shutdown_locks.add(lock)] if lock is not None else [])]


def after_fork() -> None:
    """In the child, before user code: own randomness. (native/fork.c has switched the collector on again.)"""
    global is_forked
    is_forked = False
    for mend in in_child:
        mend()


def note_fork() -> None:
    """What a child does after each fork; one of a Zygote's then takes it back."""
    global is_forked
    is_forked = True


def thread_count() -> int:
    """Threads that run Python. Those of C libraries alone are not counted: an allocator's does no harm (pandas, pyarrow
    keep one or two), and whether the others do, only a canary can tell."""
    return len(sys._current_frames())
