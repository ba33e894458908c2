/* sockd_init.h: what an initscript may ask of the engine, version 1. The published documentation of the guest API.
 *
 * An initscript is a wasm32 module without WASI. It imports functions from "sockd_v1" alone, exports its memory as
 * `memory` and one function `boot`, which is called once for each cold start, while the sandbox is still being made.
 * Returning from boot is sockd_exit(0). What the function's own code asks for later is then already here, or on its way.
 *
 * An initscript can only make a start faster: what it did not send, sent wrongly or sent too late is fetched from the
 * network by the function, as if there were no initscript.
 *
 * Results: everything that can fail answers a negative errno as int32_t, one of SOCKD_E... below. Calls that wait say so;
 * they end with -SOCKD_ECANCELED when the run is cancelled or over its deadline. A pointer outside of the memory is
 * -SOCKD_EFAULT, a handle or connection that was never given out is -SOCKD_EBADF; neither ends the run.
 *
 * Naming: the storage library numbers the function's storage reads 0, 1, 2, ... in the order of its calls, and looks for
 * a message with that number. Use the number as rpc_id and as msg_id. A directory is one LIST (one for each page, if there
 * are more), and then one read for each of its keys, in the order of the list. A message is used only when bucket and key are those that were asked for, too.
 *
 * The rest is in sockd_text.h (strings, JSON, XML) and sockd_s3.h (requests in one line); neither is needed. */

#ifndef SOCKD_INIT_H
#define SOCKD_INIT_H

#include <stdint.h>

#define SOCKD_API_VERSION 1

#define SOCKD_IMPORT(name) __attribute__((import_module("sockd_v1"), import_name(name))) extern

/* Before the definition of boot: SOCKD_EXPORT void boot(void) { ... } */
#define SOCKD_EXPORT __attribute__((export_name("boot")))

enum {
    SOCKD_ENOENT = 2,         /* no RPC of this id was sent on this connection */
    SOCKD_E2BIG = 7,
    SOCKD_EBADF = 9,          /* no such connection or buffer */
    SOCKD_ENOMEM = 12,
    SOCKD_EACCES = 13,        /* the function may not talk to this endpoint */
    SOCKD_EFAULT = 14,        /* a pointer, offset or length is outside of the memory or buffer */
    SOCKD_EBUSY = 16,
    SOCKD_EEXIST = 17,        /* the id is in use */
    SOCKD_EINVAL = 22,
    SOCKD_EMFILE = 24,        /* too many connections */
    SOCKD_ENOSPC = 28,        /* the reply does not fit into the function's region */
    SOCKD_EPIPE = 32,         /* the function is gone */
    SOCKD_EPROTO = 71,        /* the peer does not speak the protocol */
    SOCKD_EOPNOTSUPP = 95,
    SOCKD_ECONNRESET = 104,
    SOCKD_ETIMEDOUT = 110,
    SOCKD_ECONNREFUSED = 111,
    SOCKD_EDQUOT = 122,       /* over the budget of RPCs or messages */
    SOCKD_ECANCELED = 125,
};

/* A reply or message. Its bytes stay in the shared region, outside of the script's memory, until they are asked for. */
typedef struct sockd_reply {
    uint32_t handle; /* names the buffer; valid until the run ends */
    uint32_t status; /* the protocol's: an HTTP status, gRPC status; 0 for raw TCP and for messages */
    uint64_t len;    /* bytes */
} sockd_reply;
_Static_assert(sizeof(sockd_reply) == 16, "16 bytes, little endian, as the engine writes it");

/* ---- RPCs. An address chooses the protocol, which says what method and body are:
 *
 *   s3:                   the function's S3, with its credentials, region and endpoint, which the script never sees.
 *                         GetObject, HeadObject {"bucket","key"} and optionally "range": "bytes=0-99";
 *                         ListObjectsV2 {"bucket","prefix"} and optionally "continuation", "delimiter", "max_keys": "10" and
 *                         "start_after"; the body is JSON, a LIST's reply XML
 *   sqs:, dynamodb:       likewise; the method is the service's action ("ReceiveMessage", "GetItem"), body and reply its JSON
 *   http://host:port      "GET /path", optionally followed by "\nname: value" for each header; the body as it is (https:// too)
 *   grpc://host:port      "/package.Service/Method"; body and reply are raw messages
 *   tcp://host:port       where the reply ends: "bytes:N", "line", "u32be" (a length before it, taken off), "eof"
 */

/* Open a connection; dials in the background. Answers its number, >= 0.
 * -EACCES: not allowed for this function. -EINVAL: not an address. -EMFILE: too many. */
