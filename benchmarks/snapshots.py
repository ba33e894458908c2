"""`snapshots`: starts of functions with an expensive init, from a Zygote and from a template, against a fork of a no-op.

Every function is deployed twice, with `snapshot = true` and without, in one worker without spares whose handler cache keeps
nothing. All are started in turns, so that a noisy neighbour hits all of them. Compared are setup and init of `Server-Timing`.
A second worker has spares, of a no-op and of the template. A third keeps sandboxes that have answered, whose memory is read: what
is private to one of them is what one more sandbox costs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.client import BadAnswer, Client, request
from benchmarks.harness.cold import ColdFunction, cold_config
from benchmarks.harness.functions import NOOP, Function
from benchmarks.harness.memory import sandbox_pids, smaps_rollup_mb
from benchmarks.harness.results import Result, median
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import Worker, WorkerFailed, running_worker

INIT = "import time\n\ntime.sleep(2)\n"
"""Two seconds in which no processor is used, so that other starts of the same round do not compete with it."""
SETTINGS = {"memory_mb": 1024, "timeout_s": 30, "init_timeout_s": 60}
SNAPPED = "-snapshot"
SPARES = 2
LEAST_LIMIT_MB = 10.0
"""What one more sandbox may always take; of a large function it may take a tenth."""
GAP_S = 0.05
"""Longer than a spare takes."""


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
DJANGO = """import django
from django.conf import settings

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/tmp/rows.sqlite"}
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"], DATABASES={"default": DATABASE})
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command

call_command("migrate", verbosity=0)
"""
DJANGO_HANDLER = "def handler(event, context):\n    return User.objects.count()\n"
SPACY = """import spacy

nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
nlp.add_pipe("entity_ruler").add_patterns([{"label": "ORG", "pattern": f"Company {number}"} for number in range(1000)])
"""
SPACY_HANDLER = "def handler(event, context):\n    return len(nlp('One sentence. Another one of Company 7.').ents)\n"
ONNXRUNTIME = """import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else it keeps a locked database open, which no fork can have
import onnxruntime
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
    function("django-migrate", DJANGO, "django", handler=DJANGO_HANDLER),
    function("spacy-blank", SPACY, "spacy", handler=SPACY_HANDLER),
    function("onnxruntime", ONNXRUNTIME, "onnxruntime"),
)


def measure(run: Run) -> Result:
    result = Result("snapshots")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours, spared = (stack.enter_context(running_worker(cold_config(spares=count))) for count in (0, SPARES))
        keeping = stack.enter_context(running_worker({"zygote": {"spares": 0}}))
        code = Function("noop", settings={"memory_mb": 64}).write(scratch)
        for one in (ours, spared):
            one.deploy(code, "noop")
        noop = ColdFunction(ours, "noop")
        for each in run.pick(FULL, QUICK):
            run.say(each.name)
            try:
                measure_one(run, ours, scratch, each, noop, result)
                snapped = scratch / f"{each.name}{SNAPPED}"
                measure_spares(run, spared, snapped, each, result)
                measure_memory(run, keeping, snapped, each, result)
            except (BadAnswer, WorkerFailed) as error:
                result.notes.append(f"{each.name}: {error}")
    return result


def measure_one(run: Run, ours: Worker, scratch: Path, each: Function, noop: ColdFunction, result: Result) -> None:
    """Raises: WorkerFailed; BadAnswer, when a start did not come from the template."""
    snapped = replace(each, name=f"{each.name}{SNAPPED}", settings={**each.settings, "snapshot": True})
    for one in (each, snapped):
        ours.deploy(one.write(scratch), one.name)
    template = ColdFunction(ours, snapped.name)
    cases: dict[str, Callable[[], float]] = {
        "noop": lambda: started_ms(noop),
        f"{each.name}, template": lambda: started_ms(template),
    }
    noop.reconnect()  # a deploy may have taken longer than the worker keeps a connection
    for start in cases.values():
        start()
    times = in_turns(cases, run.pick(100, 25))
    # Not before: the worker would have closed its idle connection by now.
    plain = ColdFunction(ours, each.name)
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


def measure_spares(run: Run, spared: Worker, code: Path, each: Function, result: Result) -> None:
    """Starts from spares of a template and of a no-op. Raises: WorkerFailed, BadAnswer."""
    spared.deploy(code, code.name)
    noop, template = ColdFunction(spared, "noop"), ColdFunction(spared, code.name)
    cases: dict[str, Callable[[], float]] = {
        "noop, spare": lambda: spare_ms(noop),
        "template, spare": lambda: spare_ms(template),
    }
    for start in cases.values():
        start()  # the first one teaches the worker which pages it writes to
    times = in_turns(cases, run.pick(100, 25))
    if template.share_of("template") < 1:
        raise BadAnswer(f"only {template.share_of('template'):.0%} of its starts came from its template")
    for case, seen in times.items():
        result.add(f"{each.name}: {case}", "setup and init", "ms", seen)
    ratio = median(times["template, spare"]) / median(times["noop, spare"])
    result.aim(f"{each.name} from its template's spare, times the no-op's spare", ratio, "<= 1.5")


def measure_memory(run: Run, keeping: Worker, code: Path, each: Function, result: Result) -> None:
    """Memory of a template's sandboxes that have answered one request. Raises: WorkerFailed, BadAnswer."""
    keeping.deploy(code, code.name)
    fresh = request(code.name).replace(b"\r\n\r\n", b"\r\nX-Sockd-Fresh: 1\r\n\r\n", 1)
    private, resident = [], []
    with Client(keeping.host, keeping.port) as client:
        for _ in range(run.pick(10, 5)):
            before = {*sandbox_pids(keeping)}
            if (origin := client.exchange(fresh).headers["x-sockd-origin"]) != "template":
                raise BadAnswer(f"a start came from {origin}, not from its template")
            (pid,) = {*sandbox_pids(keeping)} - before
            found = smaps_rollup_mb(pid)
            private.append(found["Private_Clean"] + found["Private_Dirty"])
            resident.append(found["Rss"])
    result.add(f"{each.name}: one more sandbox", "private memory", "MB", private)
    result.add(f"{each.name}: one more sandbox", "resident memory", "MB", resident)
    limit_mb = max(LEAST_LIMIT_MB, median(resident) / 10)
    share = median(private) / limit_mb
    result.aim(
        f"{each.name}: private memory of one more sandbox, times the larger of 10 MB and a tenth of it", share, "<= 1"
    )


def spare_ms(function: ColdFunction) -> float:
    """Setup and init of one start that has found a spare."""
    time.sleep(GAP_S)
    return started_ms(function)


def started_ms(function: ColdFunction) -> float:
    """Setup and init of one cold start."""
    phases = function.start().phases_ms()
    return phases["setup"] + phases["init"]


if __name__ == "__main__":
    sys.exit(main("snapshots", measure, "Starts from a template against starts of the function's own."))
