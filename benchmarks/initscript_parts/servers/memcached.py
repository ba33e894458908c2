"""Debian's memcached, started from the memory of an earlier one."""

import os
import shutil

import state

MEMORY = "/tmp/memory"

if __name__ == "__main__":
    os.symlink(f"/proc/self/fd/{state.file()}", MEMORY)
    shutil.copy("memory.meta", f"{MEMORY}.meta")  # memcached consumes it
    options = ["-l", "127.0.0.1", "-p", os.environ["PORT"], "-m", os.environ["MEMORY_MB"], "-e", MEMORY]
    os.execvp("memcached", ["memcached", *options])
