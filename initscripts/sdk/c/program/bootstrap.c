/* A program in C whose initscript fetches its data: for `runtime = "provided"`, and for an image.
 *
 *     cc -O2 -static -I .. bootstrap.c -o bootstrap
 *     sockd deploy . --initscript init.wasm            # with runtime = "provided" in sockd.toml
 *
 * The script sends the data as message 0. The answer says how many bytes there are and what they sum up to. */

#include "sockd_app.h"

#include "runtime_api.h"

static char *answer(const char *event, size_t length) {
    static sockd_app app;
    static int opened;
    sockd_message data;
    unsigned long long sum = 0;
    char *text = (char *)malloc(200), type[100] = "";
    uint64_t begun = sockd_app_now_ns();
    int result = opened++ ? 0 : sockd_app_open(&app);
    (void)event;
    (void)length;
    if (!text) exit(1);
    if (!result) result = sockd_app_receive(&app, 0, 10000, &data);
    if (result) { /* here a program of use would fetch it itself */
        snprintf(text, 200, "{\"bytes\": null, \"why\": \"%s\"}", strerror(-result));
        return text;
    }
    sockd_app_report(&app, (const char *const[]){"data", 0}, "region", begun, sockd_app_now_ns());
    for (size_t n = 0; n < data.length; n++) sum += ((const unsigned char *)data.data)[n];
    if (sockd_app_header(&data, "content-type", type, sizeof type) < 0 || strpbrk(type, "\"\\")) *type = 0;
    snprintf(text, 200, "{\"bytes\": %zu, \"sum\": %llu, \"type\": \"%s\"}", data.length, sum, type);
    return text;
}

int main(void) { runtime_serve(answer); }
