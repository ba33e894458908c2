"""A run: everything that benches need, brought up in order and taken away at its end, and the benches in it.

Owns: the S3, the private worker, DynamoDB and the file server of a run, and the functions it deployed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.sebs_runner.benches import DYNAMODB, FFMPEG, TORCH, URL, Bench
from benchmarks.sebs_runner.checks import Check
from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.experiment import Kind, Outcome, Variant, run
from benchmarks.sebs_runner.inputs import Input, prepare
from benchmarks.sebs_runner.invocation import Sample
from benchmarks.sebs_runner.packaging import Arm, Settings, build
from benchmarks.sebs_runner.prefetch import initscript
from benchmarks.sebs_runner.requirements import requirements
from benchmarks.sebs_runner.stores import dynamodb, file_server
from benchmarks.sebs_runner.stores.object_store import ObjectStore, open_store
from benchmarks.sebs_runner.suite import Suite, ffmpeg
from benchmarks.sebs_runner.target import Target, archive_of, private, running
from benchmarks.sebs_runner.torch_source import FIX, TorchSource
from sockd.client.console.output import Failure

NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
"""Keeps onnxruntime from holding a locked database open, which no fork can have."""
FROM_SNAPSHOT = "template"
"""The origin of a start from a snapshot, as the worker's answers name it."""
KNOWN_UP_TO = (3, 12)
"""The newest Python that the suite's pins are for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One arm with or without an initscript."""

    arm: Arm
    initscript: bool = False

    @property
    def label(self) -> str:
        return f"{self.arm.value}-initscript" if self.initscript else self.arm.value


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is like."""

    cache: Path
    data: Path | None = None
    first_byte_ms: float = 0.0
    bytes_per_s: float | None = None
    zygotes: bool = True
    """False: a private worker that starts every sandbox as a fresh interpreter."""
    snapshot: bool = False
    """Every sandbox starts from a snapshot of its bench's init, with imports and, of imgrec, the model in it."""
    state_dir: Path | None = None
    """The state directory of the running worker; None for a private one."""
    url: str | None = None
    always_cold: bool = False
    """A private worker keeps no sandbox: for runs whose experiments all want fresh ones."""
    torch: Literal["auto", "system", "index", "pypi"] = "auto"
    say: Callable[[str], None] = lambda text: None


