/* Where the server is and how to be let in: URLs and the token. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/access.h"
#include "agent/config_private.h"
#include "base/file.h"
#include "base/url.h"

#define CONNECT_PATH "/v1/node/connect"

enum err config_read_file(const char *path, size_t max, struct arena *arena, struct str *ret_text,
                          struct problem *why)
{
    enum err err = file_read(path, max, arena, ret_text, why);

    if (err)
        why->err = ERR_BAD_CONFIG;
    return err ? ERR_BAD_CONFIG : ERR_OK;
}

/* The first line of the file, or the environment: never a flag, which everybody can see in ps. */
enum err config_read_token(struct config_source *source, struct problem *why)
{
    struct config *config = &source->config;
    char *env = getenv("BERTH_TOKEN");

    if (env && *env && !config->token_file.len)
        config->token = arena_str(&source->arena, str_of(env));
    if (env) {
        explicit_bzero(env, strlen(env)); /* or every job could read it in /proc */
        unsetenv("BERTH_TOKEN");
    }
    if (config->token_file.len) {
        const char *path = arena_cstr(&source->arena, config->token_file);
        enum err err = access_read_token(path, &source->arena, &config->token, why);

        if (err)
            return err;
    }
    if (config->token.at && (!str_is_text(config->token) || config->token.len > ACCESS_TOKEN_MAX))
        return problem_set(why, ERR_BAD_CONFIG, "token",
                           "The token must be one line of at most %d bytes.", ACCESS_TOKEN_MAX);
    if (!config->tls_cert.len != !config->tls_key.len)
        return problem_set(why, ERR_BAD_CONFIG, "tls_key",
                           "tls_cert and tls_key must be given together.");
    return ERR_OK;
}

/* http and https mean ws and wss: people copy the address from their browser. */
static enum err read_url(struct config_source *source, struct str text, struct problem *why)
{
    static const struct {
        const char *given, *scheme;
        bool tls;
    } rows[] = {
        {"http", "ws", false}, {"https", "wss", true}, {"ws", "ws", false}, {"wss", "wss", true}};
    struct config *config = &source->config;
    struct url url;

    if (!memmem(text.at, text.len, "://", 3))
        text = arena_fmt(&source->arena, "http://" STR_FMT, STR_ARG(text));
    if (!url_parse(text, &url) || !(str_is(url.target, "/") || str_is(url.target, CONNECT_PATH)))
        return problem_set(why, ERR_BAD_CONFIG, "server",
                           "server must be a URL like http://127.0.0.1:7420, not \"" STR_FMT "\".",
                           STR_ARG(text));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (!str_eq_nocase(url.scheme, str_of(rows[i].given)))
            continue;
        int port = url.port_number ? url.port_number : rows[i].tls ? 443 : 80;

        config->tls |= rows[i].tls;
        config->urls[config->url_count++] =
            arena_fmt(&source->arena, "%s://%s" STR_FMT "%s:%d" CONNECT_PATH, rows[i].scheme,
                      url.is_v6 ? "[" : "", STR_ARG(url.host), url.is_v6 ? "]" : "", port)
                .at;
        return ERR_OK;
    }
    return problem_set(why, ERR_BAD_CONFIG, "server",
                       "server must begin with http, https, ws or wss, not \"" STR_FMT "\".",
                       STR_ARG(url.scheme));
}

enum err config_read_urls(struct config_source *source, struct problem *why)
{
    struct str rest = source->config.server;

    while (rest.at) {
        struct str text = str_trim(str_cut(&rest, ','));
        enum err err;

        if (source->config.url_count == CONFIG_URLS_MAX)
            return problem_set(why, ERR_BAD_CONFIG, "server", "server takes at most %d URLs.",
                               CONFIG_URLS_MAX);
        err = read_url(source, text, why);
        if (err)
            return err;
    }
    assert(source->config.url_count > 0);
    return ERR_OK;
}
