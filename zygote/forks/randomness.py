"""Generators of random numbers that imports made: all that were seeded by the kernel are seeded again in each child.

Those that a package seeded by hand go on as they are: a start of its own would find them so, too. Which is which: calls of
`random.Random.seed` and `setstate`, and numpy's seeds from the kernel, are recorded while packages are imported; torch's
generators keep what they were seeded with. Generators are looked for among all objects, once per Zygote; a Zygote's children
inherit the list, and look again how each was seeded: what is imported later, or the init of a function, may have seeded it by
hand.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from time import time

ModuleType = type(sys)
TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reseed = Callable[[], object]

BIT_GENERATOR = "numpy.random.bit_generator"
DRAWN = 1 << 64
"""Seeds from here on were drawn by numpy from the kernel (they have 128 bits) where that was not recorded: most people write
smaller ones."""
DRAWN_BY_TORCH = 1 << 32
TORCH_DEFAULT_SEED = 67280421310721
"""What every `torch.Generator` begins with that was not seeded (c10/core/GeneratorImpl.h)."""
CHUNK = 20_000
CLOCK_SINCE = 1 << 32
"""Integers from here on are no seeds that people write, but a clock's milliseconds or nanoseconds."""
DAY_S = 86_400.0

_by_hand: dict[int, Any] = {}
"""Generators of `random` whose last seed was given, by id."""
_drawn: set[int] = set()
"""Seeds that numpy has drawn from the kernel."""
_are_recorded: list[Any] = []
"""The modules of numpy all of whose draws are recorded."""
_held: dict[int, Any] = {}
"""Generators of numpy that had drawn their seed when they were last looked at, by id. Forks have given them others since."""
_known: dict[int, tuple[Any, Callable[[Any], Reseed | None]]] = {}
"""Generators that were found, with what gives their seeder, by id."""


class Watch:
    """While it is entered, seeds of generators are recorded: what is given to those of `random`, and what numpy draws. The
    Observer has it among its finders."""

    def __init__(self, *, takes_clocks: bool = False) -> None:
        """Args: takes_clocks: a seed that was read from the clock counts as drawn, as each start would have another."""
        self._takes_clocks = takes_clocks
        self._ends: dict[str, Callable[[], object]] = {}
        """What ends the watch of a module, by name."""
        self.notes: list[str] = []
        """What was taken for a clock, in words."""

    def __enter__(self) -> Watch:
        _drawn.update(bits.seed_seq.entropy for bits in _held.values())
        for name in (name for name in self._watchers() if name in sys.modules):
            self._watchers()[name](sys.modules[name])
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends.values():
            end()

    def _watchers(self) -> dict[str, Callable[[Any], None]]:
        return {"random": self._watch_random, BIT_GENERATOR: self._watch_numpy}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """As one of the observer's finders: have a module watched as soon as it is there."""
        if name not in self._watchers() or name in self._ends:
            return None
        spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name, path)
        loader = getattr(spec, "loader", None)
        if loader is not None:
            loader.exec_module = partial(self._execute, loader)
        return spec

    def _execute(self, loader: Any, module: Any) -> None:
        del loader.exec_module
        loader.exec_module(module)
        if module.__name__ == BIT_GENERATOR:
            _are_recorded.append(module)
        self._watchers()[module.__name__](module)

    def _watch_random(self, module: Any) -> None:
        if not hasattr(module, "_inst") or not hasattr(module, "Random"):
            return  # a package's own of that name
        original, original_setstate = module.Random.seed, module.Random.setstate

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            original(generator, a, version)
            if self._takes_clocks and is_clock(a):
                self.notes.append(
                    f"random was seeded with {a!r:.40}, which is taken for the time: each start draws another"
                )
                a = None
            if a is None:
                _by_hand.pop(id(generator), None)
            else:
                _by_hand[id(generator)] = generator

        def setstate(generator: Any, state: Any) -> None:
            original_setstate(generator, state)
            _by_hand[id(generator)] = generator

        def end() -> None:
            module.Random.seed, module.Random.setstate = original, original_setstate
            give_back(ours, module._inst.seed)

        module.Random.seed, module.Random.setstate = seed, setstate
        ours = module.seed = module._inst.seed
        self._ends["random"] = end

    def _watch_numpy(self, module: Any) -> None:
        original = getattr(module, "randbits", None)
        if original is None or module not in _are_recorded:
            return

        def randbits(count: int) -> int:
            drawn: int = original(count)
            _drawn.add(drawn)
            return drawn

        module.randbits = randbits
        self._ends[BIT_GENERATOR] = partial(give_back, randbits, original)


