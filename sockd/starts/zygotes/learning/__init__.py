"""Which Zygotes are worth making, and the making of each: plan, fork, import, canary, search for a culprit."""
