"""The assembler, against instructions as the kernel's documentation encodes them, and what the kernel says of bad programs."""

from __future__ import annotations

import errno
import os

import pytest

from sockd.kernel import bpf

SLOT = 8


def test_labels_become_distances_that_count_wide_instructions_twice() -> None:
    code = [bpf.jump_if_equal(bpf.R1, 7, "end"), bpf.map_address(bpf.R1, 5), bpf.jump("end"), "end", *bpf.leave(1)]
    program = bpf.assemble(code)
    assert len(program) == (1 + 2 + 1 + 2) * SLOT
    assert program[:SLOT] == bytes.fromhex("15010300 07000000")
    assert program[SLOT : 3 * SLOT] == bytes.fromhex("18110000 05000000 00000000 00000000")
    assert program[3 * SLOT :] == bytes.fromhex("05000000 00000000 b7000000 01000000 95000000 00000000")


def test_memory_and_atomic_instructions() -> None:
    code = [bpf.load32(bpf.R1, bpf.R6, 24), bpf.store64(bpf.R10, -8, bpf.R0), bpf.atomic_add32(bpf.R7, 4, bpf.R1)]
    assert bpf.assemble(code) == bytes.fromhex("61611800 00000000 7b0af8ff 00000000 c3170400 00000000")


def test_a_label_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(KeyError):
        bpf.assemble([bpf.jump("nowhere"), *bpf.leave(0)])


@pytest.mark.root
def test_the_verifiers_words_come_with_its_refusal() -> None:
    with pytest.raises(OSError) as refused:
        bpf.load(bpf.ProgramType.CGROUP_SOCK_ADDR, bpf.Attach.INET4_BIND, [bpf.copy(bpf.R0, bpf.R5), *bpf.leave(0)[1:]])
    assert refused.value.errno == errno.EACCES
    assert any("R5 !read_ok" in note for note in refused.value.__notes__)


@pytest.mark.root
def test_a_program_that_the_verifier_takes_is_a_descriptor() -> None:
    os.close(bpf.load(bpf.ProgramType.CGROUP_SOCK_ADDR, bpf.Attach.INET4_BIND, bpf.leave(1)))


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
