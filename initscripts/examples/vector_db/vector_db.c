/* The shards of a vector database, over gRPC, all under way at once.
 *
 * The event: {"server": "grpc://host:port", "shards": [name, ...]}; shard n of the list is message n. The request is
 * message GetShard { string name = 1; }, which is short enough to write by hand: tag, length, bytes. The reply goes on
 * as it came, for the function to search in place. */

#include "sockd_s3.h"

#define METHOD "/vectordb.Shards/Get"

static sockd_str get_shard(sockd_str name) {
    sockd_builder b = {0};
    sockd_put_char(&b, 1 << 3 | 2); /* field 1, a length and that many bytes */
    for (uint32_t len = name.len; ; len >>= 7) {
        sockd_put_char(&b, (char)(len < 0x80 ? len : len | 0x80));
        if (len < 0x80) break;
    }
    sockd_put(&b, name);
    return sockd_built(&b);
}

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input(), shards = sockd_json_find(event, "shards"), shard;
    int32_t server = sockd_open(sockd_json_string(event, "server"));
    int64_t count = 0;

    while (sockd_json_next(&shards, &shard))
        sockd_send(server, count++, SOCKD_STR(METHOD), get_shard(sockd_json_text(shard)));
    sockd_pass_all(server, 0, count);
}
