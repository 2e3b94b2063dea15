/* Heads and bodies of HTTP/1.x messages. A head is read in one pass over its lines: the few headers
 * that decide about framing and routing are rows of a table, all others are only split into name
 * and value. A body is read by a state machine that accepts nothing optional in its framing: CR LF
 * everywhere, hex digits only, extensions and trailers without control characters and of limited
 * total size. */
#include "io/http_parse.h"

#include <assert.h>
#include <string.h>

/* --- heads --- */

/* What a byte may be part of. */
enum {
    CH_TOKEN = 1,  /* a method or a header's name */
    CH_VALUE = 2,  /* a header's value */
    CH_TARGET = 4, /* a request target */
    CH_HOST = 8,   /* host and port */
};

#define CH_ALNUM (CH_TOKEN | CH_VALUE | CH_TARGET | CH_HOST)
#define CH_WORD  (CH_TOKEN | CH_VALUE | CH_TARGET)
#define CH_PUNCT (CH_VALUE | CH_TARGET)

static const unsigned char classes[256] = {
    ['\t'] = CH_VALUE,
    [' '] = CH_VALUE,
    ['!'] = CH_WORD,
    ['"'] = CH_PUNCT,
    ['#'] = CH_TOKEN | CH_VALUE, /* a fragment is never sent */
    ['$'] = CH_WORD,
    ['%'] = CH_WORD | CH_HOST,
    ['&' ... '\''] = CH_WORD,
    ['(' ... ')'] = CH_PUNCT,
    ['*' ... '+'] = CH_WORD,
    [','] = CH_PUNCT,
    ['-' ... '.'] = CH_ALNUM,
    ['/'] = CH_PUNCT,
    ['0' ... '9'] = CH_ALNUM,
    [':'] = CH_PUNCT | CH_HOST,
    [';' ... '@'] = CH_PUNCT,
    ['A' ... 'Z'] = CH_ALNUM,
    ['['] = CH_PUNCT | CH_HOST,
    ['\\'] = CH_PUNCT,
    [']'] = CH_PUNCT | CH_HOST,
    ['^'] = CH_WORD,
    ['_'] = CH_ALNUM,
    ['`'] = CH_WORD,
    ['a' ... 'z'] = CH_ALNUM,
    ['{'] = CH_PUNCT,
    ['|'] = CH_WORD,
    ['}'] = CH_PUNCT,
    ['~'] = CH_ALNUM,
    [0x80 ... 0xff] = CH_VALUE,
};

static bool all_of(struct str text, unsigned char class)
{
    for (size_t i = 0; i < text.len; i++)
        if (!(classes[(unsigned char)text.at[i]] & class))
            return false;
    return true;
}

enum http_scan_result http_scan(struct http_scan *scan, struct str bytes, size_t *ret_len)
{
    assert(scan->at <= bytes.len && scan->line <= scan->at);
    while (scan->at < bytes.len) {
        const char *hit = memchr(bytes.at + scan->at, '\n', bytes.len - scan->at);
        size_t end;

        if (!hit) {
            scan->at = bytes.len;
            break;
        }
        end = (size_t)(hit - bytes.at);
        if (end == scan->line || bytes.at[end - 1] != '\r')
            return HTTP_SCAN_BAD; /* a bare LF */
        scan->at = end + 1;
        if (scan->first && end == scan->line + 1) {
            *ret_len = end + 1;
            return HTTP_SCAN_WHOLE;
        }
        scan->line = end + 1;
        if (!scan->first)
            scan->first = end + 1;
    }
    return HTTP_SCAN_MORE;
}

static enum err refuse(struct http_head *head, enum err err, const char *detail)
{
    head->detail = detail;
    return err;
}

/* --- headers that affect framing and routing --- */

bool http_list_has(struct str list, struct str token)
{
    while (list.len > 0)
        if (str_eq_nocase(str_trim(str_cut(&list, ',')), token))
            return true;
    return false;
}

static enum err take_host(struct http_head *head, struct str value)
{
    if (head->has_host)
        return refuse(head, ERR_BAD_REQUEST, "Host is given twice.");
    head->has_host = true;
    if (!all_of(value, CH_HOST))
        return refuse(head, ERR_BAD_REQUEST, "Host is not a host.");
    return ERR_OK;
}

static enum err take_content_length(struct http_head *head, struct str value)
{
    if (head->content_length >= 0)
        return refuse(head, ERR_BAD_REQUEST, "Content-Length is given twice.");
    if (value.len == 0 || value.at[0] < '0' || value.at[0] > '9' ||
        !str_int(value, &head->content_length))
        return refuse(head, ERR_BAD_REQUEST, "Content-Length is not a number.");
    return ERR_OK;
}

