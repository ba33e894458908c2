"""What sockd/linux/native/hrtick.c offers to Python: one set of threads for a process, a thread on each processor."""

def start(processors: list[int], period_ns: int, /) -> None:
    """Make them; they sleep until `run_until`. Raises: OSError; ValueError: there are some already."""

def run_until(end_ns: int, /) -> None:
    """Have them wake once in each period until then (CLOCK_MONOTONIC), instead of until when they were asked for before."""

def stop() -> None:
    """End them, within a period. Safe to call twice."""
