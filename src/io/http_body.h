/* The body of an HTTP/1.1 message: so many bytes, or chunks read strictly. Says where the body ends
 * and which bytes belong to it; keeps none. */
#ifndef IO_HTTP_BODY_H
#define IO_HTTP_BODY_H

#include "base/err.h"
#include "base/str.h"

enum { HTTP_BODY_OVERHEAD_MAX = 8192, HTTP_BODY_NAME_BYTES = 18 };

struct http_body {
    uint64_t left;     /* of the body, or of the chunk */
    uint32_t overhead; /* bytes of extensions and trailers so far */
    uint8_t state;     /* enum in http_body.c */
    uint8_t digits;    /* of a chunk's size */
    uint8_t name_len;  /* of the trailer being read; its begin stands in name */
    char name[HTTP_BODY_NAME_BYTES];
};

void http_body_sized(struct http_body *body, uint64_t length);
void http_body_chunked(struct http_body *body);
bool http_body_done(const struct http_body *body);
/* Reads until a piece of the body is found, the end or the end of `bytes`. ERR_BAD_REQUEST: framing
 * is broken; ERR_HEADERS: too much of it. */
enum err http_body_read(struct http_body *body, struct str bytes, size_t *ret_used,
                        struct str *ret_piece);

#endif
