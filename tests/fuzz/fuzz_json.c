/* Any bytes: our reader and jansson agree on whether they are JSON and on every value. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>

#include "json_oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf why = {0};

    if (oracle_judge((struct str){(const char *)data, size}, &why) == THEY_DIFFER) {
        fprintf(stderr, STR_FMT "\n", STR_ARG(buf_view(&why)));
        abort();
    }
    buf_free(&why);
    return 0;
}
