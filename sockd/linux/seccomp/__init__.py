"""Seccomp filters, from lists of system calls to BPF."""
