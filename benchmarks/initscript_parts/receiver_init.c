/* The script of receiver.c: one object, as a view or as a file, and a word when it has been sent. */

#include "sockd_s3.h"

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input();
    int32_t s3 = sockd_open(SOCKD_STR("s3:"));
    sockd_reply reply;
    sockd_s3_get(s3, 0, SOCKD_STR("bench"), sockd_json_string(event, "key"));
    if (sockd_recv_rpc_reply(s3, 0, &reply)) return;
    if (sockd_equal(sockd_json_string(event, "as"), SOCKD_STR("file"))) sockd_send_file(0, reply.handle);
    else sockd_send_msg(0, reply.handle, 0, (int64_t)reply.len);
    sockd_send_bytes(1, "sent", 4);
}