static enum err take_transfer_encoding(struct http_head *head, struct str value)
{
    if (head->chunked)
        return refuse(head, ERR_BAD_REQUEST, "Transfer-Encoding is given twice.");
    if (!str_eq_nocase(value, STR("chunked")))
        return refuse(head, ERR_NOT_BUILT, "The only Transfer-Encoding spoken here is chunked.");
    head->chunked = true;
    return ERR_OK;
}

static enum err take_connection(struct http_head *head, struct str value)
{
    if (http_list_has(value, STR("close")))
        head->keep_alive = false;
    else if (head->minor == 0 && http_list_has(value, STR("keep-alive")))
        head->keep_alive = true;
    if (http_list_has(value, STR("upgrade")))
        head->upgrade = true;
    return ERR_OK;
}

static enum err take_expect(struct http_head *head, struct str value)
{
    if (!str_eq_nocase(value, STR("100-continue")))
        return refuse(head, ERR_EXPECTATION, "The only expectation met here is 100-continue.");
    head->expect_continue = head->minor > 0;
    return ERR_OK;
}

static const struct {
    struct str name;
    enum err (*take)(struct http_head *head, struct str value);
} meanings[] = {
    {{"host", 4}, take_host},
    {{"content-length", 14}, take_content_length},
    {{"transfer-encoding", 17}, take_transfer_encoding},
    {{"connection", 10}, take_connection},
    {{"expect", 6}, take_expect},
};

static enum err take_header(struct http_head *head, struct str line)
{
    struct str value;
    size_t colon = 0;

    while (colon < line.len && classes[(unsigned char)line.at[colon]] & CH_TOKEN)
        colon++;
    if (colon == 0)
        return refuse(head, ERR_BAD_REQUEST, "A header line begins with a space or no name.");
    if (colon == line.len || line.at[colon] != ':')
        return refuse(head, ERR_BAD_REQUEST, "A header has no colon right behind its name.");
    value = (struct str){.at = line.at + colon + 1, .len = line.len - colon - 1};
    if (!all_of(value, CH_VALUE))
        return refuse(head, ERR_BAD_REQUEST, "A header's value holds a control character.");
    if (head->header_count == head->header_max)
        return refuse(head, ERR_HEADERS, "There are too many headers.");
    value = str_trim(value);
    line.len = colon;
    head->headers[head->header_count++] = (struct http_header){.name = line, .value = value};
    for (size_t i = 0; i < COUNT_OF(meanings); i++)
        if (str_eq_nocase(line, meanings[i].name))
            return meanings[i].take(head, value);
    return ERR_OK;
}

/* The next line without its CR LF. A CR inside is caught as a control character. */
static struct str take_line(struct str *rest)
{
    struct str line = str_cut(rest, '\n');

    assert(line.len > 0 && line.at[line.len - 1] == '\r'); /* http_scan has checked it */
    line.len--;
    return line;
}

static enum err take_headers(struct http_head *head, struct str rest)
{
    head->content_length = -1;
    head->keep_alive = head->minor > 0;
    for (;;) {
        struct str line = take_line(&rest);
        enum err err;

        if (line.len == 0)
            break;
        err = take_header(head, line);
        if (err)
            return err;
    }
    assert(rest.len == 0);
    if (head->chunked && head->content_length >= 0)
        return refuse(head, ERR_BAD_REQUEST,
                      "Content-Length and Transfer-Encoding exclude each other.");
    if (head->chunked && head->minor == 0)
        return refuse(head, ERR_BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding.");
    return ERR_OK;
}

/* --- start lines --- */

static const struct {
    struct str name;
    enum http_method method;
} methods[] = {
    {{"GET", 3}, HTTP_M_GET},         {{"POST", 4}, HTTP_M_POST},   {{"HEAD", 4}, HTTP_M_HEAD},
    {{"PUT", 3}, HTTP_M_PUT},         {{"PATCH", 5}, HTTP_M_PATCH}, {{"DELETE", 6}, HTTP_M_DELETE},
    {{"OPTIONS", 7}, HTTP_M_OPTIONS},
};

static enum err take_version(struct http_head *head, struct str version)
{
    if (str_eq(version, STR("HTTP/1.1")))
        head->minor = 1;
    else if (str_eq(version, STR("HTTP/1.0")))
        head->minor = 0;
    else if (version.len == 8 && str_starts(version, STR("HTTP/")) && version.at[6] == '.' &&
             version.at[5] >= '0' && version.at[5] <= '9' && version.at[7] >= '0' &&
             version.at[7] <= '9')
        return refuse(head, ERR_HTTP_VERSION, "Only HTTP/1.0 and HTTP/1.1 are spoken here.");
    else
        return refuse(head, ERR_BAD_REQUEST, "The request line does not end in a version.");
    return ERR_OK;
}

/* "/path?query", "http://host/path?query", or "*" for OPTIONS. */
static enum err take_target(struct http_head *head, struct str target)
{
    struct str rest = target;
    const char *query;