class Runner:
    """A run that is up. A context manager."""

    def __init__(self, options: Options, benches: Sequence[Bench]) -> None:
        """Args: benches: all that `run` will be called for, which decides what a private worker needs.

        Raises: NotPossible, when torch is not where it is to be taken from."""
        self.options = options
        self._torch = TorchSource.of(options.torch) if any(TORCH in bench.needs for bench in benches) else None
        self.python = sys.version_info[:2]
        self._stack = contextlib.ExitStack()
        self._target: Target | None = None

    def __enter__(self) -> Self:
        """Raises: SuiteMissing, NotPossible."""
        with contextlib.ExitStack() as stack:
            self.suite = Suite.of(self.options.cache)
            self.store: ObjectStore = stack.enter_context(open_store(self.options.cache))
            if self.options.first_byte_ms or self.options.bytes_per_s:
                self.store.shape(first_byte_ms=self.options.first_byte_ms, bytes_per_s=self.options.bytes_per_s)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def run(
        self,
        bench: Bench,
        size: str,
        choices: Sequence[Choice],
        kinds: Sequence[Kind],
        *,
        repetitions: int,
        concurrency: int = 1,
    ) -> list[Outcome]:
        """Experiments with one bench; one outcome for each kind and choice. Raises: SebsError, cli.output.Failure."""
        say = self.options.say
        say(f"{bench.id}: preparing its input")
        inputs = prepare(bench, size, self.suite, cache=self.options.cache, data=self.options.data)
        with contextlib.ExitStack() as stack:
            env, served = self._surroundings(bench, size, inputs, stack)
            self.store.put(inputs)
            if self.options.snapshot:
                env |= {**NO_TELEMETRY, **inputs.model_variables}
            check = self._check(bench, size, inputs, served)
            variants = [
                stack.enter_context(self._deployed(bench, size, choice, env, concurrency)) for choice in choices
            ]
            outcomes = []
            for kind in kinds:
                outcomes += run(
                    kind,
                    variants,
                    inputs.event,
                    check,
                    repetitions=repetitions,
                    concurrency=concurrency,
                    say=lambda text: say(f"{bench.id}: {text}"),
                )
            return outcomes

    def package(
        self, bench: Bench, choice: Choice, env: dict[str, str], directory: Path, concurrency: int = 10
    ) -> None:
        """Write a bench's package into a new directory. Raises: SebsError."""
        cache = self.options.cache
        settings = Settings(
            arm=choice.arm,
            initscript=initscript(bench, cache) if choice.initscript else None,
            env=env,
            python=self.python,
            concurrency=max(10, concurrency),
            ffmpeg=ffmpeg(cache) if FFMPEG in bench.needs else None,
            torch=self._torch_of(bench),
            snapshot=self.options.snapshot,
        )
        build(bench, self.suite, settings, directory)

    def _torch_of(self, bench: Bench) -> TorchSource | None:
        return self._torch if TORCH in bench.needs else None

    @property
    def target(self) -> Target:
        """The worker, started when it is first needed. Raises: NotPossible, cli.output.Failure."""
        if self._target is None:
            options = self.options
            if options.state_dir is not None:
                self._target = running(options.state_dir, options.url)
                if self.store.embedded and not self._target.is_local:
                    raise NotPossible(f"functions at {self._target.url} cannot reach an S3 on this host's loopback")
            else:
                options.say("starting a private worker")
                worker = private(
                    options.cache,
                    always_cold=options.always_cold,
                    zygotes=options.zygotes,
                    environment=self._torch.worker_variables if self._torch else None,
                    sections=self._torch.worker_sections if self._torch else None,
                )
                self._target = self._stack.enter_context(worker)
        return self._target

    def _surroundings(
        self, bench: Bench, size: str, inputs: Input, stack: contextlib.ExitStack
    ) -> tuple[dict[str, str], bytes | None]:
        """What the bench's functions need beside S3, up until the stack ends: their variables, and the file for 120."""
        env, served = dict(self.store.env) if bench.storage else {}, None
        if DYNAMODB in bench.needs:
            # The keys are for boto3, which does nothing without; moto takes any.
            env |= self.store.env | stack.enter_context(dynamodb.embedded()).put(inputs)
        if URL in bench.needs:
            name = os.path.basename(inputs.event["object"]["url"])
            file = stack.enter_context(file_server.serving(size, name))
            inputs.event["object"]["url"], served = file.url, file.data
        if (torch := self._torch_of(bench)) is not None:
            env |= torch.variables
        return env, served

    def _check(self, bench: Bench, size: str, inputs: Input, served: bytes | None) -> Callable[[Sample], None]:
        def published(path: str) -> bytes:
            return self.suite.read(*bench.directory, path)

        known = self.python <= KNOWN_UP_TO
        check = Check(bench, size, inputs, self.store.take, published, served=served, known=known)

        def checked(sample: Sample) -> None:
            check(sample.result)
            if self.options.snapshot and sample.headers.get("x-sockd-origin") != FROM_SNAPSHOT:
                raise NotPossible(f"{bench.id}: a start did not come from the snapshot: {sample.headers}")
            sample.read_bytes = sum(map(inputs.bytes_of, sample.times["reads"]))

        return checked

    @contextlib.contextmanager
    def _deployed(
        self, bench: Bench, size: str, choice: Choice, env: dict[str, str], concurrency: int
    ) -> Iterator[Variant]:
        """A bench with one arm, on the worker until the context ends."""
        options = self.options
        with tempfile.TemporaryDirectory(prefix="sockd-sebs-") as scratch:
            directory = Path(scratch) / "package"
            self.package(bench, choice, env, directory, concurrency)
            archive = archive_of(directory)
        variant = Variant(
            name=f"sebs-{bench.id.replace('.', '-')}-{choice.label}",
            target=self.target,
            archive=archive,
            env=env,
            labels={
                "benchmark": bench.id,
                "size": size,
                "arm": choice.arm.value,
                "initscript": "on" if choice.initscript else "off",
                "start": start_of(options),
            },
            packages=frozenset(
                canonicalize_name(Requirement(line).name)
                for line in requirements(bench, self.suite, self.python, self._torch_of(bench))
                if start_of(options) == "zygote"
            ),
        )
        options.say(f"{bench.id}: deploying {variant.name}")
        try:
            variant.deploy()
        except Failure as failure:
            if TORCH in bench.needs:
                raise NotPossible(f"{bench.id} needs torch. {failure.message}", fix=FIX) from None
            raise
        try:
            yield variant
        finally:
            self.target.remove(variant.name)


def start_of(options: Options) -> str:
    """Where the sandboxes of a run come from, as the results name it."""
    if options.snapshot:
        return "template"
    return "zygote" if options.zygotes else "fresh"
