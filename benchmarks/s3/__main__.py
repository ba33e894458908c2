"""`python -m benchmarks.s3 [DIR]`: serve the directory, or a temporary one. The first line of the output is the URL.

Ends with SIGTERM, SIGINT, or with --die-on-eof when its standard input ends, which it does when the process that started
it is gone, however it went.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.s3.admin import Admin
from benchmarks.s3.connection import ServerContext
from benchmarks.s3.faults import Faults
from benchmarks.s3.operations.router import Router
from benchmarks.s3.request_log import RequestLog
from benchmarks.s3.server import Server
from benchmarks.s3.store import DirectoryInUse, Store
from sockd.base.sigv4.canonical import Credentials
from sockd.base.sigv4.verifier import Verifier


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal. Returns the exit status."""
    arguments = parse(argv)
    credentials = Credentials(arguments.access_key, arguments.secret_key, arguments.session_token)
    with contextlib.ExitStack() as stack:
        log = RequestLog(stack.enter_context(open(arguments.log, "a")) if arguments.log else None)
        faults = Faults()
        # Made and removed here, not by our parent: with --die-on-eof we outlive that process if it is killed.
        directory = arguments.directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="sockd-s3-"))
        try:
            store = Store.open(Path(directory))
        except (OSError, DirectoryInUse) as error:
            print(f"benchmarks.s3: {error}", file=sys.stderr)
            return 1
        stack.callback(store.close)
        context = ServerContext(
            store=store,
            router=Router(),
            verifier=Verifier(credentials, service="s3"),
            faults=faults,
            log=log,
            admin=Admin(arguments.admin_token, faults, log),
            stopping=threading.Event(),
        )
        try:
            server = Server(context, (arguments.host, arguments.port))
        except OSError as error:
            print(f"benchmarks.s3: {arguments.host}:{arguments.port}: {error}", file=sys.stderr)
            return 1
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        if arguments.die_on_eof:
            threading.Thread(target=stop_at_eof, args=(server,), daemon=True).start()
        print(server.url, flush=True)
        if not arguments.secret_key_given:
            print(f"access key {credentials.access_key}, secret key {credentials.secret_key}", flush=True)
        server.serve()
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sockd s3", description="A small S3 for development and tests.")
    parser.add_argument(
        "directory", type=Path, nargs="?", metavar="DIR", help="where objects are kept; without, a temporary one"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free one")
    parser.add_argument("--access-key", default="sockd", metavar="KEY", help="who may sign requests (%(default)s)")
    parser.add_argument("--secret-key", metavar="SECRET", help="else SOCKD_S3_SECRET_KEY, else made up and printed")
    parser.add_argument("--session-token", metavar="TOKEN", help="what signed requests must carry besides, if given")
    parser.add_argument(
        "--admin-token", metavar="TOKEN", help="opens /-/ (else SOCKD_S3_ADMIN_TOKEN, else it stays shut)"
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="append a line of JSON for every request")
    parser.add_argument("--die-on-eof", action="store_true", help="end when standard input ends")
    arguments = parser.parse_args(argv)
    # Other users see command lines; the environment they do not.
    arguments.secret_key = arguments.secret_key or os.environ.get("SOCKD_S3_SECRET_KEY")
    arguments.secret_key_given = arguments.secret_key is not None
    arguments.secret_key = arguments.secret_key or secrets.token_urlsafe(24)
    arguments.admin_token = arguments.admin_token or os.environ.get("SOCKD_S3_ADMIN_TOKEN", "")
    return arguments


def stop_at_eof(server: Server) -> None:
    while os.read(0, 4096):
        pass
    server.stop()


if __name__ == "__main__":
    sys.exit(main())
