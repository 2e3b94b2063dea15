/* The head of an HTTP/1.x message, read strictly: whatever two readers could understand differently
 * (line ends, folded lines, lengths, codings) is refused. Pure: bytes in, slices of them out. */
#ifndef IO_HTTP_PARSE_H
#define IO_HTTP_PARSE_H

#include "base/err.h"
#include "io/http.h"

/* Finding the end of a head that arrives in pieces, each byte looked at once. Starts zeroed. */
struct http_scan {
    size_t at;    /* looked at so far */
    size_t line;  /* where the last line begins */
    size_t first; /* length of the start line with its end; 0: not seen yet */
};

enum http_scan_result { HTTP_SCAN_MORE, HTTP_SCAN_WHOLE, HTTP_SCAN_BAD };

/* `bytes` begins with the head and may be longer each time. ret_len: of the head, once it is whole.
 */
enum http_scan_result http_scan(struct http_scan *scan, struct str bytes, size_t *ret_len);

struct http_head {
    enum http_method method;
    struct str target;    /* as sent */
    struct str authority; /* of a target in absolute form, which then beats Host; else at == NULL */
    struct str path;      /* of the target, without query; still encoded */
    struct str query;
    int minor;                   /* HTTP/1.minor */
    int status;                  /* a response's */
    struct http_header *headers; /* room for header_max, the caller's */
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

/* `head` comes with headers and header_max set; `text` is whole, as http_scan found it. */
enum err http_head_request(struct http_head *head, struct str text);
enum err http_head_response(struct http_head *head, struct str text);

/* Percent-decoding into `to` (len bytes are enough); false: a bad escape. `plus`: '+' is a space.
 */
bool http_percent_decode(struct str text, bool plus, char *to, size_t *ret_len);
/* One of the tokens in a comma-separated header value; ASCII case does not count. */
bool http_list_has(struct str list, struct str token);

#endif
