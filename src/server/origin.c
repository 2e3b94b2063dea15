/* Host, Origin and what browsers tell of a request's site. */
#include "server/origin.h"

#include <assert.h>
#include <string.h>

/* The host of "name", "name:port", "[::1]:port". */
static struct str host_only(struct str host)
{
    if (host.len && host.at[0] == '[') {
        const char *end = memchr(host.at, ']', host.len);

        return end ? (struct str){.at = host.at, .len = (size_t)(end - host.at) + 1} : host;
    }
    return str_cut(&host, ':');
}

static bool host_allowed(const struct settings *settings, struct str host)
{
    static const char *const own[] = {"localhost", "127.0.0.1", "[::1]"};
    struct str name = host_only(host);

    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (str_eq_nocase(name, str_of(own[i])))
            return true;
    if (str_eq_nocase(name, host_only(settings->listen)))
        return true;
    for (size_t i = 0; i < settings->hosts.count; i++)
        if (str_eq_nocase(name, settings->hosts.at[i]) ||
            str_eq_nocase(host, settings->hosts.at[i]))
            return true;
    return false;
}

/* A browser says so itself, also where it sends no Origin (images, scripts, plain GETs): some GETs
 * take something. Only the page itself may be linked to. */
static bool comes_from_elsewhere(const struct http_request *req)
{
    struct str site = http_header_get(req, "Sec-Fetch-Site");
    bool is_link = str_is(req->path, "/") &&
                   (req->method == HTTP_M_GET || req->method == HTTP_M_HEAD) &&
                   str_is(http_header_get(req, "Sec-Fetch-Mode"), "navigate");

    return site.at && !str_is(site, "same-origin") && !str_is(site, "none") && !is_link;
}

enum err origin_check(const struct http_request *req, const struct settings *settings,
                      struct problem *why)
{
    struct str host = http_header_get(req, "Host");
    struct str origin = http_header_get(req, "Origin");

    assert(settings->listen.at);
    if (host.at && !host_allowed(settings, host))
        return problem_set(why, ERR_FORBIDDEN, "Host",
                           "Host is not this server's: use a loopback address, or list it in the "
                           "setting hosts.");
    if (comes_from_elsewhere(req))
        return problem_set(why, ERR_FORBIDDEN, "Sec-Fetch-Site",
                           "Requests from pages of another origin are not taken.");
    if (!origin.at)
        return ERR_OK;
    struct str rest = origin;
    if (str_starts(rest, STR("http://")))
        rest = (struct str){.at = rest.at + 7, .len = rest.len - 7};
    else if (str_starts(rest, STR("https://")))
        rest = (struct str){.at = rest.at + 8, .len = rest.len - 8};
    else
        rest = STR_NONE;
    /* The very host and port we were called by: another port on this machine is another program. */
    if (!rest.at || !str_eq_nocase(rest, host))
        return problem_set(why, ERR_FORBIDDEN, "Origin",
                           "Requests from pages of another origin are not taken.");
    return ERR_OK;
}
