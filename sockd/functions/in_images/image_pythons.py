"""The Pythons of container images: asked once, at a deploy, what they are. Functions with a handler are served by Zygotes of
their image's Python, all other functions of images are programs.

The image's Python itself answers, as a program in a sandbox without network (`isolation/roots/python_probe`), and compiles our
packages there. Its answer is foreign: it is checked, and decides about the functions of this image alone. Owns what is kept of
the answers, next to the image's files, and the copies of our packages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.config import MB
from sockd.base.errors import BadFunctionConfig, HostFailed, ImagePythonFailed, SockdError
from sockd.base.notes import Progress
from sockd.functions.code.entrypoint import parse_handler
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.code.setting_checks import EXEC_WRAPPER
from sockd.functions.in_images import image_programs, python_failures
from sockd.functions.in_images.image_probe import probing
from sockd.functions.in_images.image_programs import AWS_ENTRYPOINT, RUNTIME_CLIENT
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore
from sockd.isolation.roots import base as bases
from sockd.isolation.roots import python_probe
from sockd.isolation.roots.host_pythons import copy_package
from sockd.isolation.roots.image_python import SCHEME, Facts, ImagePython
from sockd.isolation.roots.image_tree import ImageTree
from sockd.isolation.roots.interpreter import Interpreter
from sockd.isolation.roots.program import Limits, Lineage
from sockd.isolation.sandbox.foreign_farms import NoInterpreter
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.starts.sources import Starts
from sockd.starts.zygotes.zygote_tree import ZygoteTree
from sockd_zygote import rehearsal

AWS_PYTHON = "/var/lang/bin/python3"
AWS_LAYERS = ("/opt/python/lib/python{}/site-packages", "/opt/python")
AWS_RUNTIME = "/var/runtime"
"""What the bootstrap of those images puts behind the code on sys.path: layers' packages, but not if there is a PYTHONPATH, and
itself."""
PLAIN_OPTIONS = frozenset(("-u", "-B"))
"""Options of an ENTRYPOINT's Python that make no difference to a handler."""
CACHE_TAG = re.compile(r"[a-z0-9_-]{1,40}")
PROBE_S = 60.0
PROBE_LIMITS = Limits(256 * MB, 64, 1.0, 16 * MB, 1024, network="none")
ANSWER_BYTES = 6 * MB
OUR_MODULES_BYTES = 4 * MB


class _Answer(msgspec.Struct):
    facts: Facts
    compiled: dict[str, str]


class Known(msgspec.Struct, frozen=True):
    """What is kept of one answer."""

    python: ImagePython
    ours: str = ""
    """Digest of our modules that were compiled."""
    compiled: dict[str, str] = {}
    """Their bytecode, by the path that they have in a sandbox; base64."""


