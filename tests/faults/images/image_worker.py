"""A worker whose functions are in images, and whose chunk store a test breaks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from tests.daemon.images.test_images import CONFIG, app, deploy, upload
from tests.daemon.running import Answer, RunningDaemon
from tests.support.images.image_layouts import Files, write_layout
from tests.support.private_worker import command_without

BUCKET = "images"
ATTEMPT_S = 3.0
CHUNKS_ONLY = f"{BUCKET}/worker/roots/"


@dataclass
class ImageWorker:
    """A daemon whose chunk store is our S3 server."""

    daemon: RunningDaemon
    server: S3Process
    s3: Client
    python: bytes
    directory: Path
    settings: str = ""
    broken: str = ""
    count: int = 0

    def start(self, state: Path, settings: str) -> RunningDaemon:
        return RunningDaemon.start(state, settings, command=command_without(self.broken))

    def new_image(self, name: str, *, data_bytes: int = 0, runs: bool = True) -> str:
        """An image with a program that answers with its version, which no other image has; its digest.

        Args: runs: False: it lacks the interpreter."""
        self.count += 1
        path = self.directory / f"layout-{self.count}"
        files = app(f"{name}-{self.count}")
        if data_bytes:
            files = Files(plain={**files.plain, "data": os.urandom(data_bytes)}, executable=files.executable)
        write_layout(path, [self.python, files] if runs else [files], CONFIG, compress=False)
        return upload(self.daemon, path)

    def deployed(self, name: str, **options: Any) -> str:
        digest = self.new_image(name, **options)
        deploy(self.daemon, name, digest, timeout_s=60, init_timeout_s=60)
        return digest

    def asked(self, name: str, event: object = None) -> Answer:
        return self.daemon.run(name, event)

    def until_unmounted(self, digest: str) -> None:
        """The next start reads the manifest."""
        self.daemon.when(lambda: not self.daemon.manage("GET", f"/images/{digest}").json["mounted"])

    def fails_typed(self, name: str, *types: str) -> str:
        answer = self.asked(name)
        assert answer.status in (500, 502, 503, 504), answer.body
        assert answer.json["errorType"] in types, answer.body
        return f"{answer.status} {answer.json['errorType']}: {answer.json['errorMessage'][:160]}"


def serves_again(worker: ImageWorker, name: str) -> None:
    """Repeat a request until it is answered, as the error asks its caller to."""
    worker.daemon.when(lambda: worker.asked(name, {}).status == 200)


STORE_ERRORS = ("Images.StoreUnavailable", "Images.Tampered", "Images.ChunkMissing", "Images.Unavailable")


def drop_sandboxes(worker: ImageWorker, name: str) -> None:
    """The next request of this function is a cold start of the same image."""
    record = worker.daemon.manage("GET", f"/functions/{name}").json
    deploy(worker.daemon, name, record["image"], timeout_s=60, init_timeout_s=60)
