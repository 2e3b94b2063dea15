/* Where the server is and how to be let in: URLs and the token. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config_private.h"
#include "io/url.h"

#define CONNECT_PATH "/v1/node/connect"

enum { TOKEN_BYTES_MAX = 4096 };

enum err config_read_file(const char *path, size_t max, struct arena *arena, struct str *ret_text,
                          struct problem *why)
{
    char *text = arena_raw(arena, max + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t got = 0;

    if (fd < 0)
        return problem_set(why, ERR_BAD_CONFIG, "", "Cannot open %s: %s.", path, strerror(errno));
    while (len <= max && (got = read(fd, text + len, max + 1 - len)) > 0)
        len += (size_t)got;
    close(fd);
    if (got < 0)
        return problem_set(why, ERR_BAD_CONFIG, "", "Cannot read %s: %s.", path, strerror(errno));
    *ret_text = (struct str){.at = text, .len = len};
    return ERR_OK;
}

/* The first line of the file, or the environment: never a flag, which everybody can see in ps. */
enum err config_read_token(struct config_source *source, struct problem *why)
{
    struct config *config = &source->config;
    char *env = getenv("BERTH_TOKEN");
    struct str text;

    if (env && *env && !config->token_file.len)
        config->token = arena_str(&source->arena, str_of(env));
    if (env) {
        explicit_bzero(env, strlen(env)); /* or every job could read it in /proc */
        unsetenv("BERTH_TOKEN");
    }
    if (config->token_file.len) {
        const char *path = arena_cstr(&source->arena, config->token_file);
        enum err err = config_read_file(path, TOKEN_BYTES_MAX, &source->arena, &text, why);

        if (err)
            return err;
        config->token = str_cut(&text, '\n');
        if (config->token.len && config->token.at[config->token.len - 1] == '\r')
            config->token.len--;
        if (!config->token.len)
            return problem_set(why, ERR_BAD_CONFIG, "token_file", "%s is empty.", path);
    }
    if (config->token.at && (!str_is_text(config->token) || config->token.len > TOKEN_BYTES_MAX))
        return problem_set(why, ERR_BAD_CONFIG, "token",
                           "The token must be one line of at most %d bytes.", TOKEN_BYTES_MAX);
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
