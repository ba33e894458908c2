"""`sockd imports`: what importing costs a function, and who spares it."""

from __future__ import annotations

import json

from sockd.client.cli.observe.imports import costs, state, words
from tests.client.cli.serving import Run
from tests.http.worker_answers import IMPORTS


def test_each_package_with_its_cost_and_its_place(run: Run) -> None:
    shown = run("imports", "echo")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["pandas==3.0.0", "180.5", "ms", "2", "in", "each", "cold", "start"]
    assert lines[2].endswith("imported ahead") and lines[3].endswith("refused: it starts threads")
    assert lines[4].split() == ["standard", "library", "8.5", "ms", "6.0", "ms", "of", "it", "ahead"]
    assert lines[5] == "a cold start now imports for 184.0 ms, and is spared 66.0 ms by its Zygote"
    assert lines[6] == IMPORTS["sharing"]
    assert lines[7] == "a Zygote could take more of: pandas==3.0.0"
    assert "  pandas.core" in run("imports", "echo", "--modules").stdout
    assert json.loads(run("imports", "echo", "--json").stdout) == IMPORTS
    assert run("imports", "unknown").returncode == 3


def test_why_it_shares_or_does_not_is_said() -> None:
    why = "the function's own code changes os.environ['A'] before it imports numpy"
    assert why in words({**IMPORTS, "sharing": why})
    assert any("zygote setting" in line for line in words({**IMPORTS, "zygotes_allowed": False}))
    over = {"packages": ["requests==2.34"], "reason": "an import looked for socks, which pysocks has"}
    assert "the Zygote of requests==2.34 is passed over: an import looked for socks, which pysocks has" in words(
        {**IMPORTS, "passed_over": [over]}
    )
    assert words({**IMPORTS, "passed_over": [over], "sharing": f"that of requests==2.34: {over['reason']}"})[2:] == [
        "a Zygote could take more of: pandas==3.0.0"
    ], "the reason is not said twice"
    nothing = {"ms": 0.0, "ahead_ms": 0.0, "in_zygote": False, "shareable": False}
    unmeasured = [{**package, **nothing} for package in IMPORTS["packages"]]
    unmeasured_yet = {**IMPORTS, "packages": unmeasured, "standard": {"ms": 0.0, "ahead_ms": 0.0}}
    alone = 'nothing is imported ahead: zygote = "none"'
    assert words({**unmeasured_yet, "sharing": alone, "zygotes_allowed": False}) == [alone]
    assert words(unmeasured_yet) == [IMPORTS["sharing"]], "nothing was measured yet"
    assert state(unmeasured[0]) == "-"


def test_a_package_of_which_a_part_is_imported_ahead_is_counted_by_parts() -> None:
    numpy = {**IMPORTS["packages"][1], "ahead_ms": 20.0, "in_zygote": False}
    standard = {"ms": 5.0, "ahead_ms": 0.0}
    assert state(numpy) == "20.0 ms of it ahead, the rest in each cold start"
    first, *others = words({**IMPORTS, "packages": [numpy], "standard": standard})
    assert first == "a cold start now imports for 45.0 ms, and is spared 20.0 ms by its Zygote"
    assert not any("could take" in line for line in others), "its own code has changed something for the rest"


def test_what_a_zygote_of_the_standard_library_spares_is_counted() -> None:
    packages = [{**each, "ahead_ms": 0.0, "in_zygote": False} for each in IMPORTS["packages"]]
    shown = {**IMPORTS, "packages": packages}
    assert costs(shown) == ["a cold start now imports for 244.0 ms, and is spared 6.0 ms by its Zygote"]
    own = {"ms": 8.5, "ahead_ms": 0.0}
    assert costs({**shown, "standard": own}) == [
        "a cold start now imports for 250.0 ms, and is spared nothing by a Zygote"
    ]
