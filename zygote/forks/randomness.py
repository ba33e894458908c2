"""Generators of random numbers that imports made: all that were seeded by the kernel are seeded again in each child.

Those that a package seeded by hand go on as they are: a start of its own would find them so, too. Which is which: calls of
`random.Random.seed` and `setstate` are noted while packages are imported; numpy's generators keep what they were seeded with,
and torch's a number. Generators are looked for among all objects, once per Zygote; a Zygote's children inherit the list, and look
again how each was seeded: what is imported later, or the init of a function, may have seeded it by hand.
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

DRAWN = 1 << 64
"""Seeds from here on were drawn by numpy from the kernel (they have 128 bits): people write smaller ones."""
DRAWN_BY_TORCH = 1 << 32
TORCH_DEFAULT_SEED = 67280421310721
"""What every `torch.Generator` begins with that was not seeded (c10/core/GeneratorImpl.h)."""
CHUNK = 20_000
CLOCK_SINCE = 1 << 32
"""Integers from here on are no seeds that people write, but a clock's milliseconds or nanoseconds."""
DAY_S = 86_400.0

_by_hand: dict[int, Any] = {}
"""Generators of `random` whose last seed was given, by id."""
_known: dict[int, tuple[Any, Callable[[Any], Reseed | None]]] = {}
"""Generators that were found, with what gives their seeder, by id."""


class Watch:
    """While it is entered, seeds that are given to generators of `random` are noted. The Observer has it among its finders."""

    def __init__(self, *, takes_clocks: bool = False) -> None:
        """Args: takes_clocks: a seed that was read from the clock counts as drawn, as each start would have another."""
        self._module: Any = None
        self._takes_clocks = takes_clocks
        self.notes: list[str] = []
        """What was taken for a clock, in words."""

    def __enter__(self) -> Watch:
        if "random" in sys.modules:
            self._watch(sys.modules["random"])
        return self

    def __exit__(self, *_: object) -> None:
        if self._module is not None:
            self._module.Random.seed, self._module.Random.setstate = self._seed, self._setstate
            from sockd_zygote.forks import taken_names

            taken_names.give_back(self._global_seed, self._module._inst.seed)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """As one of the observer's finders: have `random` watched as soon as it is there."""
        if name != "random" or self._module is not None:
            return None
        spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name)
        loader = getattr(spec, "loader", None)
        if loader is not None:
            loader.exec_module = partial(self._execute, loader)
        return spec

    def _execute(self, loader: Any, module: Any) -> None:
        del loader.exec_module
        loader.exec_module(module)
        self._watch(module)

    def _watch(self, module: Any) -> None:
        if not hasattr(module, "_inst") or not hasattr(module, "Random"):
            return  # a package's own of that name
        self._module, self._seed, self._setstate = module, module.Random.seed, module.Random.setstate

        def seed(generator: Any, a: Any = None, version: int = 2) -> None:
            self._seed(generator, a, version)
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
            self._setstate(generator, state)
            _by_hand[id(generator)] = generator

        module.Random.seed, module.Random.setstate = seed, setstate
        self._global_seed = module.seed = module._inst.seed


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
    """Return what seeds each generator anew that was not seeded by hand. Objects in the collector's permanent generation are not
    looked at: generators among them were found before."""
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
    """Besides its BitGenerator: no half of a pair of gauss() is left over."""
    bits = getattr(state, "_bit_generator", None)
    is_global = state is getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if is_global or type(bits).__name__ != "MT19937" or not was_drawn(bits):
        return None
    return state.seed  # type: ignore[no-any-return]


def was_drawn(bits: Any) -> bool:
    """Whether a BitGenerator was seeded by the kernel."""
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    return isinstance(entropy, int) and entropy >= DRAWN


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
