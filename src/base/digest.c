/* Digests, by OpenSSL. */
#include "base/digest.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void to_hex(const unsigned char *raw, char out[DIGEST_HEX + 1])
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i < DIGEST_HEX / 2; i++) {
        out[2 * i] = hex[raw[i] >> 4];
        out[2 * i + 1] = hex[raw[i] & 15];
    }
    out[DIGEST_HEX] = 0;
}

void digest_sha256_hex(struct str text, char out[DIGEST_HEX + 1])
{
    unsigned char raw[SHA256_DIGEST_LENGTH];

    _Static_assert(2 * sizeof raw == DIGEST_HEX, "two digits a byte");
    SHA256((const unsigned char *)(text.at ? text.at : ""), text.len, raw);
    to_hex(raw, out);
}

void digest_hmac_sha256_hex(struct str key, struct str first, struct str second,
                            char out[DIGEST_HEX + 1])
{
    unsigned char raw[EVP_MAX_MD_SIZE];
    struct buf text = {0};
    unsigned len = 0;

    buf_str(&text, first);
    buf_str(&text, second);
    if (!HMAC(EVP_sha256(), key.at, (int)key.len, (const unsigned char *)text.at, text.len, raw,
              &len))
        abort(); /* for want of memory */
    assert(len == DIGEST_HEX / 2);
    to_hex(raw, out);
    buf_free(&text);
}

bool digest_secret(char out[DIGEST_HEX + 1])
{
    unsigned char raw[DIGEST_HEX / 2];

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        return false;
    to_hex(raw, out);
    explicit_bzero(raw, sizeof raw);
    return true;
}

bool digest_equal(const char *a, const char *b)
{
    assert(a && b);
    return CRYPTO_memcmp(a, b, DIGEST_HEX) == 0;
}
