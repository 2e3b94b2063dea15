/* The lists of the settings, and what holds without any: the services of this machine are open to
 * whoever is on it anyway, but not to somebody elsewhere who has a token. */
#include "server/urls.h"

#include <assert.h>

static const struct {
    const char *field, *setting;
    size_t offset; /* of the setting */
} uses[] = {
    [URL_ENDPOINT] = {"endpoint", "endpoint_urls", offsetof(struct settings, endpoint_urls)},
    [URL_CALLBACK] = {"callback_url", "callback_urls", offsetof(struct settings, callback_urls)},
};

bool urls_allowed(struct server *server, enum url_use use, struct str url)
{
    static const struct str loopback = STR("loopback");
    const struct settings *settings = server->settings;
    const struct strs *list;

    assert(use < COUNT_OF(uses));
    list = (const struct strs *)((const char *)settings + uses[use].offset);
    if (!list->count)
        list = &settings->allow_urls;
    if (!list->count && !server->guarded)
        return client_url_allowed(url, &loopback, 1);
    return client_url_allowed(url, list->at, list->count);
}

enum err urls_check(struct server *server, enum url_use use, struct str url, struct problem *why)
{
    if (!url.len || urls_allowed(server, use, url))
        return ERR_OK;
    return problem_set(why, ERR_BAD_FIELD, uses[use].field,
                       "%s is not among the URLs this server may call (setting %s, or allow_urls "
                       "for all; with tokens there are none by default).",
                       uses[use].field, uses[use].setting);
}
