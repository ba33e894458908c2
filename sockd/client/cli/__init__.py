"""The command line: one file per command or family of commands, in folders by what they are for.

Results go to stdout, everything else to stderr. Exit status: 0 success, 1 the function or the command failed, 2 usage,
3 not found, 4 throttled, 5 timed out, 69 no worker answers. A command imports heavy modules only when it needs them, so `--help`
takes less than 0.1 s.
"""
