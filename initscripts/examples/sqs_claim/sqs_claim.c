/* Work from a queue, and then the object that the work names.
 *
 * The event: {"queue": url, "bucket": name}; a message's body: {"key": name}. The function reads the claim with
 * recv_msg(CLAIM), so it need not ask the queue itself; the object is its first storage read. While the queue answers,
 * the sandbox is made; the object follows on the heels of the answer. */

#include "sockd_s3.h"

#define CLAIM (1ll << 32) /* no index of a storage read */

SOCKD_EXPORT void boot(void) {
    sockd_str event = sockd_input();
    int32_t sqs = sockd_open(SOCKD_STR("sqs:")), s3 = sockd_open(SOCKD_STR("s3:"));
    sockd_builder request = {0};
    sockd_reply reply;

    sockd_put(&request, SOCKD_STR("{\"QueueUrl\":"));
    sockd_put_json(&request, sockd_json_string(event, "queue"));
    sockd_put(&request, SOCKD_STR(",\"MaxNumberOfMessages\":1}"));
    sockd_send(sqs, CLAIM, SOCKD_STR("ReceiveMessage"), sockd_built(&request));
    if (sockd_pass_reply(sqs, CLAIM, &reply) || reply.status != 200) return;

    sockd_str answer = sockd_read(reply);
    if (answer.ptr && !sockd_json_find(answer, "Messages.0").ptr) {
        /* Nothing to do: the caller hears it before a line of the function ran. */
        static const char text[] = "the queue is empty";
        sockd_abort_launch(204, text, sizeof text - 1);
    }
    /* The body is a string that holds JSON. */
    sockd_str work = sockd_json_string(answer, "Messages.0.Body");
    sockd_s3_get(s3, 0, sockd_json_string(event, "bucket"), sockd_json_string(work, "key"));
    sockd_pass(s3, 0);
}
