/* Addresses and ranges of them, IPv4 and IPv6 alike: an IPv4 address is kept as the IPv6 one it is
 * mapped to, so that it is the same one however it came. */
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
/* What it counts as for limits per address, never 0. Of IPv6 the first 64 bits: one customer
 * usually has all of those. */
uint64_t ip_peer_id(const struct ip *ip);

/* "10.0.0.0/8", "fd00::/8", or an address, which is a range of one. */
bool ip_range_parse(struct str text, struct ip_range *ret_range);
bool ip_range_has(const struct ip_range *range, const struct ip *ip);

#endif
