"""The command `sockd sebs`: the SeBS suite on a worker."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sockd.client.console.output import NOT_FOUND, USAGE, Failure, json_option, print_json, progress, say, suggest
from sockd.client.console.tables import print_table

if TYPE_CHECKING:
    from benchmarks.sebs_runner.experiment import Outcome
    from benchmarks.sebs_runner.runner import Choice, Options

EXPERIMENTS = ("cold", "warm", "burst", "sequential")
ARMS = {
    "own": ("own", False),
    "own-initscript": ("own", True),
    "shim": ("shim", False),
    "initscript": ("shim", True),
}
PAPER_FIRST_BYTE_MS, PAPER_BYTES_PER_S = 25.0, 60e6
COLUMNS = {
    "benchmark": "bench",
    "size": "size",
    "experiment": "experiment",
    "arm": "arm",
    "initscript": "initscript",
    "n": "n",
    "start_mean_ms": "start mean",
    "start_p50_ms": "p50",
    "start_p95_ms": "p95",
    "client_p50_ms": "client p50",
    "client_p95_ms": "p95",
    "read_p50_ms": "read p50",
    "hidden_p50_ms": "hidden p50",
    "read_bytes": "bytes",
}
"""The columns of the table at the end: a row's keys in JSON, and their headings. Times are ms; start is the start latency,
read what the function waited for its reads, hidden what was fetched while it did not wait."""

cache_option = click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), help="Where the suite and its inputs are kept."
)


def _run_options(command: Callable[..., None]) -> Callable[..., None]:
    """What `invoke` and `run` share."""
    options = (
        click.option("--repetitions", default=5, show_default=True, type=click.IntRange(1), help="Samples wanted."),
        click.option(
            "--arm",
            "arms",
            multiple=True,
            type=click.Choice(list(ARMS)),
            help="own: SeBS's storage.py on boto3; shim: sockd's; initscript: sockd's, prefetched. May be repeated.",
        ),
        click.option("--rtt", "rtt_ms", default=0.0, metavar="MS", help="Delay of each answer of the embedded S3."),
        click.option("--paper", is_flag=True, help="An S3 at the initscript paper's distance: 25 ms, 60 MB/s."),
        click.option(
            "--concurrency", default=1, show_default=True, type=click.IntRange(1), help="At once, in a batch."
        ),
        click.option("--no-zygotes", is_flag=True, help="Start every sandbox as a fresh interpreter."),
        click.option("--snapshot", is_flag=True, help="Start every sandbox from a snapshot of the bench's init."),
        click.option("--data", type=click.Path(path_type=Path), help="SeBS's benchmarks-data.  [default: ~/.sebs/…]"),
        click.option(
            "--torch", type=click.Choice(["auto", "system", "index", "pypi"]), default="auto", help="Where 411 has it."
        ),
        click.option("--state-dir", type=click.Path(path_type=Path), help="Use the worker that has this directory."),
        click.option("--worker", "url", metavar="URL", help="Its address, if it is not the one that it says."),
        click.option("--out", default=Path("sebs-results"), show_default=True, type=click.Path(path_type=Path)),
        cache_option,
        json_option,
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def sebs() -> None:
    """Run SeBS, the serverless benchmark suite, unmodified.

    Benches are named by number, name or both: 210, thumbnailer, 210.thumbnailer. Without --state-dir they run on a private
    worker, and without AWS_ENDPOINT_URL_S3 on an embedded S3. Each repetition of `cold` is a fresh sandbox."""


@sebs.command("ls")
@json_option
def list_benches(as_json: bool) -> None:
    """List the benches."""
    from benchmarks.sebs_runner.benches import BENCHES

    if as_json:
        print_json([{"id": bench.id, "needs": sorted(bench.needs), "storage": bench.storage} for bench in BENCHES])
        return
    rows = [(bench.id, bench.initscript, ", ".join(sorted(bench.needs)) or "-") for bench in BENCHES]
    print_table(("bench", "initscript", "needs"), rows)


@sebs.command()
@cache_option
@click.option("--ffmpeg", "with_ffmpeg", is_flag=True, help="Also the static ffmpeg that 220 calls (30 MB).")
@json_option
def fetch(cache: Path | None, with_ffmpeg: bool, as_json: bool) -> None:
    """Install the published suite into the cache: from PyPI, pinned by hash, without its dependencies."""
    from benchmarks.sebs_runner import suite

    with _told():
        found = {"suite": str(suite.fetch(suite.SUITE, cache or suite.default_cache()))}
        if with_ffmpeg:
            found["ffmpeg"] = str(suite.ffmpeg(cache or suite.default_cache()))
    if as_json:
        print_json(found)
    for name, path in found.items():
        say(f"{name}: {path}")


@sebs.command()
@click.argument("bench")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--arm", type=click.Choice(list(ARMS)), default="shim", show_default=True)
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="An environment variable; may be repeated.")
@cache_option
def package(bench: str, directory: Path, arm: str, env: tuple[str, ...], cache: Path | None) -> None:
    """Write a bench as a DIRECTORY that `sockd deploy` takes, in SeBS's own layout."""
    from benchmarks.sebs_runner import benches
    from benchmarks.sebs_runner.runner import Options, Runner
    from benchmarks.sebs_runner.suite import Suite, default_cache

    if directory.exists():
        raise Failure(f"{directory} already exists", exit_code=USAGE)
    with _told():
        found = benches.find(bench)
        runner = Runner(Options(cache or default_cache()), [found])
        runner.suite = Suite.of(runner.options.cache)
        pairs = (item.partition("=") for item in env)
        runner.package(found, _choice(arm), {name: value for name, _, value in pairs}, directory)
    suggest("deploy it", f"sockd deploy {directory}")


