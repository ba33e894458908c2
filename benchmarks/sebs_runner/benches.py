"""The benches: which functions of the suite there are, what each needs, and how big its sandbox must be.

Pure. What a bench computes, and its events, are the suite's own; memory and timeouts are those of the suite's config.json
unless it runs out of them here (`memory_mb`: RSS was measured, and /tmp is memory in a sandbox).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from benchmarks.sebs_runner.errors import NoSuchBench

SIZES = ("test", "small", "large")

DYNAMODB, FFMPEG, TORCH, URL = "dynamodb", "ffmpeg", "torch", "url"


@dataclass(frozen=True, slots=True)
class Bench:
    """One bench."""

    id: str
    """As SeBS names it: "210.thumbnailer"."""
    group: str
    """The directory of the suite; empty: ours."""
    memory_mb: int | None = None
    timeout_s: float | None = None
    storage: bool = False
    needs: frozenset[str] = frozenset()
    initscript: str = "nothing"
    """The example initscript that issues its reads."""
    requirements: tuple[str, ...] | None = None
    """Where the suite has no file for a recent Python, or none at all."""

    @property
    def number(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.rpartition(".")[2]

    @property
    def directory(self) -> tuple[str, ...]:
        """Below `sebs/` of the suite."""
        return "benchmarks", self.group, self.id


BENCHES = (
    Bench("010.sleep", "000.microbenchmarks"),
    Bench("110.dynamic-html", "100.webapps"),
    Bench("120.uploader", "100.webapps", memory_mb=256, storage=True, needs=frozenset({URL})),
    Bench("130.crud-api", "100.webapps", memory_mb=256, needs=frozenset({DYNAMODB})),
    Bench("210.thumbnailer", "200.multimedia", storage=True, initscript="thumbnailer"),
    Bench("220.video-processing", "200.multimedia", storage=True, needs=frozenset({FFMPEG}), initscript="thumbnailer"),
    Bench("311.compression", "300.utilities", storage=True, initscript="compression"),
    Bench(
        "411.image-recognition",
        "400.inference",
        memory_mb=2048,
        storage=True,
        needs=frozenset({TORCH}),
        initscript="image_recognition",
    ),
    Bench("501.graph-pagerank", "500.scientific"),
    Bench("502.graph-mst", "500.scientific"),
    Bench("503.graph-bfs", "500.scientific"),
    Bench(
        "504.dna-visualisation",
        "500.scientific",
        memory_mb=3072,
        timeout_s=120,
        storage=True,
        initscript="thumbnailer",
        requirements=("squiggle==0.3.1",),
    ),
    Bench(
        "imgrec",
        "",
        memory_mb=1024,
        timeout_s=60,
        storage=True,
        initscript="image_recognition",
        requirements=("numpy==2.2.6", "onnxruntime==1.31.1", "pillow==10.3.0"),
    ),
    Bench(
        "imgrec-wasm",
        "",
        memory_mb=1024,
        timeout_s=60,
        storage=True,
        initscript="image_recognition",
        requirements=("numpy==2.2.6", "pillow==10.3.0", "wasmtime==50.0.1"),
    ),
)
"""In SeBS's order; the last two are ours: 411's work without torch, on onnxruntime and as a WebAssembly module."""

USUAL = tuple(bench for bench in BENCHES if TORCH not in bench.needs)
"""What runs without anything that a package index does not have."""


def find(name: str) -> Bench:
    """A bench by number, name or both: "210", "thumbnailer", "210.thumbnailer". Raises: NoSuchBench."""
    for bench in BENCHES:
        if name in (bench.id, bench.number, bench.name):
            return bench
    names = [word for bench in BENCHES for word in (bench.id, bench.name)]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "there are " + ", ".join(bench.id for bench in BENCHES)
    raise NoSuchBench(f"no bench {name!r}; {hint}", fix="sockd sebs ls")
