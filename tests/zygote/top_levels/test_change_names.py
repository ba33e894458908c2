"""What changes of own code are called in reasons."""

from __future__ import annotations

import pytest

from sockd_zygote.top_levels.change_names import MOST_SHOWN, in_words


def test_the_first_changes_are_named_and_the_others_counted() -> None:
    assert in_words([]) == "" and in_words(["b", "a"]) == "a, b"
    assert in_words(["d", "c", "b", "a", "e"]) == f"a, b, c and {5 - MOST_SHOWN} more"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["loggers['root']", "logging._at_fork_reinit_lock_weakset"], "handlers of logging, the root logger"),
        (["loggers['urllib3']"], "the logger 'urllib3'"),
        (["_warnings.filters", "warnings.filters"], "warnings.filters"),
        (["random state", "random._inst"], "the state of random"),
        (["contextvars.Context.request"], "the context variable request"),
        (["signal handlers['10']"], "the handler of signal '10'"),
        (["jinja2.lexer._lexer_cache"], "the state of jinja2.lexer (_lexer_cache)"),
        (["subclasses of base._Meta"], "subclasses of base._Meta"),
        (["os.environ['A']", "yaml.Dumper"], "os.environ['A'], yaml.Dumper"),
    ],
)
def test_internals_have_the_names_that_people_know(changes: list[str], words: str) -> None:
    assert in_words(changes) == words