SOCKD_IMPORT("connect") int32_t sockd_connect(const char *addr, uint32_t addr_len);

/* Send a request; does not wait, neither for the connection nor for the reply. Bodies are copied before it returns.
 * -EEXIST: the id is in use. -EDQUOT: over the budget. -EINVAL: no such method, or a malformed body. */
SOCKD_IMPORT("send_rpc")
int32_t sockd_send_rpc(int32_t conn, int64_t rpc_id, const char *method, uint32_t method_len, const void *body,
                       uint32_t body_len);

/* The same with a part of a buffer as the body: a reply goes on as a request without passing through the script. */
SOCKD_IMPORT("send_rpc_buf")
int32_t sockd_send_rpc_buf(int32_t conn, int64_t rpc_id, const char *method, uint32_t method_len, uint32_t handle,
                           int64_t off, int64_t len);

/* Wait until the whole reply is in the region; may be called again for the same id. The function learns of a failure.
 * -ENOENT: never sent. -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET, -EPROTO, -ENOSPC: as the RPC ended. A status that says
 * that something is wrong (404) is a reply like any other, and no failure; nor is 304, without a body: the function has
 * this object already, because the init of its snapshot has read it. */
SOCKD_IMPORT("recv_rpc_reply") int32_t sockd_recv_rpc_reply(int32_t conn, int64_t rpc_id, sockd_reply *out);

/* Copy up to n bytes of a buffer, from offset off. Answers how many were copied: fewer at its end, 0 beyond it. */
SOCKD_IMPORT("buf_read") int32_t sockd_buf_read(uint32_t handle, int64_t off, void *dst, uint32_t n);

/* ---- Messages and connections, to and from the function */

/* Give the function a part of a buffer as message msg_id; nothing is copied, it maps the same memory. With a reply's
 * buffer go its status, method, bucket and key: the engine says what was fetched, not the script.
 * -EEXIST: the id is in use. -EDQUOT: too many messages. -EFAULT: not within the buffer. */
SOCKD_IMPORT("send_msg") int32_t sockd_send_msg(int64_t msg_id, uint32_t handle, int64_t off, int64_t len);

/* The same with bytes of the script's own, which are copied into the region. -ENOSPC: the region is full. */
SOCKD_IMPORT("send_bytes") int32_t sockd_send_bytes(int64_t msg_id, const void *ptr, uint32_t len);

/* Give the function a whole buffer as a file msg_id that is its own: to write to, to make longer, to map as it likes. Not copied if
 * the buffer is a reply of 256 KiB or more that was not passed on; the buffer is empty then. Errors as sockd_send_bytes. */
SOCKD_IMPORT("send_file") int32_t sockd_send_file(int64_t msg_id, uint32_t handle);

/* Wait for a message from the function. -EPIPE: it is gone. */
SOCKD_IMPORT("recv_msg") int32_t sockd_recv_msg(int64_t msg_id, sockd_reply *out);

/* Give an idle connection to the function, which finds it by id and address. The script has it no more.
 * -EBUSY: an RPC is under way on it. -EOPNOTSUPP: this protocol's connections cannot be given away. */
SOCKD_IMPORT("transfer_conn")
int32_t sockd_transfer_conn(int64_t conn_id, const char *addr, uint32_t addr_len, int32_t conn);

/* Wait for a connection that the function gives to the script. Answers its number. -EPIPE: the function is gone. */
SOCKD_IMPORT("get_conn") int32_t sockd_get_conn(int64_t conn_id, const char *addr, uint32_t addr_len);

/* ---- The run itself */

/* The length of the input: the invocation's event as it was posted, or the function's fixed `args`. */
SOCKD_IMPORT("input_len") int32_t sockd_input_len(void);

/* Copy up to n bytes of the input, from offset off. Answers how many. */
SOCKD_IMPORT("input_read") int32_t sockd_input_read(int32_t off, void *dst, uint32_t n);

/* A line for the trace, of 16 KiB together. level: 0 error, 1 warning, 2 info, 3 debug. */
SOCKD_IMPORT("log") void sockd_log(int32_t level, const char *text, uint32_t len);

/* Nanoseconds of a clock that only goes forward; the clock of the trace. */
SOCKD_IMPORT("now_ns") int64_t sockd_now_ns(void);

/* End the run. Replies that were not passed on are dropped; messages stay. */
SOCKD_IMPORT("exit") _Noreturn void sockd_exit(int32_t status);

/* End the run and the start of the function with it: the caller gets an error with this status and text. For what the
 * function could only find out later, such as work that somebody else has claimed. */
SOCKD_IMPORT("abort_launch") _Noreturn void sockd_abort_launch(int32_t status, const char *text, uint32_t len);

#endif
