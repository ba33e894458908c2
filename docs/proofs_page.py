"""The table of proofs beside SPECIFICATION.md, as a page of docs/reference. Owns nothing.

The proofs are those of tests/spec/proofs.toml, the titles those of SPECIFICATION.md. docs/reference.py writes the page.
"""

from __future__ import annotations

from tests.spec.promises import Promise, Proof, promises, proofs

HEAD = """\
# Proofs

What proves each promise of [the specification](../../SPECIFICATION.md). A *test* is run by `make test`, a *case* by
`sockd selftest`, an aim or a row of *bench* is measured by `sockd bench NAME`, and *performance* is a number of a recorded run in
[Performance](../performance.md). Limits are proven by tests; times are proven by benchmarks and recorded runs, because a busy
machine must not fail a test. The aim of a benchmark may be stricter than its promise.

| promise | proof |
|---|---|
"""


def page() -> str:
    """The page as Markdown: one row for each promise, in the order of their numbers."""
    proven = proofs()
    return HEAD + "".join(_row(promise, proven.get(promise.number, Proof())) for promise in promises())


def _row(promise: Promise, proof: Proof) -> str:
    cells = [f"**Unproven:** {proof.unproven}"] if proof.unproven else []
    cells += [f"`{evidence}`" for evidence in proof.evidence]
    cells += [f"*{proof.note}*"] if proof.note else []
    title = promise.title.rstrip(",;:.").replace("|", "\\|")
    return f"| {promise.number}. {title} | {'<br>'.join(cells).replace('|', chr(92) + '|')} |\n"
