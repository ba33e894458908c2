"""A start of a function without a request: run its top level, record it, tell what the process has become.

The handler `sockd_zygote.top_levels.trial:answer` of a sandbox that has the function's packages, code and environment. It runs
in a start from the root Zygote, which is recorded (`top_level`), and in a fork of a Zygote (the daemon's `verifier`); the answers
are compared. The entry module is loaded as in each start, and no handler is called. What a trial says is a claim, as
everything that a sandbox says.

Until the function's code has run, nothing is imported that a sandbox has not: it would find it in `sys.modules`.
"""

from __future__ import annotations

import os
import sys
import time

from sockd_zygote.forks import hygiene
from sockd_zygote.forks.module_kinds import OWN, Kinds
from sockd_zygote.handlers import entry, import_hooks
from sockd_zygote.handlers.handler import signature
from sockd_zygote.top_levels.checks import CHECKED, begin, try_out
from sockd_zygote.top_levels.interpreter import settings
from sockd_zygote.top_levels.top_level import Recorder

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sockd_zygote.top_levels.fingerprint import Names

INTERPRETER, CHECKS, FAILED = "(interpreter)", "(checks)", "(top level)"
"""Not of modules: what code changes in the interpreter and the standard library; what was tried; how the top level failed."""
MOST_NAMES = 20_000
"""The most names of all modules whose names are reported."""
MOST_PARTS = 20_000
"""The most parts of all values that are reported."""
BALLAST = 12_007
"""Objects that move the addresses of all that come after them, for each step of `moved`."""
SMALL, ODD = 512, 600
"""Bytes: up to the former, pymalloc has a pool for each 16 more; the latter is malloc's, which gives it 41 times 16."""


def answer(event: dict[str, Any]) -> dict[str, Any]:
    """Run one trial.

    Args:
        event: `function`: `handler`, `code`, `entry_file`, `app` and `wasm`, as INIT has them; `roots`: of an image, directories
            with
            the key of their packages; `record`: whether the imports are recorded; `names_of`: modules whose names are
            reported;
            `pids`: of the other process and its Zygotes; `moved`: another number, other addresses; `variables`: names of the
            function's own, whose values are not reported.
    """
    began = time.process_time()
    ballast = shift_memory(event["moved"])
    kinds = Kinds([(root, key) for root, key in event["roots"]])
    begin("the function's top level")
    recorder = Recorder(kinds, event["function"]["handler"].partition(":")[0]) if event["record"] else None
    failure = run_top_level(event["function"], recorder)
    import_hooks.lay_out_logs()
    looked = look_at_process(event, kinds, failure)
    del ballast
    steps = judged_steps(recorder, kinds) if recorder is not None else []
    return {**looked, "steps": steps, "failure": failure, "cpu_s": time.process_time() - began}


def judged_steps(recorder: Recorder, kinds: Kinds) -> list[dict[str, Any]]:
    """Return the steps of a recording. After the fingerprint, which would show what this imports."""
    from sockd_zygote.top_levels.certainty import mark

    steps = recorder.steps()
    mark(steps, recorder.finished, recorder.changed_variables, kinds)
    return steps


def run_top_level(function: dict[str, Any], recorder: Recorder | None) -> str:
    """Load the entry point as a start does. Returns: the type of the error that it has raised."""
    failure = ""
    if recorder is not None:
        recorder.__enter__()
    try:
        if function["wasm"]:
            __import__(entry.WASM_HOST)
        else:
            load_what_serves(function["handler"], *entry.load_target(function))
    except BaseException as error:  # user code: SystemExit and KeyboardInterrupt are failures like any other
        failure = type(error).__name__
    finally:
        if recorder is not None:
            recorder.__exit__()
    return failure


def load_what_serves(handler: str, target: Any, app: str) -> None:
    """Import what a start imports to serve the kind of handler, between its top level and the first request."""
    if app:
        from sockd_zygote.handlers.app_kinds import chosen_kind

        if kind := chosen_kind(target, app):
            __import__(f"sockd_zygote.handlers.{kind}")
            return
    if signature(target, handler)[1]:
        import asyncio  # noqa: F401 -- what `handler.Runner` imports


def look_at_process(event: dict[str, Any], kinds: Kinds, failure: str) -> dict[str, Any]:
    """Return the digests of all modules, and the names of those that are asked for."""
    state = settings()
    stop_tracing()
    loaded = dict(sys.modules)
    begin("fingerprint")
    from sockd_zygote.top_levels.fingerprint import Fingerprint, digest_of

    pids = sorted({os.getpid(), *hygiene.pids, *event["pids"]})
    # Few modules keep one, and many have a constant that happens to be the same number: only where modules differ already.
    fingerprint = Fingerprint(kinds, pids if event["pids"] else ())
    modules = fingerprint.modules(loaded)
    every: dict[str, Names] = {name: fingerprint.names_of(name, module) for name, module in modules.items()}
    every[FAILED] = {"failure": fingerprint.looks(failure)}
    every[INTERPRETER] = {name: fingerprint.looks(value) for name, value in state.items()}
    every[CHECKS] = {name: fingerprint.looks(try_out(name, check)) for name, check in CHECKED.items()}
    digests = {name: digest_of(names) for name, names in every.items()}
    wanted = set(event["names_of"])
    owners = {name: kinds.key_of(name, module) for name, module in modules.items() if name in wanted}
    values = reported_names({name: every[name] for name in sorted(wanted) if name in every}, owners, event["variables"])
    return {
        "digests": digests,
        "names": values,
        "complete": sum(map(len, values.values())) <= MOST_NAMES,
        "owners": {name: key for name, key in owners.items() if key != OWN},
        "pids": pids,
    }


def stop_tracing() -> None:
    """End tracemalloc, if it runs: a traced fingerprint takes ten times as long, and nothing of the function follows."""
    stop = getattr(sys.modules.get("_tracemalloc"), "stop", None)
    if stop is not None:
        stop()


def shift_memory(steps: int) -> list[object]:
    """What makes all that is allocated from now on get other addresses, by another number of 16 bytes each: a set's order depends
    on the last bits."""
    every_size = [bytes(size) for size in range(16, SMALL - 32, 16) for _ in range(steps)]
    return [[object() for _ in range(BALLAST * steps)], every_size, bytes(ODD * steps)]


def reported_names(
    modules: Mapping[str, Names], owners: Mapping[str, str], variables: list[str]
) -> dict[str, dict[str, tuple[str, str, dict[str, str]]]]:
    """Digest, words and parts for each name, of as many modules as may be reported and one more.

    A value may be a function's variable, or be made from one, and reports are shown to people: where a function has
    variables, and in its own modules, values are not reported."""
    from sockd_zygote.top_levels.fingerprint import constant_text, digest, parts, shown

    known = {constant_text(os.environ[name], str.__repr__): f"${name}" for name in variables if name in os.environ}
    reported: dict[str, dict[str, tuple[str, str, dict[str, str]]]] = {}
    count = count_of_parts = 0
    for module, names in modules.items():
        if count > MOST_NAMES:
            break
        count += len(names)
        hidden = known if (variables or owners.get(module) == OWN) and module != CHECKS else None
        reported[module] = {}
        for name, look in names.items():
            inside = parts(look, is_secret=hidden is not None) if count_of_parts < MOST_PARTS else {}
            count_of_parts += len(inside)
            reported[module][name] = digest(repr(look)), shown(look, hidden), inside
    return reported
