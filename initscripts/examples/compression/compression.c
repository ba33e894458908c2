/* A directory: a LIST, and a GET of all that it lists. For SeBS 311.compression, which reads <input prefix>/<key>. */

#include "sockd_s3.h"

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input(), bucket = sockd_json_string(event, "bucket.bucket");
    sockd_str prefix = sockd_join(sockd_json_string(event, "bucket.input"), sockd_json_string(event, "object.key"));
    int32_t s3 = sockd_open(SOCKD_STR("s3:"));

    sockd_s3_list(s3, 0, bucket, prefix, SOCKD_NONE);
    sockd_listed gets = sockd_s3_get_listed(s3, 0, bucket, prefix);
    sockd_pass_all(s3, gets.first, gets.end);
}
