"""Tools for authors of initscripts: recorder, script languages, toolchain."""
