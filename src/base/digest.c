/* SHA-256 by OpenSSL; CRC-32C eight bytes at a time, by eight tables (slicing). */
#include "base/digest.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* --- SHA-256 --- */

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
        abort(); /* out of memory */
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

/* --- CRC-32C --- */

enum { SLICES = 8 };

static uint32_t tables[SLICES][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0); /* the polynomial, reflected */
        tables[0][byte] = crc;
    }
    for (int slice = 1; slice < SLICES; slice++)
        for (uint32_t byte = 0; byte < 256; byte++)
            tables[slice][byte] =
                tables[slice - 1][byte] >> 8 ^ tables[0][tables[slice - 1][byte] & 255];
}

static uint32_t crc_by_table(uint32_t crc, struct str bytes)
{
    const unsigned char *at = (const unsigned char *)bytes.at;
    size_t left = bytes.len;

    pthread_once(&once, fill_tables);
    for (; left >= 8; at += 8, left -= 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^ tables[5][crc >> 16 & 255] ^
              tables[4][crc >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; left > 0; at++, left--)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return crc;
}

#if defined(__x86_64__)
/* Uses the processor's CRC-32C instruction. */
__attribute__((target("sse4.2"))) static uint32_t crc_by_chip(uint32_t crc, struct str bytes)
{
    uint64_t wide = crc;

    for (; bytes.len >= 8; bytes.at += 8, bytes.len -= 8) {
        uint64_t word;

        memcpy(&word, bytes.at, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; bytes.len > 0; bytes.at++, bytes.len--)
        crc = __builtin_ia32_crc32qi(crc, (unsigned char)*bytes.at);
    return crc;
}
#endif

uint32_t crc32c(struct str bytes)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_by_chip(~0u, bytes);
#endif
    return ~crc_by_table(~0u, bytes);
}

uint32_t crc32c_plain(struct str bytes)
{
    return ~crc_by_table(~0u, bytes);
}
