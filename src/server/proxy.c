/* X-Forwarded-For and X-Forwarded-Proto. */
#include "server/proxy.h"

#include <assert.h>
#include <string.h>

#include "io/ip.h"

/* Each proxy appends the address that called it: only what a trusted one has written is true. */
#define FORWARDED_FOR "X-Forwarded-For"

static bool is_trusted(const struct ip_ranges *proxies, const struct ip *ip)
{
    for (size_t i = 0; i < proxies->count; i++)
        if (ip_range_has(&proxies->at[i], ip))
            return true;
    return false;
}

/* Cuts *rest at its last comma: returns what stands behind it, leaves what stands before (rest->at
 * is NULL when there was none). */
static struct str cut_last(struct str *rest)
{
    size_t from = rest->len;
    struct str last;

    while (from > 0 && rest->at[from - 1] != ',')
        from--;
    last = (struct str){.at = rest->at + from, .len = rest->len - from};
    *rest = from > 0 ? (struct str){.at = rest->at, .len = from - 1} : STR_NONE;
    return str_trim(last);
}

/* From the last hop to the first, as long as a trusted one wrote it down. What is not an address
 * ends the walk: whoever wrote it is the last that we know. */
static struct ip caller_behind(const struct http_request *req, const struct ip_ranges *proxies,
                               struct ip hop)
{
    for (size_t i = req->header_count; i-- > 0;) {
        struct str rest = req->headers[i].value;

        if (!str_eq_nocase(req->headers[i].name, STR(FORWARDED_FOR)))
            continue;
        do {
            struct ip before;

            if (!ip_parse(cut_last(&rest), &before))
                return hop;
            hop = before;
            if (!is_trusted(proxies, &hop))
                return hop;
        } while (rest.at);
    }
    return hop;
}

void proxy_resolve(struct call *call)
{
    const struct ip_ranges *proxies = &call->worker->server->settings->proxies;
    struct http_request *req = call->req;
    char text[IP_TEXT_MAX];
    struct ip peer, caller;

    if (!proxies->count || !ip_parse(str_of(req->peer), &peer) || !is_trusted(proxies, &peer))
        return;
    call->by_proxy = true;
    caller = caller_behind(req, proxies, peer);
    ip_text(&caller, text);
    http_caller(req, ip_eq(&caller, &peer) ? req->peer : arena_cstr(call->arena, str_of(text)),
                ip_peer_id(&caller));
}

/* Every hop that is told of must have been encrypted. */
static bool says_https(const struct http_request *req)
{
    bool said = false;

    for (size_t i = 0; i < req->header_count; i++) {
        struct str rest = req->headers[i].value;

        if (!str_eq_nocase(req->headers[i].name, STR("X-Forwarded-Proto")))
            continue;
        do {
            if (!str_eq_nocase(cut_last(&rest), STR("https")))
                return false;
            said = true;
        } while (rest.at);
    }
    return said;
}

void proxy_tell_clear(const struct call *call)
{
    struct server *server = call->worker->server;
    const struct settings *settings = server->settings;
    struct ip caller;

    /* Without proxies the start has told all there is to tell. */
    if (!settings->proxies.count || settings->tls_cert.len || atomic_load(&server->clear_told) ||
        (call->by_proxy && says_https(call->req)) || !ip_parse(str_of(call->req->peer), &caller) ||
        ip_is_loopback(&caller) || atomic_exchange(&server->clear_told, true))
        return;
    log_event(LOG_WARN, "server.in_the_clear", KC("peer", call->req->peer),
              KC("reason", call->by_proxy
                               ? "a token came through a proxy that does not say that it was "
                                 "called over TLS: have it set X-Forwarded-Proto"
                               : "a token came unencrypted, and not through a trusted proxy"));
}
