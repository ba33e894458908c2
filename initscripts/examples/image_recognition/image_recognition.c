/* An input and the weights, both under way at once. For SeBS 411.image-recognition, which reads the image first. */

#include "sockd_s3.h"

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input(), bucket = sockd_json_string(event, "bucket.bucket");
    int32_t s3 = sockd_open(SOCKD_STR("s3:"));

    sockd_s3_get(s3, 0, bucket,
                 sockd_join(sockd_json_string(event, "bucket.input"), sockd_json_string(event, "object.input")));
    sockd_s3_get(s3, 1, bucket,
                 sockd_join(sockd_json_string(event, "bucket.model"), sockd_json_string(event, "object.model")));
    sockd_pass_all(s3, 0, 2);
}
