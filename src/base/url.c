/* One pass, left to right. The port "*" is accepted for the patterns of client_url_allowed; its
 * number is -1. */
#include "base/url.h"

#include <arpa/inet.h>
#include <string.h>

static bool is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool take_scheme(struct str *rest, struct url *url)
{
    size_t len = 0;

    while (len < rest->len && is_alpha(rest->at[len]))
        len++;
    url->scheme = (struct str){.at = rest->at, .len = len};
    *rest = str_from(*rest, len);
    if (len == 0 || !str_starts(*rest, STR("://")))
        return false;
    *rest = str_from(*rest, 3);
    return true;
}

static bool take_host(struct str *rest, struct url *url)
{
    size_t len = 0;
    char text[64];
    struct in6_addr v6;

    url->is_v6 = rest->len > 0 && rest->at[0] == '[';
    if (url->is_v6) {
        const char *end = memchr(rest->at, ']', rest->len);

        if (!end)
            return false;
        url->host = (struct str){.at = rest->at + 1, .len = (size_t)(end - rest->at) - 1};
        len = url->host.len + 2;
        if (!str_copy(url->host, text, sizeof text) || inet_pton(AF_INET6, text, &v6) != 1)
            return false;
    } else {
        while (len < rest->len &&
               (is_alpha(rest->at[len]) || (rest->at[len] >= '0' && rest->at[len] <= '9') ||
                rest->at[len] == '.' || rest->at[len] == '-' || rest->at[len] == '_'))
            len++;
        url->host = (struct str){.at = rest->at, .len = len};
    }
    *rest = str_from(*rest, len);
    return url->host.len > 0 && url->host.len < 256;
}

static bool take_port(struct str *rest, struct url *url)
{
    struct str port;
    int64_t number;
    size_t len = 1;

    url->port_number = 0;
    if (rest->len == 0 || rest->at[0] != ':')
        return true;
    while (len < rest->len &&
           ((rest->at[len] >= '0' && rest->at[len] <= '9') || rest->at[len] == '*'))
        len++;
    port = (struct str){.at = rest->at + 1, .len = len - 1};
    *rest = str_from(*rest, len);
    if (str_is(port, "*")) {
        url->port_number = -1;
        return true;
    }
    if (port.len > 5 || !str_int(port, &number) || number < 1 || number > 65535)
        return false;
    url->port_number = (int)number;
    return true;
}

bool url_parse(struct str text, struct url *ret_url)
{
    struct url url = {0};

    if (text.len == 0 || !take_scheme(&text, &url) || !take_host(&text, &url) ||
        !take_port(&text, &url))
        return false;
    if (text.len > 0 && text.at[0] != '/')
        return false; /* userinfo, or a query right after the host */
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.at[i] <= ' ' || (unsigned char)text.at[i] >= 0x7f ||
            text.at[i] == '#' || text.at[i] == '\\')
            return false;
    url.target = text.len > 0 ? text : STR("/");
    *ret_url = url;
    return true;
}

bool url_is_loopback(const struct url *url)
{
    struct in6_addr v6;
    struct in_addr v4;
    char host[64];

    if (str_eq_nocase(url->host, STR("localhost")))
        return true;
    if (!str_copy(url->host, host, sizeof host))
        return false;
    if (url->is_v6)
        return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

bool url_is_exposed(struct str text)
{
    struct url url;

    return url_parse(text, &url) &&
           (str_eq_nocase(url.scheme, STR("http")) || str_eq_nocase(url.scheme, STR("ws"))) &&
           !url_is_loopback(&url);
}
