/* The page and its files. They change only with the program: a browser revalidates its copy each
 * time and usually gets a 304. */
#include <assert.h>

#include "server/api.h"
#include "server/page.h"
#include "server/route.h"

/* No script, style or connection but our own; the page may not be framed by another. */
#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "                    \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

/* The page needs none of a browser's devices. */
#define PERMISSIONS                                                                                \
    "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()"

enum { HEADERS_MAX = 12 };

static const struct page_file *file_find(struct str name)
{
    for (size_t i = 0; i < page_file_count; i++)
        if (str_is(name, page_files[i].name))
            return &page_files[i];
    return NULL;
}

/* "gzip, deflate, br": is gzip in the list, and not excluded (gzip;q=0)? */
static bool takes_gzip(const struct http_request *req)
{
    struct str rest = http_header_get(req, "Accept-Encoding");

    while (rest.len) {
        struct str item = str_cut(&rest, ',');
        struct str coding = str_trim(str_cut(&item, ';'));

        if (str_eq_nocase(coding, STR("gzip")))
            return !str_is(str_trim(item), "q=0");
    }
    return false;
}

static void file_answer(struct call *call, const struct page_file *file)
{
    const struct settings *settings = call->worker->server->settings;
    struct buf tag = {0};
    bool packed = takes_gzip(call->req);

    assert(file->plain_len > 0 && file->packed_len > 0);
    buf_fmt(&tag, "\"%s%s\"", file->etag, packed ? "-gz" : "");
    struct http_header headers[HEADERS_MAX] = {
        {STR("ETag"), buf_view(&tag)},
        {STR("Cache-Control"), STR("no-cache")},
        {STR("Vary"), STR("Accept-Encoding")},
        {STR("Content-Security-Policy"), STR(POLICY)},
        {STR("Referrer-Policy"), STR("no-referrer")},
        {STR("Cross-Origin-Opener-Policy"), STR("same-origin")},
        {STR("Cross-Origin-Resource-Policy"), STR("same-origin")},
        {STR("Permissions-Policy"), STR(PERMISSIONS)},
    };
    struct http_reply reply = {
        .status = 200, .content_type = file->content_type, .headers = headers};

    while (headers[reply.header_count].name.len)
        reply.header_count++;
    /* HSTS applies to all ports of a host name: not for loopback, where other services listen too.
     */
    if (settings->tls_cert.len && !net_addr_is_loopback(arena_cstr(call->arena, settings->listen)))
        headers[reply.header_count++] =
            (struct http_header){STR("Strict-Transport-Security"), STR("max-age=31536000")};
    if (etag_has_copy(call->req, buf_view(&tag))) {
        reply.status = 304;
    } else if (packed) {
        headers[reply.header_count++] = (struct http_header){STR("Content-Encoding"), STR("gzip")};
        reply.body = (struct str){.at = (const char *)file->packed, .len = file->packed_len};
    } else {
        reply.body = (struct str){.at = (const char *)file->plain, .len = file->plain_len};
    }
    call_reply(call, &reply);
    buf_free(&tag);
}

void api_page(struct call *call)
{
    static const char text[] = "berth " BERTH_VERSION ", built without its page.\n"
                               "\n"
                               "GET  /v1/nodes  /v1/jobs  /v1/pools  /metrics  /readyz\n"
                               "POST /v1/node/register  /v1/dispatch/f2f  /v1/dispatch/task\n"
                               "\n"
                               "PROTOCOL.md has every route; `berth --help` the commands.\n";
    const struct page_file *file = file_find(STR(""));

    if (file) {
        file_answer(call, file);
        return;
    }
    struct http_reply reply = {
        .status = 200, .content_type = "text/plain; charset=utf-8", .body = STR(text)};
    call_reply(call, &reply);
}

void api_page_file(struct call *call)
{
    const struct page_file *file = file_find(call->params[0]);

    if (file)
        file_answer(call, file);
    else
        call_error(call, ERR_NOT_FOUND, "", "The page has no file \"" STR_FMT "\".",
                   STR_ARG(call->params[0]));
}
