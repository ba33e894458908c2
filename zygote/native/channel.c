/* Data and descriptors from a socket, and the sandbox's end of its channel: one frame at a time, blocking. */

#include "native.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* protocol.HEADER */
struct header {
    uint32_t length;
    uint8_t kind;
    uint8_t flags;
    uint16_t zero;
    uint64_t number;
};

/* A frame whose body begins with protocol.TIMES. */
struct timed_header {
    struct header frame;
    int64_t started_ns;
    int64_t ended_ns;
};

#define MODULES 7                     /* protocol.MODULES */
#define LAST_KIND 12                  /* protocol.FRAME_NAMES */
#define SOON_NS 300000                /* the daemon's part of a spare's start takes 150 us */
#define FRAME_MAX_BYTES (1U << 30)    /* the daemon limits payloads; this only stops a corrupted header */

void close_all(const struct fd_list *given)
{
    for (int i = 0; i < given->count; i++)
        close(given->fds[i]);
}

static void take_fds(struct msghdr *packet, struct fd_list *given)
{
    given->count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(packet); header; header = CMSG_NXTHDR(packet, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        given->count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int)); /* the kernel sends one such header */
        memcpy(given->fds, CMSG_DATA(header), sizeof(int) * (size_t)given->count);
    }
}

/* recvmsg(2), with the descriptors close-on-exec. -1 with errno, or with the exception of a signal handler.
 *
 * cut: set to whether data or descriptors did not fit; those that did are in `given` all the same. */
ssize_t receive_packet(int fd, void *data, size_t size, int flags, struct fd_list *given, int *cut)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * MAX_FDS)];
    } rights;
    struct iovec place = {data, size};
    struct msghdr packet;
    ssize_t count;

    do {
        packet = (struct msghdr){
            .msg_iov = &place, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights};
        Py_BEGIN_ALLOW_THREADS
        count = recvmsg(fd, &packet, flags | MSG_CMSG_CLOEXEC);
        Py_END_ALLOW_THREADS
    } while (count < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    given->count = 0;
    if (count >= 0)
        take_fds(&packet, given);
    *cut = count >= 0 && (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    return count;
}

/* Wait until there is something to be received: 0; -1 with the exception of a signal handler.
 *
 * Who waits in recvmsg(2) is woken for nothing as well, whenever the peer has read what was sent to it: that is room to write
 * (unix_write_space), and a stream's readers do not look what they are woken for (unix_stream_data_wait); poll(2) does. */
static int wait_readable(int fd)
{
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    int count;

    do {
        Py_BEGIN_ALLOW_THREADS
        count = poll(&waited, 1, -1);
        Py_END_ALLOW_THREADS
    } while (count < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    return PyErr_Occurred() ? -1 : 0;
}

static int64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Stay awake for what is about to come, as to sleep and be woken takes 50 us where processors are idle; a daemon that waits for
 * this one is let go first. */
static void expect_soon(int fd)
{
    struct pollfd expected = {.fd = fd, .events = POLLIN};
    int64_t end = monotonic_ns() + SOON_NS;

    while (poll(&expected, 1, 0) == 0 && monotonic_ns() < end)
        sched_yield();
}

/* Exactly `size` bytes: 1; 0 at the end of the stream; -1 with an exception. */
static int receive_whole(int fd, char *data, size_t size, struct fd_list *given)
{
    struct fd_list more;
    ssize_t count;
    int cut;

    given->count = 0;
    while (size) {
        count = receive_packet(fd, data, size, MSG_WAITALL, &more, &cut);
        if (count < 0) {
            if (!PyErr_Occurred())
                os_error("recvmsg");
            return -1;
        }
        if (more.count) {
            close_all(given);
            *given = more;
        }
        if (count == 0)
            return 0;
        data += count;
        size -= (size_t)count;
    }
    return 1;
}

static int check_header(const struct header *header)
{
    if (header->kind > 0 && header->kind <= LAST_KIND && !header->flags && !header->zero &&
        header->length <= FRAME_MAX_BYTES)
        return 0;
    errno = EPROTO;
    os_error("frame header");
    return -1;
}

static PyObject *fd_tuple(const struct fd_list *given)
{
    PyObject *tuple = PyTuple_New(given->count);

    for (int i = 0; tuple && i < given->count; i++)
        PyTuple_SetItem(tuple, i, PyLong_FromLong(given->fds[i]));
    return tuple;
}

/* -- for Python */

PyObject *native_receive(PyObject *module, PyObject *args)
{
    struct header header;
    struct fd_list given, ignored;
    PyObject *body = NULL;
    int fd, whole, is_expected = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "i|p:receive", &fd, &is_expected))
        return NULL;
    if (is_expected)
        expect_soon(fd);
    if (wait_readable(fd) < 0)
        return NULL;
    whole = receive_whole(fd, (char *)&header, sizeof header, &given);
    if (whole > 0 && check_header(&header) < 0)
        whole = -1;
    if (whole > 0) {
        body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)header.length);
        whole = body ? receive_whole(fd, PyBytes_AsString(body), header.length, &ignored) : -1;
    }
    if (whole > 0)
        return Py_BuildValue("iKNN", (int)header.kind, (unsigned long long)header.number, body, fd_tuple(&given));
    close_all(&given);
    Py_XDECREF(body);
    if (whole < 0)
        return NULL;
    return none();
}

