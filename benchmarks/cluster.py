"""`cluster`: a group of three workers with PostgreSQL and HAProxy on one machine; with --simulate, a model of 10 000 workers.

Measured are the warm rate of one, two and three pinned workers, the share of cold starts by the way in which HAProxy chooses a
worker, the time until a deploy is visible on all, events per second, and requests that fail during a rolling upgrade. PostgreSQL
has its default settings. `cluster_parts` has a file for each.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.cluster_parts.cold_share import measure_cold_share
from benchmarks.cluster_parts.event_rate import measure_events
from benchmarks.cluster_parts.group import group
from benchmarks.cluster_parts.rolling import measure_rolling
from benchmarks.cluster_parts.simulated import measure_simulated
from benchmarks.cluster_parts.visibility import measure_visibility
from benchmarks.cluster_parts.warm_rate import measure_warm_rate
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, main

WORKERS = 3
SIMULATE = "--simulate"


def measure(run: Run) -> Result:
    result = Result("cluster")
    with tempfile.TemporaryDirectory(prefix="sockd-bench-") as name, group(WORKERS) as made:
        scratch = Path(name)
        run.say("warm rate")
        measure_warm_rate(run, made, scratch, result)
        run.say("deploys until they are visible")
        measure_visibility(run, made, result)
        run.say("events")
        measure_events(run, made, scratch, result)
        run.say("rolling upgrade")
        measure_rolling(run, made, scratch, result)
        measure_cold_share(run, made, result)
    return result


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != SIMULATE]
    sys.exit(main("cluster", measure_simulated if SIMULATE in sys.argv else measure, __doc__.splitlines()[0], words))