    head->target = target;
    if (target.len == 0 || !all_of(target, CH_TARGET))
        return refuse(head, ERR_BAD_REQUEST, "The request target holds a forbidden character.");
    if (target.at[0] != '/' && !str_eq(target, STR("*"))) {
        size_t scheme = str_starts(target, STR("http://"))    ? 7
                        : str_starts(target, STR("https://")) ? 8
                                                              : 0;
        size_t end = scheme;

        while (end < target.len && target.at[end] != '/' && target.at[end] != '?')
            end++;
        head->authority = (struct str){.at = target.at + scheme, .len = end - scheme};
        if (scheme == 0 || head->authority.len == 0 || !all_of(head->authority, CH_HOST))
            return refuse(head, ERR_BAD_REQUEST, "The request target is no path and no URL.");
        rest = str_from(target, end);
    }
    if (target.at[0] == '*' && head->method != HTTP_M_OPTIONS)
        return refuse(head, ERR_BAD_REQUEST, "Only OPTIONS can ask for *.");
    query = rest.len ? memchr(rest.at, '?', rest.len) : NULL;
    head->path = (struct str){.at = rest.at, .len = query ? (size_t)(query - rest.at) : rest.len};
    head->query = query ? (struct str){.at = query + 1, .len = rest.len - head->path.len - 1}
                        : (struct str){.at = "", .len = 0};
    if (head->path.len == 0)
        head->path = STR("/");
    return ERR_OK;
}

static void begin(struct http_head *head)
{
    assert(head->headers && head->header_max > 0);
    *head = (struct http_head){.headers = head->headers, .header_max = head->header_max};
}

enum err http_head_request(struct http_head *head, struct str text)
{
    struct str line = take_line(&text);
    struct str method = str_cut(&line, ' ');
    struct str target = str_cut(&line, ' ');
    enum err err;

    begin(head);
    if (method.len == 0 || !all_of(method, CH_TOKEN))
        return refuse(head, ERR_BAD_REQUEST, "The request line does not begin with a method.");
    head->method = HTTP_M_OTHER;
    for (size_t i = 0; i < COUNT_OF(methods) && head->method == HTTP_M_OTHER; i++)
        if (str_eq(method, methods[i].name))
            head->method = methods[i].method;
    err = take_version(head, line);
    if (!err)
        err = take_target(head, target);
    if (!err)
        err = take_headers(head, text);
    if (err)
        return err;
    if (!head->has_host && head->minor > 0)
        return refuse(head, ERR_BAD_REQUEST, "Host is missing.");
    for (size_t i = 0; head->authority.at && i < head->header_count; i++)
        if (str_eq_nocase(head->headers[i].name, STR("host")))
            head->headers[i].value = head->authority;
    return ERR_OK;
}

enum err http_head_response(struct http_head *head, struct str text)
{
    struct str line = take_line(&text);
    struct str version = str_cut(&line, ' ');
    struct str status = str_cut(&line, ' ');
    int64_t number;
    enum err err;

    begin(head);
    err = take_version(head, version);
    if (err)
        return err;
    if (status.len != 3 || !str_int(status, &number) || number < 100 || !all_of(line, CH_VALUE))
        return refuse(head, ERR_BAD_REQUEST, "The status line is malformed.");
    head->status = (int)number;
    return take_headers(head, text);
}

struct str http_header_find(const struct http_header *headers, size_t count, const char *name)
{
    struct str wanted = str_of(name);

