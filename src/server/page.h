/* The page: a few files that the build takes from web/ and embeds in the program (web/build.py). */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

struct page_file {
    const char *name; /* in the URL after /page/; "" is / itself */
    const char *content_type;
    const char *etag; /* without its quotes */
    const unsigned char *plain;
    size_t plain_len;
    const unsigned char *packed; /* gzip */
    size_t packed_len;
};

extern const struct page_file page_files[];
extern const size_t page_file_count; /* 0: built without the page */

#endif
