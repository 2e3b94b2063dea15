/* Any bytes as a journal record. What can be read is written and read again, and must give the same
 * bytes; nothing is read beyond the end. */
#include "fuzz.h"

#include "store/change.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str rest = {.at = (const char *)data, .len = size};
    struct buf first = {0}, second = {0};
    struct change change;

    while (rest.len && change_read(&rest, &change))
        change_write(&first, &change);
    rest = buf_view(&first);
    while (rest.len) {
        if (!change_read(&rest, &change)) {
            fprintf(stderr, "what was written cannot be read\n");
            abort();
        }
        change_write(&second, &change);
    }
    if (!str_eq(buf_view(&first), buf_view(&second))) {
        fprintf(stderr, "what was read is not what was written\n");
        abort();
    }
    buf_free(&first);
    buf_free(&second);
    return 0;
}
