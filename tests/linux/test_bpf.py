"""The assembler, against instructions as the kernel's documentation encodes them, and what the kernel says of bad programs."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from sockd.linux.bpf import assembler as asm
from sockd.linux.bpf import bpf

SLOT = 8


def test_labels_become_distances_that_count_wide_instructions_twice() -> None:
    code = [asm.jump_if_equal(asm.R1, 7, "end"), asm.map_address(asm.R1, 5), asm.jump("end"), "end", *asm.leave(1)]
    program = asm.assemble(code)
    assert len(program) == (1 + 2 + 1 + 2) * SLOT
    assert program[:SLOT] == bytes.fromhex("15010300 07000000")
    assert program[SLOT : 3 * SLOT] == bytes.fromhex("18110000 05000000 00000000 00000000")
    assert program[3 * SLOT :] == bytes.fromhex("05000000 00000000 b7000000 01000000 95000000 00000000")


def test_memory_and_atomic_instructions() -> None:
    code = [asm.load32(asm.R1, asm.R6, 24), asm.store64(asm.R10, -8, asm.R0), asm.atomic_add32(asm.R7, 4, asm.R1)]
    assert asm.assemble(code) == bytes.fromhex("61611800 00000000 7b0af8ff 00000000 c3170400 00000000")


def test_a_label_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(KeyError):
        asm.assemble([asm.jump("nowhere"), *asm.leave(0)])


@pytest.mark.root
def test_the_verifiers_words_come_with_its_refusal() -> None:
    with pytest.raises(OSError) as refused:
        bpf.load(bpf.ProgramType.CGROUP_SOCK_ADDR, bpf.Attach.INET4_BIND, [asm.copy(asm.R0, asm.R5), *asm.leave(0)[1:]])
    assert refused.value.errno == errno.EACCES
    assert any("R5 !read_ok" in note for note in refused.value.__notes__)


@pytest.mark.root
def test_a_program_that_the_verifier_takes_is_a_descriptor() -> None:
    os.close(bpf.load(bpf.ProgramType.CGROUP_SOCK_ADDR, bpf.Attach.INET4_BIND, asm.leave(1)))


@pytest.mark.root
def test_a_signal_that_comes_while_the_verifier_works_changes_nothing() -> None:
    long = [*[asm.copy(asm.R1, asm.R10)] * 100, *asm.leave(1)]
    signals = 0

    def count(*_: object) -> None:
        nonlocal signals
        signals += 1

    before = signal.signal(signal.SIGALRM, count)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        for _ in range(200):
            os.close(bpf.load(bpf.ProgramType.CGROUP_SOCK_ADDR, bpf.Attach.INET4_BIND, long))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert signals


@pytest.mark.root
def test_maps_are_written_and_emptied() -> None:
    fd = bpf.hash_map(4, 4, 1)
    try:
        bpf.update(fd, b"aaaa", b"1111")
        with pytest.raises(OSError) as full:
            bpf.update(fd, b"bbbb", b"1111")
        assert full.value.errno == errno.E2BIG
        bpf.delete(fd, b"aaaa")
        with pytest.raises(FileNotFoundError):
            bpf.delete(fd, b"aaaa")
    finally:
        os.close(fd)
