"""`images`: what container images cost: in the store, on the way to a worker, and in a function's start.

Each part is a module of `image_parts`; --only takes their names. `image_caches` measures the caches of chunks.
"""

from __future__ import annotations

import sys

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, main
from benchmarks.image_parts import agent, dedup, first_answer, loop_devices, zygote_starts

PARTS = {
    "first-answer": first_answer.measure,
    "loop-devices": loop_devices.measure,
    "zygotes": zygote_starts.measure,
    "dedup": dedup.measure,
    "agent": agent.measure,
}
ONLY = "--only="


def measure(run: Run, parts: list[str]) -> Result:
    result = Result("images")
    for part in parts:
        PARTS[part](run, result)
    return result


def chosen(arguments: list[str]) -> list[str]:
    """The parts that --only=PART,... names; all without it."""
    named = [part for each in arguments if each.startswith(ONLY) for part in each.removeprefix(ONLY).split(",")]
    if unknown := set(named) - set(PARTS):
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return named or [*PARTS]


if __name__ == "__main__":
    PARTS_WANTED = chosen(sys.argv[1:])
    OTHERS = [each for each in sys.argv[1:] if not each.startswith(ONLY)]
    sys.exit(main("images", lambda run: measure(run, PARTS_WANTED), "What container images cost.", OTHERS))
