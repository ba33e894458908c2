"""`sockd initscript`: record, build, check and run initscripts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sockd.base.spelling import size
from sockd.client.cli.calls.invoke import payload_of
from sockd.client.cli.written_file import WrittenFile
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.inputs import PAYLOAD_BYTES, read_file
from sockd.client.console.output import FAILED, USAGE, Failure, echo, echo_lines, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table

if TYPE_CHECKING:
    from sockd_initscripts.engine.rehearsal import Received, Rehearsal
    from sockd_initscripts.report import RpcRecord

WISHED_BYTES = 20_000
LANGUAGES = ("c", "rust")
_data_option = click.option("-d", "--data", default="{}", metavar="JSON|@FILE|-", help="The event.  [default: {}]")
_module_argument = click.argument("module", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def initscript() -> None:
    """Build, check, run and record initscripts.

    An initscript is a small WebAssembly module that fetches a function's inputs while its sandbox starts."""


@initscript.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=WrittenFile(), help="[default: SOURCE with .wasm]")
@json_option
def build(source: Path, output: Path | None, as_json: bool) -> None:
    """Compile SOURCE (.c, .zig, .rs, or the directory of a Rust crate) to a module.

    C and Zig need `pip install ziglang`, or C clang with wasm-ld; Rust needs its target wasm32-unknown-unknown."""
    from sockd_initscripts.authoring import toolchain

    with _converted_errors():
        made = toolchain.build(source, output or source.with_suffix(".wasm"))
    if made.warnings:
        say(made.warnings)
    if as_json:
        fields = {"path": str(made.path), "size_bytes": made.size_bytes, "toolchain": made.toolchain}
        print_json({**fields, "took_s": round(made.took_s, 3)})
        return
    echo(f"{made.path}: {made.size_bytes:,} bytes ({made.toolchain}, {made.took_s:.2f} s)")
    if made.size_bytes > WISHED_BYTES:
        say(f"larger than {WISHED_BYTES:,} bytes: keep scripts small, each start loads one")


@initscript.command()
@_module_argument
@json_option
def check(module: Path, as_json: bool) -> None:
    """Check whether MODULE can run, and print its imports, size and start time.

    Runs it with an empty event and without network."""
    import msgspec

    from sockd_initscripts.engine import rehearsal

    with _converted_errors():
        checked = rehearsal.check(read_file(module, PAYLOAD_BYTES))
    if as_json:
        print_json(msgspec.to_builtins(checked))
        return
    info = checked.module
    rows = [
        ("size", f"{info.size_bytes:,} bytes"),
        ("memory", f"{info.memory_pages} page{'' if info.memory_pages == 1 else 's'} of 64 KB at the start"),
        ("imports", ", ".join(info.imports) or "nothing"),
        ("compiled", f"{size(checked.compiled_bytes)} in {checked.compile_ms:.1f} ms"),
        ("start", f"{checked.start_ms:.2f} ms from an invocation to the first instruction"),
        ("empty event", checked.outcome),
    ]
    print_table(("", ""), rows)