    for (size_t i = 0; i < count; i++)
        if (str_eq_nocase(headers[i].name, wanted))
            return headers[i].value;
    return STR_NONE;
}

/* --- escapes --- */

bool http_percent_decode(struct str text, bool plus, char *to, size_t *ret_len)
{
    size_t len = 0;

    for (size_t i = 0; i < text.len; i++) {
        char c = text.at[i];

        if (c == '%') {
            if (text.len - i < 3 || str_hex_digit(text.at[i + 1]) < 0 ||
                str_hex_digit(text.at[i + 2]) < 0)
                return false;
            c = (char)(str_hex_digit(text.at[i + 1]) * 16 + str_hex_digit(text.at[i + 2]));
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        to[len++] = c;
    }
    *ret_len = len;
    return true;
}

/* --- bodies --- */

enum state {
    SIZED,     /* `left` bytes of body */
    SIZE,      /* hex digits */
    EXTENSION, /* after a ';', ignored */
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER,      /* at the start of a line */
    TRAILER_NAME, /* a trailer has the form of a header, but is ignored */
    TRAILER_VALUE,
    TRAILER_LF,
    END_LF,
    DONE,
};

enum { SIZE_DIGITS_MAX = 8 };

void http_body_sized(struct http_body *body, uint64_t length)
{
    *body = (struct http_body){.left = length, .state = length > 0 ? SIZED : DONE};
}

void http_body_chunked(struct http_body *body)
{
    *body = (struct http_body){.state = SIZE};
}

bool http_body_done(const struct http_body *body)
{
    return body->state == DONE;
}

static bool step_line(struct http_body *body, char c, enum state end)
{
    body->overhead++;
    if (c == '\r')
        body->state = (uint8_t)end;
    return c == '\r' || classes[(unsigned char)c] & CH_VALUE;
}

/* A trailer may not repeat a header that affects framing: another parser could act on it. */
static bool step_trailer_name(struct http_body *body, char c)
{
    static const struct str framing[] = {
        {"content-length", 14}, {"transfer-encoding", 17}, {"host", 4}, {"connection", 10}};

    body->overhead++;
    if (c == ':') {
        body->state = TRAILER_VALUE;
        for (size_t i = 0; i < COUNT_OF(framing); i++)
            if (str_eq_nocase((struct str){.at = body->name, .len = body->name_len}, framing[i]))
                return false;
        return true;
    }
    if (body->name_len < sizeof body->name) /* no longer name is forbidden */
        body->name[body->name_len++] = c;
    return classes[(unsigned char)c] & CH_TOKEN;
}

static bool expect(struct http_body *body, char c, char wanted, enum state next)
{
    if (c == wanted)
        body->state = (uint8_t)next;
    return c == wanted;
}

static bool step(struct http_body *body, char c)
{
    int digit;

    switch ((enum state)body->state) {
    case SIZE:
        digit = str_hex_digit(c);
        if (digit >= 0) {
            body->left = body->left * 16 + (uint64_t)digit;
            return ++body->digits <= SIZE_DIGITS_MAX;
        }
        if (body->digits == 0)
            return false;
        body->state = c == ';' ? EXTENSION : SIZE_LF;
        return c == ';' || c == '\r';
    case EXTENSION:
        return step_line(body, c, SIZE_LF);
    case SIZE_LF:
        body->digits = 0;
        return expect(body, c, '\n', body->left > 0 ? DATA : TRAILER);
    case DATA_CR:
        return expect(body, c, '\r', DATA_LF);
    case DATA_LF:
        return expect(body, c, '\n', SIZE);
    case TRAILER:
        body->name_len = 0;
        body->state = c == '\r' ? END_LF : TRAILER_NAME;
        return c == '\r' || (c != ':' && step_trailer_name(body, c));
    case TRAILER_NAME:
        return step_trailer_name(body, c);
    case TRAILER_VALUE:
        return step_line(body, c, TRAILER_LF);
    case TRAILER_LF:
        return expect(body, c, '\n', TRAILER);
    case END_LF:
        return expect(body, c, '\n', DONE);
    case SIZED:
    case DATA:
    case DONE:
        break;
    }
    assert(!"bytes of the body are not framing");
    return false;
}

enum err http_body_read(struct http_body *body, struct str bytes, size_t *ret_used,
                        struct str *ret_piece)
{
    size_t used = 0;

    *ret_piece = STR_NONE;
    while (used < bytes.len && body->state != DONE) {
        if (body->state == SIZED || body->state == DATA) {
            size_t len = bytes.len - used < body->left ? bytes.len - used : (size_t)body->left;

            assert(len > 0);
            *ret_piece = (struct str){.at = bytes.at + used, .len = len};
            body->left -= len;
            if (body->left == 0)
                body->state = body->state == SIZED ? DONE : DATA_CR;
            used += len;
            break;
        }
        if (!step(body, bytes.at[used++]))
            return ERR_BAD_REQUEST;
        if (body->overhead > HTTP_BODY_OVERHEAD_MAX)
            return ERR_HEADERS;
    }
    *ret_used = used;
    return ERR_OK;
}
