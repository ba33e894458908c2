"""What the paths of requests may be.

Owns nothing.
"""

from __future__ import annotations

import re

from sockd.base.errors import SockdError

FUNCTION_NAME = re.compile(rb"[A-Za-z0-9_-]{1,64}")
"""Names of functions (AWS Lambda's rule), which need no escaping."""


class NoSuchPage(SockdError):
    """The path does not exist on this port."""

    status = 404
    error_type = "ResourceNotFoundException"
