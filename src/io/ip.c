/* Addresses as text and as numbers. */
#include "io/ip.h"

#include <arpa/inet.h>
#include <assert.h>
#include <string.h>

enum { BITS = 128, V4_BITS = 32, V4_AT = 12 };

static const unsigned char mapped[V4_AT] = {[10] = 0xff, [11] = 0xff};

static bool is_v4(const struct ip *ip)
{
    return memcmp(ip->octets, mapped, sizeof mapped) == 0;
}

struct ip ip_of_v4(const struct in_addr *addr)
{
    struct ip ip;

    memcpy(ip.octets, mapped, sizeof mapped);
    memcpy(ip.octets + V4_AT, addr, sizeof *addr);
    return ip;
}

struct ip ip_of_v6(const struct in6_addr *addr)
{
    struct ip ip;

    memcpy(ip.octets, addr, sizeof ip.octets);
    return ip;
}

/* An address and nothing else. */
static bool parse_bare(struct str text, struct ip *ret_ip)
{
    char copy[IP_TEXT_MAX];
    struct in_addr v4;
    struct in6_addr v6;

    if (!str_copy(text, copy, sizeof copy) || memchr(copy, 0, text.len))
        return false;
    if (inet_pton(AF_INET, copy, &v4) == 1)
        *ret_ip = ip_of_v4(&v4);
    else if (inet_pton(AF_INET6, copy, &v6) == 1)
        *ret_ip = ip_of_v6(&v6);
    else
        return false;
    return true;
}

static bool is_port(struct str text)
{
    int64_t port;

    return str_int(text, &port) && port >= 0 && port <= 65535;
}

bool ip_parse(struct str text, struct ip *ret_ip)
{
    struct str rest = text, host;

    if (text.len > 0 && text.at[0] == '[') {
        rest = str_from(text, 1);
        host = str_cut(&rest, ']');
        if (!rest.at || (rest.len > 0 &&
                         (rest.at[0] != ':' || !is_port((struct str){rest.at + 1, rest.len - 1}))))
            return false;
        return parse_bare(host, ret_ip);
    }
    if (parse_bare(text, ret_ip))
        return true;
    host = str_cut(&rest, ':'); /* an IPv6 address with a port needs brackets */
    return rest.at && is_port(rest) && parse_bare(host, ret_ip);
}

void ip_text(const struct ip *ip, char to[IP_TEXT_MAX])
{
    const char *text = is_v4(ip) ? inet_ntop(AF_INET, ip->octets + V4_AT, to, IP_TEXT_MAX)
                                 : inet_ntop(AF_INET6, ip->octets, to, IP_TEXT_MAX);

    assert(text);
}

bool ip_eq(const struct ip *a, const struct ip *b)
{
    return memcmp(a->octets, b->octets, sizeof a->octets) == 0;
}

bool ip_is_loopback(const struct ip *ip)
{
    static const struct ip one = {.octets = {[15] = 1}};

    return is_v4(ip) ? ip->octets[V4_AT] == 127 : ip_eq(ip, &one);
}

uint64_t ip_peer_id(const struct ip *ip)
{
    const unsigned char *v4 = ip->octets + V4_AT;
    uint64_t id;

    if (is_v4(ip))
        return (uint64_t)1 << 32 | (uint64_t)v4[0] << 24 | (uint64_t)v4[1] << 16 |
               (uint64_t)v4[2] << 8 | v4[3];
    memcpy(&id, ip->octets, sizeof id);
    return id ? id : 1;
}

bool ip_range_parse(struct str text, struct ip_range *ret_range)
{
    struct str rest = text, base = str_cut(&rest, '/');
    int most;
    int64_t bits;

    if (!parse_bare(base, &ret_range->base))
        return false;
    most = is_v4(&ret_range->base) && !memchr(base.at, ':', base.len) ? V4_BITS : BITS;
    bits = most;
    if (rest.at && (!str_int(rest, &bits) || bits < 0 || bits > most))
        return false;
    ret_range->bits = (int)bits + BITS - most;
    return true;
}

bool ip_range_has(const struct ip_range *range, const struct ip *ip)
{
    size_t whole = (size_t)range->bits / 8;
    int rest = range->bits % 8;

    assert(range->bits >= 0 && range->bits <= BITS);
    return memcmp(range->base.octets, ip->octets, whole) == 0 &&
           (rest == 0 || (range->base.octets[whole] ^ ip->octets[whole]) >> (8 - rest) == 0);
}
