#include "http_oracle.h"

#include <http_parser.h>
#include <string.h>

void http_oracle_line(struct buf *lines, const char *method, struct str query)
{
    buf_fmt(lines, "%s ?" STR_FMT, method, STR_ARG(query));
}

void http_oracle_header(struct buf *lines, struct str name, struct str value)
{
    if (str_eq_nocase(name, STR("host")))
        return; /* ours is replaced by the authority of an absolute target */
    buf_fmt(lines, " %zu:", name.len);
    buf_str(lines, name);
    buf_fmt(lines, "=%zu:", value.len);
    buf_str(lines, value);
}

void http_oracle_body(struct buf *lines, struct str body)
{
    buf_fmt(lines, " body %zu:", body.len);
    buf_str(lines, body);
    buf_char(lines, '\n');
}

/* The message being read. */
struct reading {
    struct buf *lines;
    struct buf line;
    struct buf body;
    struct str url;
    struct str name;
    struct str value;
    bool trailing; /* headers after the body do not count */
    bool whole;
};

static struct str grown(struct str slice, const char *at, size_t len)
{
    return slice.at ? (struct str){.at = slice.at, .len = (size_t)(at + len - slice.at)}
                    : (struct str){.at = at, .len = len};
}

static int on_url(http_parser *parser, const char *at, size_t len)
{
    struct reading *r = parser->data;

    r->url = grown(r->url, at, len);
    return 0;
}

static void end_header(struct reading *r)
{
    if (r->name.at && !r->trailing)
        http_oracle_header(&r->line, r->name, str_trim(r->value));
    r->name = r->value = STR_NONE;
}

static void begin_line(http_parser *parser)
{
    struct reading *r = parser->data;
    const char *query = r->url.len ? memchr(r->url.at, '?', r->url.len) : NULL;
    struct str rest = STR("");

    if (r->line.len > 0)
        return;
    if (query)
        rest = (struct str){.at = query + 1, .len = r->url.len - (size_t)(query + 1 - r->url.at)};
    http_oracle_line(&r->line, http_method_str(parser->method), rest);
}

static int on_name(http_parser *parser, const char *at, size_t len)
{
    struct reading *r = parser->data;

    begin_line(parser);
    if (r->value.at)
        end_header(r);
    r->name = grown(r->name, at, len);
    return 0;
}

static int on_value(http_parser *parser, const char *at, size_t len)
{
    struct reading *r = parser->data;

    r->value = grown(r->value, at, len);
    return 0;
}

static int on_head(http_parser *parser)
{
    struct reading *r = parser->data;

    begin_line(parser);
    end_header(r);
    r->trailing = true;
    return 0;
}

static int on_body(http_parser *parser, const char *at, size_t len)
{
    struct reading *r = parser->data;

    buf_add(&r->body, at, len);
    return 0;
}

static int on_whole(http_parser *parser)
{
    struct reading *r = parser->data;

    http_oracle_body(&r->line, buf_view(&r->body));
    buf_str(r->lines, buf_view(&r->line));
    r->whole = true;
    http_parser_pause(parser, 1);
    return 0;
}

static const http_parser_settings settings = {.on_url = on_url,
                                              .on_header_field = on_name,
                                              .on_header_value = on_value,
                                              .on_headers_complete = on_head,
                                              .on_body = on_body,
                                              .on_message_complete = on_whole};

void http_oracle(struct str bytes, struct buf *ret_lines)
{
    bool whole;

    do { /* a new parser for each request, so that an upgrade does not end it */
        struct reading r = {.lines = ret_lines};
        http_parser parser;
        size_t used;

        http_parser_init(&parser, HTTP_REQUEST);
        parser.data = &r;
        used = http_parser_execute(&parser, &settings, bytes.at, bytes.len);
        bytes = (struct str){.at = bytes.at + used, .len = bytes.len - used};
        whole = r.whole;
        buf_free(&r.line);
        buf_free(&r.body);
    } while (whole && bytes.len > 0);
}
