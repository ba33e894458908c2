"""What serving an image's program imports, all of it, for the Zygote that sandboxes of images are forked from.

In the root of an image there is no file of ours and none of our interpreter's library, or files of another version. So what a
sandbox of one may import at any time is imported here, and functions that import at their first call are called once.
"""

from __future__ import annotations

import ast  # noqa: F401  (traceback, which marks the part of a line that failed)
import email.parser
import encodings.ascii
import encodings.idna
import encodings.latin_1  # noqa: F401
import http.client
import http.server
import io
import json
import queue  # noqa: F401
import selectors  # noqa: F401
import socket  # noqa: F401
import socketserver  # noqa: F401
import subprocess  # noqa: F401
import threading
import traceback  # noqa: F401

from sockd_zygote.handlers import apps  # noqa: F401
from sockd_zygote.handlers.programs import image_program, runtime_api, service, web_server  # noqa: F401
from sockd_zygote.messages import details, errors, log_layout, outlet  # noqa: F401


def rehearse() -> None:
    """What imports when it is first called."""
    "localhost".encode("idna")
    http.client.parse_headers(io.BytesIO(b"Content-Type: text/plain\r\n\r\n"))
    email.parser.Parser().parsestr("A: b\n\n")
    json.dumps(json.loads("[1, 2.5]"))
    http.server.BaseHTTPRequestHandler.responses.get(200)
    threading.current_thread()
    try:
        raise ModuleNotFoundError("rehearsal") from OSError("rehearsal")
    except ModuleNotFoundError as error:
        errors.describe(error)


rehearse()
