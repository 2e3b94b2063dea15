/* A state per kind of byte. Nothing optional is accepted in the framing: CR LF everywhere, hex
 * digits only, extensions and trailers without control characters and only so many of them. */
#include "io/http_body.h"

#include <assert.h>
#include <string.h>

enum state {
    SIZED,     /* `left` bytes of body */
    SIZE,      /* hex digits */
    EXTENSION, /* behind a ';', thrown away */
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER,      /* at the start of a line */
    TRAILER_NAME, /* a trailer is a header like any other, but thrown away */
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

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool is_text(char c)
{
    return c == '\t' || ((unsigned char)c >= 0x20 && c != 0x7f);
}

static bool is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

static bool step_size(struct http_body *body, char c)
{
    int digit = hex(c);

    if (digit >= 0) {
        body->left = body->left * 16 + (uint64_t)digit;
        return ++body->digits <= SIZE_DIGITS_MAX;
    }
    if (body->digits == 0)
        return false;
    body->state = c == ';' ? EXTENSION : SIZE_LF;
    return c == ';' || c == '\r';
}

static bool step_line(struct http_body *body, char c, enum state end)
{
    body->overhead++;
    if (c == '\r')
        body->state = (uint8_t)end;
    return c == '\r' || is_text(c);
}

static bool step_size_lf(struct http_body *body, char c)
{
    body->state = body->left > 0 ? DATA : TRAILER;
    body->digits = 0;
    return c == '\n';
}

/* A trailer may not say anew what the head has said: another reader could believe it. */
static bool is_harmless(struct str name)
{
    static const struct str framing[] = {
        {"content-length", 14}, {"transfer-encoding", 17}, {"host", 4}, {"connection", 10}};

    for (size_t i = 0; i < COUNT_OF(framing); i++)
        if (str_eq_nocase(name, framing[i]))
            return false;
    return true;
}

static bool step_trailer_name(struct http_body *body, char c)
{
    body->overhead++;
    if (c == ':') {
        body->state = TRAILER_VALUE;
        return is_harmless((struct str){.at = body->name, .len = body->name_len});
    }
    if (body->name_len < sizeof body->name) /* no longer name is forbidden */
        body->name[body->name_len++] = c;
    return is_token(c);
}

static bool step_trailer(struct http_body *body, char c)
{
    body->name_len = 0;
    if (c == '\r') {
        body->state = END_LF;
        return true;
    }
    body->state = TRAILER_NAME;
    return c != ':' && step_trailer_name(body, c);
}

static bool expect(struct http_body *body, char c, char wanted, enum state next)
{
    if (c == wanted)
        body->state = (uint8_t)next;
    return c == wanted;
}

static bool step(struct http_body *body, char c)
{
    switch ((enum state)body->state) {
    case SIZE:
        return step_size(body, c);
    case EXTENSION:
        return step_line(body, c, SIZE_LF);
    case SIZE_LF:
        return step_size_lf(body, c);
    case DATA_CR:
        return expect(body, c, '\r', DATA_LF);
    case DATA_LF:
        return expect(body, c, '\n', SIZE);
    case TRAILER:
        return step_trailer(body, c);
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

static void take_piece(struct http_body *body, struct str bytes, struct str *ret_piece)
{
    size_t len = bytes.len < body->left ? bytes.len : (size_t)body->left;

    assert(len > 0);
    *ret_piece = (struct str){.at = bytes.at, .len = len};
    body->left -= len;
    if (body->left == 0)
        body->state = body->state == SIZED ? DONE : DATA_CR;
}

enum err http_body_read(struct http_body *body, struct str bytes, size_t *ret_used,
                        struct str *ret_piece)
{
    size_t used = 0;

    *ret_piece = STR_NONE;
    while (used < bytes.len && body->state != DONE) {
        if (body->state == SIZED || body->state == DATA) {
            take_piece(body, (struct str){.at = bytes.at + used, .len = bytes.len - used},
                       ret_piece);
            used += ret_piece->len;
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
