"""Strangers' bytes, made up at random: whatever parses them answers, refuses or hangs up, and never breaks.

Hypothesis makes the bytes; what it once found stays in the code as an explicit example. `SOCKD_FUZZ_EXAMPLES=5000` asks for
more of them than the few that fit into an ordinary run.
"""
