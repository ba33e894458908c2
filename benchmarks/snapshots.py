"""`snapshots`: starts of functions with an expensive init, from a Zygote and from a template, against a fork of a no-op.

Every function is deployed twice, with `snapshot = true` and without, in one worker without spares whose handler cache keeps
nothing. All are started in turns, so that a noisy neighbour hits all of them. Compared are setup and init of `Server-Timing`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.client import BadAnswer
from benchmarks.harness.cold import ColdFunction, cold_config
from benchmarks.harness.functions import NOOP, Function
from benchmarks.harness.results import Result, median
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import Worker, WorkerFailed, worker

INIT = "import time\n\ntime.sleep(2)\n"
"""Two seconds in which no processor is used, so that other starts of the same round do not compete with it."""
SETTINGS = {"memory_mb": 1024, "timeout_s": 30, "init_timeout_s": 60}


def function(name: str, init: str, *requirements: str, handler: str = NOOP) -> Function:
    """A function that runs `init` when it is imported."""
    return Function(name, f"{init}\n\n{handler}", requirements, dict(SETTINGS))


FASTAPI = """import contextlib

import fastapi


@contextlib.asynccontextmanager
async def lifespan(app):
    yield


app = fastapi.FastAPI(lifespan=lifespan)
for number in range(50):
    app.get(f"/{number}")(lambda: {})
app.post("/")(lambda: {})
handler = app
"""
SQLALCHEMY = """import sqlalchemy as sa

engine = sa.create_engine("sqlite:////tmp/rows.sqlite")
table = sa.Table("rows", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
table.metadata.create_all(engine)
"""
SQLALCHEMY_HANDLER = """def handler(event, context):
    with engine.begin() as connection:
        connection.execute(table.insert())
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar()
"""
QUICK = (
    function("init-2-s", INIT),
    function("numpy-300-MB", "import numpy\n\nWEIGHTS = numpy.ones(300 << 17)", "numpy"),
)
FULL = (
    *QUICK,
    function("fastapi-50-routes", FASTAPI, "fastapi", handler=""),
    function("sqlalchemy-sqlite", SQLALCHEMY, "SQLAlchemy", handler=SQLALCHEMY_HANDLER),
    function("scikit-learn", "import sklearn.ensemble", "scikit-learn"),
)


def measure(run: Run) -> Result:
    result = Result("snapshots")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(worker(cold_config(spares=0)))
        ours.deploy(Function("noop", settings={"memory_mb": 64}).write(scratch), "noop")
        noop = ColdFunction(ours, "noop")
        for each in run.pick(FULL, QUICK):
            run.say(each.name)
            try:
                measure_one(run, ours, scratch, each, noop, result)
            except (BadAnswer, WorkerFailed) as error:
                result.notes.append(f"{each.name}: {error}")
    return result


def measure_one(run: Run, ours: Worker, scratch: Path, each: Function, noop: ColdFunction, result: Result) -> None:
    """Raises: WorkerFailed; BadAnswer, when a start did not come from the template."""
    snapped = replace(each, name=f"{each.name}-snapshot", settings={**each.settings, "snapshot": True})
    for one in (each, snapped):
        ours.deploy(one.write(scratch), one.name)
    plain, template = ColdFunction(ours, each.name), ColdFunction(ours, snapped.name)
    cases: dict[str, Callable[[], float]] = {
        "noop": lambda: started_ms(noop),
        f"{each.name}, template": lambda: started_ms(template),
    }
    for start in cases.values():
        start()
    times = in_turns(cases, run.pick(100, 25))
    own = [started_ms(plain) for _ in range(run.pick(5, 2))]
    if template.share_of("template") < 1:
        raise BadAnswer(f"only {template.share_of('template'):.0%} of its starts came from its template")
    for case, seen in times.items():
        result.add(f"{each.name}: {case}", "setup and init", "ms", seen)
    result.add(f"{each.name}: own init", "setup and init", "ms", own)
    (row,) = [row for row in ours.json("tree")["templates"] if row["function"] == snapped.name]
    result.add(f"{each.name}: template", "memory", "MB", [row["memory_bytes"] / (1 << 20)], tail=False)
    against = median(times[f"{each.name}, template"])
    times_noop = against / median(times["noop"])
    result.aim(f"{each.name} from its template, times the no-op's fork", times_noop, "<= 3")
    if each.name == "init-2-s":
        result.aim("2 s of init from its Zygote, times the template's start", median(own) / against, ">= 50")


def started_ms(function: ColdFunction) -> float:
    """Setup and init of one cold start."""
    phases = function.start().phases_ms()
    return phases["setup"] + phases["init"]


if __name__ == "__main__":
    sys.exit(main("snapshots", measure, "Starts from a template against starts of the function's own."))
