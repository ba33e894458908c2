/* Included before a copy of zygote/native: each system call of a fork looks first whether it is to fail.
 *
 * A step's name is the call's, or what tells it from others of its kind: prctl's option, what is written. */

#ifndef SOCKD_TEST_FAILPOINTS_H
#define SOCKD_TEST_FAILPOINTS_H

#define _GNU_SOURCE
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Ask the test what is to fail in the fork that begins; the child inherits the answer. */
void failpoints_ask(const char *kind);

/* 0: go on; -1 with errno: fail. It does not return where the process is to hang or to die. */
int failpoints_reach(const char *step);

#define FAILPOINT(step, call) (failpoints_reach(step) < 0 ? -1 : (call))

#define pipe2(fds, flags)                                                                                                     \
    (failpoints_ask(request->kind == SANDBOX ? "sandbox" : "zygote"), FAILPOINT("pipe2", pipe2(fds, flags)))
#define syscall(number, ...) FAILPOINT(#number, syscall(number, ##__VA_ARGS__))
#define prctl(option, ...) FAILPOINT(#option, prctl(option, __VA_ARGS__))
#define write(fd, data, size) FAILPOINT("write " #data, write(fd, data, size))
#define read(fd, data, size) FAILPOINT("read", read(fd, data, size))
#define sendmsg(fd, message, flags) FAILPOINT("sendmsg", sendmsg(fd, message, flags))
#define sigaction(number, new, old) FAILPOINT("sigaction", sigaction(number, new, old))
#define fchdir(fd) FAILPOINT("fchdir", fchdir(fd))
#define chroot(path) FAILPOINT("chroot", chroot(path))
#define setsid() FAILPOINT("setsid", setsid())
#define setresgid(a, b, c) FAILPOINT("setresgid", setresgid(a, b, c))
#define setresuid(a, b, c) FAILPOINT("setresuid", setresuid(a, b, c))
#define open(path, flags) FAILPOINT("open " #path, open(path, flags))
#define close(fd) FAILPOINT("close " #fd, close(fd))
#define dup2(old, new) FAILPOINT("dup2", dup2(old, new))
#define dup3(old, new, flags) FAILPOINT("dup3", dup3(old, new, flags))

#endif
