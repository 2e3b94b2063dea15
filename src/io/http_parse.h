/* HTTP/1.x messages, read strictly: refuses everything that two parsers could understand
 * differently (line ends, folded lines, lengths, codings). Pure: bytes in, slices of them out. */
#ifndef IO_HTTP_PARSE_H
#define IO_HTTP_PARSE_H

#include "base/err.h"
#include "base/str.h"
#include "io/http.h"

/* Finds the end of a head that arrives in pieces; each byte is read once. Starts zeroed. */
struct http_scan {
    size_t at;    /* scanned so far */
    size_t line;  /* where the last line begins */
    size_t first; /* length of the start line with its end; 0: not seen yet */
};

enum http_scan_result { HTTP_SCAN_MORE, HTTP_SCAN_WHOLE, HTTP_SCAN_BAD };

/* `bytes` begins with the head and may be longer at each call. ret_len: length of the head, once it
 * is complete. */
enum http_scan_result http_scan(struct http_scan *scan, struct str bytes, size_t *ret_len);

struct http_head {
    enum http_method method;
    struct str target;    /* as sent */
    struct str authority; /* of a target in absolute form, which overrides Host; else at == NULL */
    struct str path;      /* of the target, without query; still encoded */
    struct str query;
    int minor;                   /* HTTP/1.minor */
    int status;                  /* a response's */
    struct http_header *headers; /* room for header_max; owned by the caller */
    size_t header_max;
    size_t header_count;
    int64_t content_length; /* -1: not given */
    bool chunked;
    bool keep_alive;
    bool upgrade;         /* Connection: upgrade */
    bool expect_continue; /* Expect: 100-continue */
    bool has_host;
    const char *detail; /* why it was refused: a sentence */
};

/* The caller has set headers and header_max; `text` is a complete head, as found by http_scan. */
enum err http_head_request(struct http_head *head, struct str text);
enum err http_head_response(struct http_head *head, struct str text);

/* The value of the first header of that name; at == NULL: absent. Ignores ASCII case. */
struct str http_header_find(const struct http_header *headers, size_t count, const char *name);
/* Percent-decoding into `to` (len bytes are enough); false: a bad escape. `plus`: '+' is a space.
 */
bool http_percent_decode(struct str text, bool plus, char *to, size_t *ret_len);
/* Is `token` in a comma-separated header value? Ignores ASCII case. */
bool http_list_has(struct str list, struct str token);

/* The body of an HTTP/1.1 message: a known number of bytes, or chunks, read strictly. Finds where
 * the body ends and which bytes belong to it; keeps none of them. */

enum { HTTP_BODY_OVERHEAD_MAX = 8192, HTTP_BODY_NAME_BYTES = 18 };

struct http_body {
    uint64_t left;     /* of the body, or of the chunk */
    uint32_t overhead; /* bytes of extensions and trailers so far */
    uint8_t state;     /* enum in http_parse.c */
    uint8_t digits;    /* of a chunk's size */
    uint8_t name_len;  /* of the trailer being read; its start is in name */
    char name[HTTP_BODY_NAME_BYTES];
};

void http_body_sized(struct http_body *body, uint64_t length);
void http_body_chunked(struct http_body *body);
bool http_body_done(const struct http_body *body);
/* Reads up to the next piece of the body, the end of the body, or the end of `bytes`.
 * ERR_BAD_REQUEST: the framing is broken; ERR_HEADERS: there is too much of it. */
enum err http_body_read(struct http_body *body, struct str bytes, size_t *ret_used,
                        struct str *ret_piece);

#endif
