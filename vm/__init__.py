"""Virtual machines with stock kernels: boots one with this checkout inside and runs a command in it (`scripts/vm`).

Neither of the two emulators needs a processor that helps. User-mode-linux is a kernel that runs as a process: programs run
natively, on one processor. QEMU emulates the processor as well: everything works as on hardware, 10 to 30 times slower. Kernels
and the root file system are Debian's packages. Times in such a machine mean nothing.
"""