@sebs.command()
@click.argument("bench")
@click.argument("input_size", metavar="SIZE", type=click.Choice(["test", "small", "large"]))
@click.option("--initscript", type=click.Choice(["on", "off"]), help="Short for --arm initscript, --arm shim.")
@click.option("--warm", is_flag=True, help="Let a sandbox answer more than once.")
@_run_options
def invoke(bench: str, input_size: str, initscript: str | None, warm: bool, **options: Any) -> None:
    """Run one bench; every repetition is a cold start unless --warm. Writes experiments.json."""
    arms = options["arms"] or (() if initscript is None else ("initscript" if initscript == "on" else "shim",))
    outcomes = _measure([bench], input_size, ("warm" if warm else "cold",), {**options, "arms": arms})
    from benchmarks.sebs_runner import reports

    path = options["out"] / "experiments.json"
    reports.write_invocations(path, outcomes)
    say(f"wrote {path}")


@sebs.command()
@click.option("--benches", metavar="NAME,…", help="Which.  [default: all that need no torch]")
@click.option("--size", "input_size", default="test", show_default=True, type=click.Choice(["test", "small", "large"]))
@click.option(
    "--experiment",
    "experiments",
    multiple=True,
    type=click.Choice(EXPERIMENTS),
    help="May be repeated.  [default: cold]",
)
@_run_options
def run(benches: str | None, input_size: str, experiments: tuple[str, ...], **options: Any) -> None:
    """Run SeBS's perf-cost experiments. Writes <bench>/<arm>/perf-cost/<type>_results.json and result.csv."""
    from benchmarks.sebs_runner.benches import USUAL

    names = benches.split(",") if benches else [bench.id for bench in USUAL]
    _measure(names, input_size, experiments or ("cold",), options, leave_out=not benches)


