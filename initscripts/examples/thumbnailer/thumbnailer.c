/* One object that the event names. For SeBS 210.thumbnailer, which reads <input prefix>/<key>, the key unquoted;
 * 220.video-processing and 504.dna-visualisation read the same, but take the key as it is. */

#include "sockd_s3.h"

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input();
    sockd_str key = sockd_unquote_plus(sockd_json_string(event, "object.key"));
    int32_t s3 = sockd_open(SOCKD_STR("s3:"));

    sockd_s3_get(s3, 0, sockd_json_string(event, "bucket.bucket"),
                 sockd_join(sockd_json_string(event, "bucket.input"), key));
    sockd_pass(s3, 0);
}
