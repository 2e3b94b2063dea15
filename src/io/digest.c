/* Digests, by OpenSSL. */
#include "io/digest.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

void digest_sha256_hex(struct str text, char out[DIGEST_HEX + 1])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char raw[SHA256_DIGEST_LENGTH];

    SHA256((const unsigned char *)(text.at ? text.at : ""), text.len, raw);
    for (size_t i = 0; i < sizeof raw; i++) {
        out[2 * i] = hex[raw[i] >> 4];
        out[2 * i + 1] = hex[raw[i] & 15];
    }
    out[DIGEST_HEX] = 0;
}

bool digest_equal(const char *a, const char *b)
{
    assert(a && b);
    return CRYPTO_memcmp(a, b, DIGEST_HEX) == 0;
}