def _measure(
    names: list[str], input_size: str, experiments: tuple[str, ...], options: dict[str, Any], *, leave_out: bool = False
) -> list[Outcome]:
    """Run benches one after the other, write what SeBS would, print a table.

    Args: leave_out: whether a bench that cannot run here is reported and left out."""
    from benchmarks.sebs_runner.benches import find
    from benchmarks.sebs_runner.errors import NotPossible
    from benchmarks.sebs_runner.experiment import Kind
    from benchmarks.sebs_runner.runner import Runner

    # SIGTERM unwinds like Ctrl-C, so that a private worker ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcomes: list[Outcome] = []
    out: Path = options["out"]
    with _told():
        chosen = [find(name) for name in names]
        kinds = [Kind(name) for name in experiments]
        out.mkdir(parents=True, exist_ok=True)
        with progress("SeBS") as show, Runner(_options(options, kinds, show), chosen) as runner:
            choices = [_choice(name) for name in dict.fromkeys(options["arms"] or ("shim",))]
            for bench in chosen:
                times = {"repetitions": options["repetitions"], "concurrency": options["concurrency"]}
                try:
                    found = runner.run(bench, input_size, choices, kinds, **times)
                except NotPossible as error:
                    if not leave_out:
                        raise
                    say(f"{bench.id} is left out: {error.message}")
                    continue
                _write(out, found)
                outcomes += found
    from benchmarks.sebs_runner import reports

    reports.write_csv(out / "result.csv", outcomes)
    if not outcomes:
        raise Failure("no bench could run")
    rows = [_row(outcome) for outcome in outcomes]
    if options["as_json"]:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
    else:
        print_table(tuple(COLUMNS.values()), [tuple(_cell(value) for value in row) for row in rows])
    return outcomes


def _options(options: dict[str, Any], kinds: list[Any], show: Callable[[str], None]) -> Options:
    from benchmarks.sebs_runner.runner import Options
    from benchmarks.sebs_runner.suite import default_cache

    return Options(
        cache=(options["cache"] or default_cache()).resolve(),
        data=options["data"],
        first_byte_ms=options["rtt_ms"] or (PAPER_FIRST_BYTE_MS if options["paper"] else 0.0),
        bytes_per_s=PAPER_BYTES_PER_S if options["paper"] else None,
        zygotes=not options["no_zygotes"],
        snapshot=options["snapshot"],
        state_dir=options["state_dir"],
        url=options["url"],
        always_cold=all(kind.fresh for kind in kinds),
        torch=options["torch"],
        say=show,
    )


def _choice(arm: str) -> Choice:
    from benchmarks.sebs_runner.packaging import Arm
    from benchmarks.sebs_runner.runner import Choice

    storage, initscript = ARMS[arm]
    return Choice(Arm(storage), initscript)


def _write(out: Path, outcomes: list[Outcome]) -> None:
    """SeBS's files for one bench, as SeBS's own `experiment process` looks for them."""
    from benchmarks.sebs_runner import reports

    by_variant: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_variant.setdefault(outcome.variant.name.removeprefix("sebs-"), []).append(outcome)
    for name, group in by_variant.items():
        directory = out / name / "perf-cost"
        for outcome in group:
            reports.write_experiment(directory, outcome)
        reports.write_csv(directory / "result.csv", group)


def _row(outcome: Outcome) -> tuple[str | int | float, ...]:
    from benchmarks.sebs_runner.statistics import percentile

    labels, samples = outcome.variant.labels, outcome.samples
    starts, clients, reads, hidden = (
        [value / 1000 for value in values]
        for values in (
            [sample.start_us for sample in samples],
            [sample.client_us for sample in samples],
            [sample.read_us for sample in samples],
            [sample.hidden_us for sample in samples],
        )
    )
    return (
        *(labels[name] for name in ("benchmark", "size")),
        outcome.kind.value,
        *(labels[name] for name in ("arm", "initscript")),
        len(samples),
        sum(starts) / len(starts),
        *(percentile(values, share) for values in (starts, clients) for share in (0.5, 0.95)),
        percentile(reads, 0.5),
        percentile(hidden, 0.5),
        samples[0].read_bytes,
    )


def _cell(value: str | int | float) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


@contextmanager
def _told() -> Iterator[None]:
    """The runner's errors, and those of what it uses, for a person."""
    from benchmarks.sebs_runner.errors import NoSuchBench, SebsError
    from sockd.base.errors import SockdError

    try:
        yield
    except NoSuchBench as error:
        raise Failure(error.message, fix=error.fix, exit_code=NOT_FOUND) from None
    except SebsError as error:
        raise Failure(error.message, why=type(error).__name__, fix=error.fix) from None
    except SockdError as error:
        raise Failure("the bench cannot be packed", why=error.message) from None
