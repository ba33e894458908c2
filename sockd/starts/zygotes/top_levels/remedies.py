"""What an author may change so that more of a function's imports is shared, by what its own code does before them. Pure."""

from __future__ import annotations

from sockd.starts.zygotes.top_levels.top_level import TopLevel

REMEDIES = {
    "os.environ[": "set it in env of sockd.toml, or import {name} before it",
    "sys.path": "import {name} before it, or have what is added there as a requirement",
    "what it imports from one start to another": "import {name} without a condition, before that line",
    "what it does from one start to another": "import {name} before that line",
    "what it passes on from one start to another": "import {name} before that line",
    "what it may do next, by an answer of the network,": "import {name} before that request",
    "what it may do next, by an answer of a program": "import {name} before that program is started",
    "what it calls of C libraries": "import {name} before that call",
    "what is loaded, as a thread": "import {name} before the thread starts",
    "what is loaded, as its import": "import {name} before it",
    "subclasses": "import {name} before the class is defined",
}
"""By the beginning of `Step.before`: what to do instead, for the import that comes too late."""
OTHERWISE = "import {name} before that"


def remedy(top: TopLevel) -> str:
    """Return what to change, in words; empty: own code changes nothing before an import."""
    if not top.change:
        return ""
    before = top.steps[top.first_changed].before
    words = next((words for begin, words in REMEDIES.items() if before.startswith(begin)), OTHERWISE)
    return words.format(name=top.first_late)
