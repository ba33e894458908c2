"""`sockd imports`: what importing costs a function, and who spares it."""

from __future__ import annotations

import json

from sockd.client.cli.observe.imports import state, words
from tests.client.cli.serving import Run
from tests.http.fake_worker import IMPORTS


def test_each_package_with_its_cost_and_its_place(run: Run) -> None:
    shown = run("imports", "echo")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["pandas==3.0.0", "180.5", "ms", "2", "in", "each", "cold", "start"]
    assert lines[2].endswith("imported ahead") and lines[3].endswith("refused: it starts threads")
    assert "imports for 181.5 ms, and is spared 60.0 ms" in lines[4]
    assert lines[5] == IMPORTS["sharing"]
    assert lines[6] == "a Zygote would take: pandas==3.0.0"
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
    unmeasured = [{**package, "ms": 0.0, "in_zygote": False} for package in IMPORTS["packages"]]
    alone = 'nothing is imported ahead: zygote = "none"'
    assert words({**IMPORTS, "packages": unmeasured, "sharing": alone, "zygotes_allowed": False}) == [alone]
    assert words({**IMPORTS, "packages": unmeasured}) == [IMPORTS["sharing"]], "nothing was measured yet"
    assert state({"refused": None, "in_zygote": False, "ms": 0.0}) == "-"