def give_back(ours: Any, theirs: Any) -> None:
    from sockd_zygote.forks import taken_names

    taken_names.give_back(ours, theirs)


def is_clock(seed: object) -> bool:
    """Whether a seed was read from the clock: each start of a function's own would have another."""
    if type(seed) is float:
        return True
    return type(seed) is int and (seed >= CLOCK_SINCE or abs(seed - time()) < DAY_S)


def keep_by_hand() -> list[Reseed]:
    """What gives the generator of `random` itself the state back that a package seeded: Python seeds it in every child. To be
    called before anything plays a fork through."""
    shared = getattr(sys.modules.get("random"), "_inst", None)
    if shared is None or id(shared) not in _by_hand:
        return []
    return [partial(shared.setstate, shared.getstate())]


def reseeds() -> list[Reseed]:
    """Return what seeds each generator anew that was not seeded by hand, of those that `candidates` has now or had before."""
    kinds = known_kinds()
    by_type: dict[type, Any] = {}
    for candidate in candidates() if kinds else ():
        kind = type(candidate)
        if kind not in by_type:
            by_type[kind] = next((seeder for base, seeder in kinds.items() if base in kind.__mro__), None)
        if by_type[kind] is not None:
            _known[id(candidate)] = candidate, by_type[kind]
    found = [seeder(generator) for generator, seeder in _known.values()]
    return [reseed for reseed in found if reseed is not None]


def known_kinds() -> dict[type, Callable[[Any], Reseed | None]]:
    kinds: dict[type, Callable[[Any], Reseed | None]] = {}
    for module, name, seeder in SEEDERS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            kinds[kind] = seeder
    return kinds


def candidates() -> Any:
    """Each object that the collector knows; and what they refer to if torch is there, whose generators it does not know. A new
    one may be held by an object of the permanent generation, such as a module that was made before, so that is given up.

    Modules are not asked what they refer to: their names are in dicts, which are, and before Python 3.12.6 `_asyncio` would give
    objects that are freed already, and that this frees again (gh-122695); the next collection would not end."""
    if "torch" in sys.modules:
        gc.unfreeze()
    objects = gc.get_objects()
    yield from objects
    if "torch" in sys.modules:
        objects = [each for each in objects if type(each) is not ModuleType]
        for first in range(0, len(objects), CHUNK):
            yield from gc.get_referents(*objects[first : first + CHUNK])


def of_random(generator: Any) -> Reseed | None:
    random = sys.modules["random"]
    if isinstance(generator, random.SystemRandom) or generator is random._inst or id(generator) in _by_hand:
        return None  # it has no state; Python's own hook seeds it; it is to stay
    return partial(random.Random.seed, generator)


def of_numpy(bits: Any) -> Reseed | None:
    """A BitGenerator, which numpy's Generators and RandomStates use. The global one's is hygiene's."""
    shared = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if bits is getattr(shared, "_bit_generator", None):
        return None
    return bits.__init__ if was_drawn(bits) else None


def of_random_state(state: Any) -> Reseed | None:
    """Not by its own `seed`, after which one cannot tell a seed that was drawn from one that was given."""
    bits: Any = getattr(state, "_bit_generator", None)
    is_global = state is getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if is_global or not was_drawn(bits):
        return None
    forget_half(state)
    return bits.__init__  # type: ignore[no-any-return]


def forget_half(state: Any) -> None:
    """Have no half of a pair of gauss() be left over. Args: state: a RandomState, or numpy.random, which stands for one."""
    state.set_state({**state.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})


def was_drawn(bits: Any) -> bool:
    """Whether a BitGenerator was seeded by the kernel."""
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    is_recorded = sys.modules.get(BIT_GENERATOR) in _are_recorded
    is_drawn = isinstance(entropy, int) and (entropy in _drawn if is_recorded else entropy >= DRAWN)
    if is_drawn:
        _held[id(bits)] = bits
    else:
        _held.pop(id(bits), None)
    return is_drawn


def of_torch(generator: Any) -> Reseed | None:
    seed = generator.initial_seed()
    return generator.seed if seed >= DRAWN_BY_TORCH and seed != TORCH_DEFAULT_SEED else None


SEEDERS = (
    ("random", "Random", of_random),
    ("numpy.random", "BitGenerator", of_numpy),
    ("numpy.random", "RandomState", of_random_state),
    ("torch", "Generator", of_torch),
)
"""A class by its module and name, and what gives a generator's seeder; None: it stays as it is."""
