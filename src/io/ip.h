/* IPv4 and IPv6 addresses and address ranges. An IPv4 address is stored in its IPv4-mapped IPv6
 * form, so that it compares equal in whichever form it arrived. */
#ifndef IO_IP_H
#define IO_IP_H

#include <netinet/in.h>

#include "base/str.h"

struct ip {
    unsigned char octets[16];
};

/* "10.0.0.0/8": all addresses whose first `bits` are those of `base`. */
struct ip_range {
    struct ip base;
    int bits;
};

enum { IP_TEXT_MAX = INET6_ADDRSTRLEN };

struct ip ip_of_v4(const struct in_addr *addr);
struct ip ip_of_v6(const struct in6_addr *addr);
/* "10.0.0.7", "10.0.0.7:5123", "fd00::7", "[fd00::7]", "[fd00::7]:5123": the port is left out. */
bool ip_parse(struct str text, struct ip *ret_ip);
void ip_text(const struct ip *ip, char to[IP_TEXT_MAX]); /* without brackets */
bool ip_eq(const struct ip *a, const struct ip *b);
bool ip_is_loopback(const struct ip *ip);
/* Identifies the address in per-address limits, never 0. Uses the first 64 bits of an IPv6 address:
 * one customer usually has the whole /64. */
uint64_t ip_peer_id(const struct ip *ip);

/* "10.0.0.0/8", "fd00::/8", or an address, which is a range of one. */
bool ip_range_parse(struct str text, struct ip_range *ret_range);
bool ip_range_has(const struct ip_range *range, const struct ip *ip);

#endif
