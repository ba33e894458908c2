"""One version of a function, ready to run: its packages and program, made from a record of the registry.

Versions have AWS's names: $LATEST for the last deploy, a number for a published one.

Owns the program's code mount. A version is immutable; a deploy creates another and releases this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sockd.base.call_signature import key_id, source_tag
from sockd.base.errors import MethodNotAllowed, NoWebSockets, OtherCode, QueryNotTaken
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import FunctionInfo
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.modules.initscripts import Initscript
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.version_program import About, UsedImage, program_of_code, program_of_image
from sockd.isolation.roots.program import ImageInUse, Program
from sockd.isolation.sandbox.exchange import Call
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.zygotes.top_levels.soundness import ImportView

EVENT_METHODS = ("GET", "POST")
"""Default HTTP methods of a function of events; a web app accepts all."""
ANY_METHOD = "*"


class Version:
    """`id` names it; `number` is its published number or $LATEST; `program` is what its sandboxes become; `keys` are its
    distributions; `view` is what its imports see."""

    def __init__(
        self,
        record: FunctionRecord,
        config: FunctionConfig,
        closure: Closure,
        program: Program,
        view: ImportView,
        number: str,
        image: ImageInUse | None = None,
    ) -> None:
        self.record = record
        self.image = image
        """That its sandboxes read, whether they are programs or handlers."""
        self.config = config
        self.closure = closure
        self.keys = closure.keys
        self.view = view
        self.number = number
        self.program = program
        self.initscript: Initscript | None = None
        if record.initscript:
            self.initscript = Initscript.of(record.name, record.initscript, config, program.code)
        self.id = f"{record.name}@{(record.image.removeprefix('sha256:') or record.digest)[:12]}"

    @classmethod
    def load(
        cls,
        record: FunctionRecord,
        code: Path,
        packages: InstallCache,
        *,
        number: str = LATEST,
        max_answer_bytes: int,
        image: UsedImage | None = None,
    ) -> Version:
        """The version that a record describes; its code is published and its packages are installed.

        Args: image: that it runs in, if it has one."""
        config = record.settings
        about = About(record, config, number, max_answer_bytes)
        if image is not None:
            return cls(record, config, Closure(), *program_of_image(about, image), number, image.use)
        closure = Closure.from_json(record.closure)
        return cls(record, config, closure, *program_of_code(about, closure, packages, code), number)

    def call(self, request: InvokeRequest, is_app: bool) -> Call:
        """The request to a sandbox of this version. Raises: MethodNotAllowed, QueryNotTaken, NoWebSockets."""
        if request.method != ANY_METHOD:
            self.check_method(request.method, is_app=is_app)
        details, payload = request.details, request.payload
        if is_app and request.as_http is not None:
            http, payload = request.as_http()
            if "upgrade" in http:
                raise NoWebSockets
            details = {**(details or {}), "http": http}
        elif request.query:
            raise QueryNotTaken(request.name)
        return Call(request.id, payload, msgspec.json.encode(details) if details else b"")

    def check_code(self, expected: Sequence[str]) -> None:
        """Raises: OtherCode, unless this version's code or its source is among those that the caller names."""
        if self.record.digest in expected:
            return
        source = self.config.source
        if not source or source_tag(source) not in expected:
            raise OtherCode(self.record.name)

    def check_method(self, method: str, *, is_app: bool) -> None:
        """Whether an HTTP method is accepted. Raises: MethodNotAllowed."""
        methods = self.config.methods
        if methods is None:
            if method not in EVENT_METHODS and not is_app:
                raise MethodNotAllowed(method, ", ".join(EVENT_METHODS))
        elif method not in methods and ANY_METHOD not in methods:
            raise MethodNotAllowed(method, ", ".join(methods))

    def info(self) -> FunctionInfo:
        """As people see it."""
        return info_of(self.record, self.config, self.closure)

    def close(self) -> None:
        """Release the code; running sandboxes keep it."""
        self.program.close()


def info_of(record: FunctionRecord, config: FunctionConfig, closure: Closure) -> FunctionInfo:
    """A deploy as people see it, whether it can run or not."""
    return FunctionInfo(
        name=record.name,
        version=record.image.removeprefix("sha256:") or record.digest,
        version_number=record.version,
        handler=record.handler,
        memory_mb=config.memory_mb,
        timeout_s=config.timeout_s,
        concurrency=config.concurrency,
        network=config.network,
        egress=config.egress,
        packages=[f"{each.name}=={each.version}" for each in closure.distributions],
        storage=config.storage,
        zygote=config.zygote,
        python=config.python,
        initscript=record.initscript,
        image=config.image or "",
        source=config.source,
        run=config.run,
        call_key_id=key_id(config.call_key) if config.call_key else "",
        code_bytes=record.code_bytes,
        created_at=record.created_at,
        updated_at=record.published_at,
    )
