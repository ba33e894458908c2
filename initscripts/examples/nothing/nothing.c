/* No work at all: what an initscript costs a function that has nothing to fetch. */

#include "sockd_init.h"

SOCKD_EXPORT void boot(void) {
}
