"""The command line: one file per command or small family of commands.

Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the function or the command failed, 2 usage,
3 not found, 4 throttled, 5 timed out, 69 no worker answers. Nothing heavy is imported before a command needs it: the
help takes less than a tenth of a second.
"""
