"""The random numbers of numpy, torch and OpenTelemetry in the starts of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots.snapshotted import deploy, origin
from tests.support.cases import case
from tests.support.threads import at_once

pytestmark = [pytest.mark.root, pytest.mark.timeout(3600)]
CALLERS, STARTS = 4, 10_000
CONFIG = "[packages]\nmax_package_mb = 4096\ninstall_deadline_s = 1800.0\n"
"""torch with what it requires is larger than what a worker takes by default."""
REQUIREMENTS = "numpy<2\nopentelemetry-sdk==1.30.0\ntorch==2.5.1\n"
SEEDED = frozenset({"numpy seeded", "numpy generator seeded", "torch seeded", "torch unseeded"})
"""Generators that the function has given a seed; torch gives one without a seed the same in each process."""
DRAWS = """
import numpy, torch
from opentelemetry.sdk.trace import TracerProvider
NUMPY, NUMPY_SEEDED, GENERATOR_SEEDED = numpy.random.default_rng(), numpy.random.RandomState(7), numpy.random.default_rng(7)
TORCH, TORCH_UNSEEDED, TORCH_SEEDED = torch.Generator(), torch.Generator(), torch.Generator().manual_seed(7)
TORCH.seed()
DROPOUT = torch.nn.Dropout()
TRACER = TracerProvider().get_tracer("draws")
def drawn(generator=None): return torch.randint(0, 1 << 62, (), generator=generator).item()
def handler(event, context):
    span = TRACER.start_span("start").get_span_context()
    return {
        "numpy": numpy.random.random(),
        "numpy generator": NUMPY.random(),
        "numpy seeded": NUMPY_SEEDED.random(),
        "numpy generator seeded": GENERATOR_SEEDED.random(),
        "torch": drawn(),
        "torch generator": drawn(TORCH),
        "torch unseeded": drawn(TORCH_UNSEEDED),
        "torch seeded": drawn(TORCH_SEEDED),
        "dropout": "".join(str(int(kept)) for kept in DROPOUT(torch.ones(96)) > 0),
        "span": span.span_id,
        "trace": span.trace_id,
    }
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, ledger_of_module: None) -> Iterator[RunningDaemon]:
    """A daemon with uv's own index that takes large packages. It must end in order."""
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("large") / "state", CONFIG)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


@case(
    "T17",
    "start a function with numpy, torch and OpenTelemetry 10 000 times from one template",
    expect="no number twice, but for generators with a seed",
    default=False,
)
def test_starts_share_no_number_of_a_library(large: RunningDaemon) -> None:
    files = {"handler.py": DRAWS, "requirements.txt": REQUIREMENTS}
    function, said = deploy(large, "draws", files, concurrency=CALLERS, memory_mb=1024, timeout_s=120)
    assert function["snapshot"] == "serving", said
    answers = at_once(CALLERS, lambda _: [large.run("draws") for _ in range(STARTS // CALLERS)])
    seen: dict[str, set[object]] = {}
    for answer in (answer for each in answers for answer in each):
        assert origin(answer) == "template"
        for name, drawn in answer.json.items():
            seen.setdefault(name, set()).add(drawn)
    assert {name: len(drawn) for name, drawn in seen.items()} == {
        name: 1 if name in SEEDED else STARTS for name in seen
    }
