"""The numbers of numpy's generators in forks of Zygotes, and of Zygotes that were forked from these."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
LONG_SEED = 122807528840384100672342137672332424406
"""As numpy's documentation advises: a number with 128 bits, which the author has drawn once."""
PROGRAM = f"""
import os, sys
sys.path[:0] = sys.argv[1:]
from sockd_zygote.forks import hygiene, randomness

def forked(call):
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        hygiene.after_fork()
        os.write(writes, repr(call()).encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(pid, 0)
    return eval(os.read(reads, 1 << 16))

def settled(code, then):
    with randomness.Watch() as watch:
        sys.meta_path.insert(0, watch)
        exec(code, globals())
        sys.meta_path.remove(watch)
    hygiene.settle()
    hygiene.after_fork()
    return then()

def starts():
    return [len(set(drawn)) for drawn in zip(*(forked(draw) for _ in range(3)))]

IMPORTS = '''
import numpy
numpy.random.standard_normal()  # half of a pair is left
own, given = numpy.random.RandomState(), numpy.random.RandomState(7)
own.standard_normal()
drawn, seeded = numpy.random.default_rng(), numpy.random.default_rng({LONG_SEED})
'''
SEEDS = "numpy.random.seed(42); own.seed(3); drawn = numpy.random.default_rng({LONG_SEED})"

def draw():
    of_global, of_own = (numpy.random.standard_normal(), numpy.random.random()), (own.standard_normal(), own.random())
    return *of_global, *of_own, given.random(), drawn.random(), seeded.random()

def below(code):
    return forked(lambda: settled(code, starts))

print(settled(IMPORTS, lambda: (starts(), below(""), forked(lambda: settled("", lambda: below(""))), below(SEEDS))))
"""


@pytest.mark.skipif(find_spec("numpy") is None, reason="numpy is not installed")
def test_generators_that_code_has_seeded_draw_the_same_and_others_do_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(REPOSITORY)], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second, third, seeded = ast.literal_eval(done.stdout)
    assert first == second == third == [3, 3, 3, 3, 1, 3, 1]
    assert seeded == [1] * 7
