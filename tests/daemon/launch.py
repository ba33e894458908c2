"""`python -m tests.daemon.launch CONFIG STATE`: what `sockd up` does, on a free port."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import uvloop

from sockd import daemon
from sockd.config import Config
from sockd.errors import SockdError


def main(file: str, state: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)
    config = Config.load(Path(file), state_dir=state, listen="127.0.0.1:0")
    try:
        return uvloop.run(daemon.serve(config))
    except SockdError as error:
        print(error.message, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
