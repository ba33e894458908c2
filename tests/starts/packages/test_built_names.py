"""A package that was built holds its own modules, and none of another package of the same function."""

from __future__ import annotations

import pytest

from sockd.starts.packages.built_names import module_of_another
from sockd.starts.packages.distribution import Closure, Distribution, Source
from sockd.starts.packages.provided_names import Provided
from tests.support.cases import case


def distribution(name: str, *, is_built: bool = False) -> Distribution:
    source = Source(**SOURCE) if is_built else None
    return Distribution(name=name, version="1.0", digest="0" * 64, url="https://example.com/x", source=source)


SOURCE = {"url": "https://example.com/x.tar.gz", "digest": "0" * 64}


@case("K30", "a build's wheel holds modules of another package of the function", expect="refused, with both names")
@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"made_up"}, ""),
        ({"made_up", "tests", "tests.unit"}, ""),
        ({"made_up", "yaml"}, "made-up 1.0, which was built from source, holds yaml, a module of pyyaml"),
        ({"google.made_up"}, ""),
        ({"google.cloud"}, "holds google.cloud, a module of google-cloud"),
        ({"not_yet_there"}, "holds not_yet_there, a module of not-yet-there"),
    ],
)
def test_modules_of_other_packages_are_refused(modules: set[str], words: str) -> None:
    provided = {
        "made-up": Provided(modules=frozenset(modules), namespaces=frozenset({"google"})),
        "pyyaml": Provided(modules=frozenset({"yaml", "tests", "_yaml"})),
        "google-cloud": Provided(modules=frozenset({"google.cloud"}), namespaces=frozenset({"google"})),
        "not-yet-there": Provided(),
    }
    for built in (True, False):
        others = [distribution(name) for name in provided if name != "made-up"]
        closure = Closure.of([distribution("made-up", is_built=built), *others])
        found = module_of_another(closure, lambda each: provided[each.name])
        assert bool(found) == bool(words and built)
        assert words in found or not built