/* All of it: 0; -1 with an exception. */
static int send_whole(int fd, struct iovec *parts, size_t count)
{
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = count};
    ssize_t sent;

    while (packet.msg_iovlen) {
        Py_BEGIN_ALLOW_THREADS
        sent = sendmsg(fd, &packet, MSG_NOSIGNAL);
        Py_END_ALLOW_THREADS
        if (sent < 0 && errno != EINTR) {
            os_error("sendmsg");
            return -1;
        }
        if (sent < 0 && PyErr_CheckSignals() < 0)
            return -1;
        while (packet.msg_iovlen && sent >= (ssize_t)packet.msg_iov->iov_len) {
            sent -= (ssize_t)packet.msg_iov->iov_len;
            packet.msg_iov++;
            packet.msg_iovlen--;
        }
        if (packet.msg_iovlen && sent > 0) {
            packet.msg_iov->iov_base = (char *)packet.msg_iov->iov_base + sent;
            packet.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return 0;
}

static struct iovec bytes_of(PyObject *data)
{
    return (struct iovec){PyBytes_AsString(data), (size_t)PyBytes_Size(data)};
}

PyObject *native_reply(PyObject *module, PyObject *args)
{
    struct header first = {.kind = MODULES};
    struct timed_header head = {0};
    PyObject *body, *modules = NULL;
    long long started_ns, ended_ns;
    unsigned long long number;
    struct iovec parts[4] = {{NULL, 0}, {NULL, 0}, {&head, sizeof head}};
    int fd, kind;

    (void)module;
    if (!PyArg_ParseTuple(args, "iiKLLS|S:reply", &fd, &kind, &number, &started_ns, &ended_ns, &body, &modules))
        return NULL;
    parts[3] = bytes_of(body);
    if (modules) {
        parts[0] = (struct iovec){&first, sizeof first};
        parts[1] = bytes_of(modules);
    }
    if (parts[3].iov_len + sizeof head > UINT32_MAX || parts[1].iov_len > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a frame's length has 32 bits");
        return NULL;
    }
    first.length = (uint32_t)parts[1].iov_len;
    first.number = number;
    head.frame.length = (uint32_t)(sizeof head - sizeof head.frame + parts[3].iov_len);
    head.frame.kind = (uint8_t)kind;
    head.frame.number = number;
    head.started_ns = started_ns;
    head.ended_ns = ended_ns;
    if (send_whole(fd, parts, 4) < 0)
        return NULL;
    return none();
}
