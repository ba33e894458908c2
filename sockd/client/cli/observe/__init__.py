"""Commands that show what functions and the worker did: logs, traces, rates, the Zygote tree."""
