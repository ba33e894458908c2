"""Numbers and settings as people read them, in a terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


def counted(count: int, noun: str) -> str:
    """A number of things. Args: noun: of one thing, with a regular plural."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """A time to come, in the largest unit that fits."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def unknown_key(key: str, known: Sequence[str], prefix: str = "") -> str:
    """That there is no such key, and which one is meant, or which there are. Args: prefix: of the key and of the known ones."""
    from difflib import get_close_matches  # not at the start of every command, which imports this module

    near = get_close_matches(key[:80], known, n=1, cutoff=0.5)
    hint = f"did you mean {prefix + near[0]!r}?" if near else f"the keys are {', '.join(sorted(known))}"
    return f"unknown key {prefix + key[:80]!r}; {hint}"


def egress(rules: Sequence[str] | None) -> str:
    """What a private network reaches."""
    return "internet" if rules is None else ", ".join(rules) or "nothing"


def network(kind: str, rules: Sequence[str] | None, *, has_private: bool = False) -> str:
    """A function's network, with what it reaches if that is its own. Args: has_private: another version's is its own."""
    if kind == "private":
        return f"private: {egress(rules)}"
    return f"{kind}; of other versions private: {egress(rules)}" if has_private else kind