class ImagePythons:
    """The Pythons of the images of one worker. Asked by deploys (`find`), versions (`known`) and farms (`open`)."""

    def __init__(
        self, images: ImageStore, starts: Starts, tree: ZygoteTree, budget: MemoryBudget, host: bases.Base, path: Path
    ) -> None:
        """Args: host: has what is the host's of an image's root; path: a directory for copies and mounts."""
        self._images = images
        self._starts = starts
        self._tree = tree
        self._budget = budget
        self._host = host
        self._path = path
        shutil.rmtree(path, ignore_errors=True)  # of a worker that was killed
        path.mkdir(parents=True)
        self._found: dict[str, tuple[ImageRecord, Known]] = {}
        self._asking = asyncio.Lock()
        images.removed.append(self._forget)

    async def find(self, record: ImageRecord, config: FunctionConfig, progress: Progress) -> ImagePython:
        """What serves a function of an image: Zygotes, or with a `reason` none, as programs go without.

        Raises: ImagePythonFailed, and what else of the worker's made that it is not known now: nothing of it is kept."""
        wanted, command = wanted_python(record, config)
        if wanted.reason:
            return msgspec.structs.replace(wanted, facts=await self._facts_of_program(record, config, progress))
        known = await self._answered(record, wanted, command, progress)
        if not known.python.reason:
            failure = await self._tree.lineages.why_no_root(Lineage(config.network, wanted.id))
            if failure is not None:
                if not python_failures.is_of_image(failure):
                    raise python_failures.of_worker(failure) from failure
                known = Known(msgspec.structs.replace(known.python, reason=python_failures.words(failure)))
                await in_thread(self._write, record, known)
                self._found[wanted.id] = record, known
        return known.python

    async def _facts_of_program(self, record: ImageRecord, config: FunctionConfig, progress: Progress) -> Facts | None:
        """Return the facts of the Python of a handler that Zygotes are not to serve, or None if they do not matter, or it
        did not answer."""
        as_handler = msgspec.structs.replace(config, zygote=FunctionConfig().zygote, writable_root=False)
        wanted, command = wanted_python(record, as_handler)
        if wanted.reason or not image_programs.needs_client(config, record.config):
            return None
        try:
            return (await self._answered(record, wanted, command, progress)).python.facts
        except ImagePythonFailed:
            return None

    async def _answered(
        self, record: ImageRecord, wanted: ImagePython, command: list[str], progress: Progress
    ) -> Known:
        """What an image's Python has said, now or before."""
        async with self._asking:
            known = self._read(record, wanted)
            if known is None or known.python.reason:  # another sockd may serve it
                progress("asking the image's Python what it is")
                known = await self._asked(record, wanted, command)
                await in_thread(self._write, record, known)
            self._found[wanted.id] = record, known
        return known

    def known(self, record: ImageRecord, config: FunctionConfig) -> ImagePython:
        """As `find`, of a deployed function. Blocks briefly. Raises: HostFailed."""
        wanted, _ = wanted_python(record, config)
        if wanted.reason:
            return wanted
        known = self._read(record, wanted)
        if known is None:
            return msgspec.structs.replace(wanted, reason="its Python was not asked; deploy it again")
        self._found[wanted.id] = record, known
        return known.python

    def is_asked(self, record: ImageRecord, config: FunctionConfig) -> bool:
        """Whether `known` knows what a deploy has found; not so of an image that was lost and imported again. Blocks briefly.
        Raises: HostFailed."""
        wanted, _ = wanted_python(record, config)
        return bool(wanted.reason) or self._read(record, wanted) is not None

    async def open(self, interpreter: str) -> tuple[Interpreter, ImageTree]:
        """The interpreter of a lineage, and a tree for its farm, the caller's. Raises: NoInterpreter, SockdError, OSError."""
        if interpreter not in self._found:
            raise NoInterpreter("no function of this worker uses the image's Python")
        record, known = self._found[interpreter]
        if known.python.facts is None or known.python.reason:
            raise NoInterpreter(known.python.reason or "the image's Python was not asked")
        image = await self._images.mounts.mounted(record)
        image.hold()
        directory = Path(tempfile.mkdtemp(dir=self._path))
        try:
            ours = await in_thread(put_ours, directory, known)
            image.check()
            return known.python.interpreter(), ImageTree.attach(directory, image, self._host, ours)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        finally:
            image.let_go()

    def _forget(self, record: ImageRecord) -> None:
        self._found = {id_: found for id_, found in self._found.items() if found[0].digest != record.digest}

    async def _asked(self, record: ImageRecord, wanted: ImagePython, command: list[str]) -> Known:
        modules = await in_thread(our_modules)
        try:
            answer = await self._probe(record, wanted, command, modules)
        except (SockdError, OSError) as error:
            if not python_failures.is_of_image(error):
                raise python_failures.of_worker(error) from error
            reason = f"its Python did not answer: {python_failures.words(error)}"
            return Known(msgspec.structs.replace(wanted, reason=reason))
        reason = answer.facts.why_not()
        if not reason and not CACHE_TAG.fullmatch(answer.facts.cache_tag):
            reason = "its Python has no cache tag"
        python = msgspec.structs.replace(wanted, facts=answer.facts, reason=reason)
        return Known(python, digest_of(modules), answer.compiled)

    async def _probe(
        self, record: ImageRecord, wanted: ImagePython, command: list[str], modules: dict[str, str]
    ) -> _Answer:
        """Run the probe. Raises: SockdError, OSError."""
        variables = {**wanted.variables, "_HANDLER": "probe"}
        source = await in_thread(Path(str(python_probe.__file__)).read_text)
        image = self._images.use(record.digest)
        words = [*command, "-c", source]
        async with probing(
            *(self._starts, self._budget, image, words, wanted.directory, variables, PROBE_LIMITS),
            timeout_s=PROBE_S,
            answer_bytes=ANSWER_BYTES,
        ) as ask:
            first = first_directories(command, wanted.variables)
            body = await ask(msgspec.json.encode({"modules": modules, "first": first}))
        try:
            return msgspec.json.decode(body, type=_Answer)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise python_failures.BadAnswer(f"its answer is not usable: {error}") from None

    def _file(self, record: ImageRecord, python: ImagePython) -> Path:
        return self._images.directories.of(record) / f"python-{python.id.rpartition('.')[2]}.json"

    def _read(self, record: ImageRecord, python: ImagePython) -> Known | None:
        """None: nothing is kept. Raises: HostFailed."""
        try:
            return msgspec.json.decode(self._file(record, python).read_bytes(), type=Known)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        except OSError as error:  # out of descriptors: it is kept, and the function no program
            raise HostFailed(os.strerror(error.errno or 0)) from error

    def _write(self, record: ImageRecord, known: Known) -> None:
        file = self._file(record, known.python)
        draft = file.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(known))
        draft.replace(file)