@initscript.command()
@_module_argument
@_data_option
@click.option("--env", "pairs", multiple=True, metavar="K=V", help="A variable of the function's environment.")
@click.option("--endpoints", metavar="HOST[:PORT],...", help="Addresses that it may connect to; '': none.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(0.001, 900), default=10.0, show_default=True)
@json_option
def run(
    module: Path, data: str, pairs: tuple[str, ...], endpoints: str | None, deadline_s: float, as_json: bool
) -> None:
    """Run MODULE alone against the real endpoints, and print its requests and the data that a function would get.

    Needs neither a worker nor root. The script gets the AWS_ variables of this environment, and those of --env."""
    import msgspec

    from sockd_initscripts.engine import rehearsal
    from sockd_initscripts.limits import Budget

    allowed = None if endpoints is None else [entry for entry in endpoints.split(",") if entry]
    with _converted_errors():
        budget = Budget(deadline_s=deadline_s, endpoints=allowed)
        ran = rehearsal.rehearse(
            read_file(module, PAYLOAD_BYTES), payload_of(data), env=_environment(pairs), budget=budget
        )
    if as_json:
        print_json(msgspec.to_builtins(ran))
    else:
        _print_transcript(ran)
    if (ran.report.outcome, ran.report.status) != ("exit", 0):
        sys.exit(FAILED)


@initscript.command()
@click.argument("name")
@_data_option
@click.option("-o", "--output", type=WrittenFile(), help="[default: NAME.c or NAME.rs]")
@click.option("--language", type=click.Choice(LANGUAGES), default="c", show_default=True)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@state_dir_option
@json_option
def record(
    name: str, data: str, output: Path | None, language: str, force: bool, state_dir: Path, as_json: bool
) -> None:
    """Run the function NAME once and write the source of an initscript that fetches what it read.

    Read the source, correct wrong guesses, and build it."""
    from sockd_initscripts.authoring import recorder

    output = output or Path(f"{name}{recorder.SUFFIXES[language]}")
    if output.exists() and not force:
        raise Failure(f"{output} already exists", fix=f"sockd initscript record {name} --force", exit_code=USAGE)
    payload = payload_of(data)
    try:
        event = json.loads(payload)
    except ValueError as error:
        raise Failure("the event is not JSON", why=str(error), exit_code=USAGE) from None
    recorded = Management(state_dir).call("POST", "functions", name, "record", body=payload)
    reads = [read["rpc"] for read in recorded["reads"]]
    if not reads:
        why = "sockd records reads of its storage library, and this start did not use it"
        raise Failure(f"{name} read nothing", why=why, fix='storage = "sockd" in its sockd.toml, then sockd deploy')
    output.write_text(recorder.write(reads, event, name=name, language=language))
    if as_json:
        print_json({"path": str(output), "language": language, "reads": reads, "answer": recorded["answer"]})
        return
    echo(f"{output}: {len(reads)} read{'' if len(reads) == 1 else 's'}")
    suggest("read it, then", f"sockd initscript build {output}")


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Convert errors. Raises: Failure."""
    from sockd_initscripts.authoring.toolchain import BuildFailed, NoToolchain
    from sockd_initscripts.errors import BadModule

    try:
        yield
    except NoToolchain as error:
        raise Failure("no toolchain was found", why=error.message, fix=error.fix) from None
    except BuildFailed as error:
        if error.output:
            say(error.output)
        raise Failure(error.message) from None
    except BadModule as error:
        raise Failure("the module cannot run", why=error.reason) from None
    except ValueError as error:
        raise Failure(str(error), exit_code=USAGE) from None
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    given = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Failure(f"{pair!r} is not K=V", exit_code=USAGE)
        given[key] = value
    return {**{key: value for key, value in os.environ.items() if key.startswith("AWS_")}, **given}


def _print_transcript(ran: Rehearsal) -> None:
    report = ran.report
    begin_ns = report.arrived_ns
    headings = ("rpc", "what", "status", "asked ms", "sent", "first byte", "done", "bytes", "connection")
    if report.rpcs:
        print_table(headings, [_rpc_row(rpc, begin_ns) for rpc in report.rpcs])
        echo()
    else:
        say("it fetched nothing: the event is incomplete, or --endpoints forbids its endpoints")
    if ran.received:
        rows = [_received_row(one, begin_ns) for one in ran.received]
        print_table(("message", "the function would get", "status", "at ms", "bytes"), rows)
        echo()
    echo_lines(f"log: {line}" for line in report.log.splitlines())
    how = report.outcome if report.outcome != "exit" else f"exit {report.status}"
    how += f" {report.status}" if report.outcome == "abort" else ""
    took_ms = (report.ended_ns - report.arrived_ns) / 1e6
    started_ms = (report.started_ns - report.arrived_ns) / 1e6
    echo(
        f"{how}{': ' * bool(report.message)}{report.message}; started after {started_ms:.2f} ms, took {took_ms:.1f} ms"
    )


def _rpc_row(rpc: RpcRecord, begin_ns: int) -> tuple[str, ...]:
    times = (rpc.queued_ns, rpc.sent_ns, rpc.first_byte_ns, rpc.done_ns)
    how = f"{rpc.connection}{f', {rpc.parts} parts' if rpc.parts > 1 else ''}"
    return (
        _number(rpc.id),
        _words(rpc.descriptor),
        _status(rpc),
        *(_ms(at, begin_ns) for at in times),
        f"{rpc.bytes:,}",
        how,
    )


def _status(rpc: RpcRecord) -> str:
    return f"{rpc.status}" if rpc.status >= 0 else f"{rpc.reason or os.strerror(-rpc.status)}"


def _received_row(one: Received, begin_ns: int) -> tuple[str, ...]:
    what = _words(one.rpc) if one.rpc else "bytes made by the script"
    status = f"{one.status}" if one.op == "message" else one.op
    return (_number(one.id), what, status, _ms(one.received_ns, begin_ns), f"{one.bytes:,}")


def _number(number: int) -> str:
    """Hashes and numbers far off any count, shorter."""
    return str(number) if number < 1 << 32 else f"0x{number:x}"


def _words(rpc: Sequence[str]) -> str:
    return " ".join(word if word.isprintable() and " " not in word and word else json.dumps(word) for word in rpc)


def _ms(at_ns: int, begin_ns: int) -> str:
    return f"{(at_ns - begin_ns) / 1e6:.2f}" if at_ns else "-"
