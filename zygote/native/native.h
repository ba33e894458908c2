/* What a Zygote and its children do without touching the interpreter's memory; see fork.c for why.
 *
 * One build serves both C libraries, glibc and musl, whose loader takes libc.so.6 for itself. So only functions that both have are
 * called (tests/zygote/test_native.py).
 *
 * Stable ABI: one build serves every Python that sockd runs on. Formats with `#` are not in it: they mean one function in the
 * headers before 3.13 and another since.
 */

#ifndef SOCKD_NATIVE_H
#define SOCKD_NATIVE_H

#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

/* glibc's headers give these other names, as fcntl64, __isoc99_sscanf and __isoc23_sscanf, which musl does not have or only some
 * versions. On 64 bits, and for the formats here, they are the same functions. */
int plain_fcntl(int fd, int command, ...) __asm__("fcntl");
int plain_sscanf(const char *text, const char *format, ...) __asm__("sscanf");
#define fcntl plain_fcntl
#define sscanf plain_sscanf

#define CHANNEL_FD 3     /* fork_server.CHANNEL_FD */
#define SANDBOX_UID 1000 /* of each handler and each Zygote inside its user namespace; outside, each has its own */
#define OWN_FDS_FROM 48  /* of a Zygote: imports get the numbers below, as in a sandbox */
#define MAX_FDS 16       /* protocol.CONTROL_MAX_FDS */

/* A child's kind, as in protocol.FORK. */
enum { SANDBOX = 0, ZYGOTE = 1, WALLED_ZYGOTE = 2, KINDS = 3 };

/* Descriptors that came with data. */
struct fd_list {
    int count;
    int fds[MAX_FDS];
};

/* confine.c: in the child; none of them returns after a failure. */
int confine_sandbox(const struct fd_list *given, int waits, int maps_ready);
int confine_zygote(const struct fd_list *given, int waits, int maps_ready, int kind);
void await_move(int moved);
int move_up(int fd); /* -1 with errno */

/* children.c */
int reap_children(void); /* -1 with errno */
void forget_children(void);
int status_of_child(pid_t pid); /* -1: unknown */

/* atfork.c */
void before_fork(void);
void after_fork_in_parent(void);
void after_fork_in_child(void);

/* kept.c; -1 with errno */
int take_over_kept(void);
int make_kept_sockets(void);
int out_of_the_way(int fd);

/* observe.c */
void saw_path(const char *path);
int saw_variable(const char *name); /* whether imports are observed */

/* privileges.c; -1 with errno */
int drop_bounding_set(unsigned long long keep);
int set_capabilities(unsigned long long keep);
int lock_securebits(void);

/* network.c; -1 with errno */
int enter_network(int network);
int return_from_network(int home);

/* channel.c */
ssize_t receive_packet(int fd, void *data, size_t size, int flags, struct fd_list *given, int *cut);
void close_all(const struct fd_list *given);

/* Functions for Python, gathered by module.c. */
PyObject *native_serve(PyObject *module, PyObject *args);
PyObject *native_message(PyObject *module, PyObject *args);
PyObject *native_message_fds(PyObject *module, PyObject *args);
PyObject *native_settle_atfork(PyObject *module, PyObject *args);
PyObject *native_keep_file(PyObject *module, PyObject *args);
PyObject *native_keep_socket(PyObject *module, PyObject *args);
PyObject *native_keep_mapping(PyObject *module, PyObject *args);
PyObject *native_forget_kept(PyObject *module, PyObject *args);
PyObject *native_reopen_in_tmp(PyObject *module, PyObject *args);
PyObject *native_observe(PyObject *module, PyObject *args);
PyObject *native_stop_observing(PyObject *module, PyObject *args);
PyObject *native_prepare(PyObject *module, PyObject *args);
PyObject *native_await_children(PyObject *module, PyObject *args);
PyObject *native_disown_children(PyObject *module, PyObject *args);
PyObject *native_move_up(PyObject *module, PyObject *args);
PyObject *native_keep_filters(PyObject *module, PyObject *args);
PyObject *native_settle_in_network(PyObject *module, PyObject *args);
PyObject *native_fill_gaps(PyObject *module, PyObject *args);
PyObject *native_share_code(PyObject *module, PyObject *args);
PyObject *native_gather_arenas(PyObject *module, PyObject *args);
PyObject *native_separate_growth(PyObject *module, PyObject *args);
PyObject *native_join_pages(PyObject *module, PyObject *args);
PyObject *native_part_large(PyObject *module, PyObject *args);
PyObject *native_copy_pages(PyObject *module, PyObject *args);
PyObject *native_receive(PyObject *module, PyObject *args);
PyObject *native_reply(PyObject *module, PyObject *args);
PyObject *native_set_environment(PyObject *module, PyObject *args);
PyObject *native_set_request_variable(PyObject *module, PyObject *args);
PyObject *native_limit_open_files(PyObject *module, PyObject *args);
PyObject *native_drop_bounding_set(PyObject *module, PyObject *args);
PyObject *native_set_capabilities(PyObject *module, PyObject *args);
PyObject *native_lock_securebits(PyObject *module, PyObject *args);
PyObject *native_install_filter(PyObject *module, PyObject *args);
PyObject *native_set_no_new_privs(PyObject *module, PyObject *args);
PyObject *native_set_dumpable(PyObject *module, PyObject *args);
PyObject *native_close_fds_from(PyObject *module, PyObject *args);
PyObject *native_generator_state(PyObject *module, PyObject *args);
PyObject *native_set_title(PyObject *module, PyObject *args);

/* Not Py_RETURN_NONE: in the headers of 3.12 it counts no reference, as None is immortal there; in 3.11 it is not. */
static inline PyObject *none(void)
{
    Py_INCREF(Py_None);
    return Py_None;
}

/* OSError with the name of the call that failed. NULL, for `return os_error("…")`. */
PyObject *os_error(const char *call);

#endif