def wanted_python(record: ImageRecord, config: FunctionConfig) -> tuple[ImagePython, list[str]]:
    """What a function would be served by, its Python not asked yet, and the words that start that Python. Pure."""
    oci = record.config
    directory = image_programs.directory(config, oci)
    variables = image_programs.variables(config, oci, {})
    task_root = (
        variables["LAMBDA_TASK_ROOT"] if any(each.startswith("LAMBDA_TASK_ROOT=") for each in oci.env) else directory
    )
    command, reason = python_command(config, record)
    first = first_directories(command, variables)
    parts = record.digest, command, directory, task_root, sorted(variables.items()), *first
    number = hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()
    python = ImagePython(
        id=f"{SCHEME}:{record.hex[:12]}.{number[:32]}",
        directory=directory,
        task_root=task_root,
        variables=variables,
        reason=reason,
    )
    return python, command


UNSERVED = ', and gets the handler as _HANDLER; with runtime = "python" in sockd.toml, the image\'s Python serves it'


def python_command(config: FunctionConfig, record: ImageRecord) -> tuple[list[str], str]:
    """POLICY: the words that start the Python of a function's handler, or why it has none that Zygotes could be."""
    words = image_programs.command(config, record.config)
    if config.zygote == "none":
        return [], 'zygote = "none"'
    if config.app_port is not None or config.writable_root or config.runtime == "provided":
        return [], f"it is a program ({program_because(config)})"
    if EXEC_WRAPPER in config.environment:
        return [], f"{EXEC_WRAPPER} starts its runtime"
    try:
        parse_handler(image_programs.handler(config, record.config))
    except BadFunctionConfig:
        return [], f"handler = {config.handler!r} is not module.attr" if config.handler else "it names no handler"
    if words[0] == AWS_ENTRYPOINT:
        return [AWS_PYTHON], ""
    if RUNTIME_CLIENT in words and words[words.index(RUNTIME_CLIENT) - 1] == "-m":
        before = words[: words.index(RUNTIME_CLIENT) - 1]
        if before and PLAIN_OPTIONS.issuperset(before[1:]):
            return before, ""
        return [], f"its ENTRYPOINT gives Python options: {' '.join(before[1:])}"
    return [], f"its ENTRYPOINT is not python -m {RUNTIME_CLIENT}{'' if config.handler is None else UNSERVED}"


def program_because(config: FunctionConfig) -> str:
    """Which setting makes a function a program."""
    if config.app_port is not None:
        return "app_port"
    if config.service is not None:
        return 'kind = "service"'
    return "writable_root" if config.writable_root else 'runtime = "provided"'


def first_directories(command: list[str], variables: dict[str, str]) -> list[str]:
    """What an image's runtime puts on sys.path, the Python's version left open. Pure."""
    if command != [AWS_PYTHON]:
        return []
    return [*(() if "PYTHONPATH" in variables else AWS_LAYERS), AWS_RUNTIME]


def our_modules() -> dict[str, str]:
    """The sources of our packages that run in sandboxes, by their paths there. Blocks."""
    modules = {}
    for source, target in zip(bases.our_packages(), (bases.ZYGOTE, bases.STORAGE), strict=True):
        root = source.resolve()
        for file in sorted(root.rglob("*.py")):
            modules[f"/{target}/{file.relative_to(root)}"] = file.read_text()
    name = f"/{bases.ZYGOTE}/{Path(rehearsal.PREPARED).name}/{rehearsal.NAME}.py"
    return {**modules, name: rehearsal.SOURCE}


def digest_of(modules: dict[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(modules)).hexdigest()


def put_ours(directory: Path, known: Known) -> tuple[Path, Path]:
    """Copies of our packages, with the bytecode that an image's Python has made of them. Blocks. Raises: OSError."""
    assert known.python.facts is not None
    modules = our_modules()
    copies = directory / "sockd_zygote", directory / "sockd_storage_lib"
    for source, copy in zip(bases.our_packages(), copies, strict=True):
        copy_package(source, copy)
    if digest_of(modules) != known.ours:
        return copies  # of another version of ours: its Python compiles them at each start
    for target, copy in zip((bases.ZYGOTE, bases.STORAGE), copies, strict=True):
        for path in (path for path in modules if path.startswith(f"/{target}/")):
            put_bytecode(copy / path.removeprefix(f"/{target}/"), known.compiled.get(path, ""), known.python.facts)
    return copies


def put_bytecode(module: Path, text: str, facts: Facts) -> None:
    try:
        code = base64.b64decode(text, validate=True)
    except binascii.Error:
        return
    if code:
        cached = module.parent / "__pycache__" / f"{module.stem}.{facts.cache_tag}.pyc"
        cached.parent.mkdir(exist_ok=True)
        cached.write_bytes(code)
