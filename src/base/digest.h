/* Digests of bytes. SHA-256 is all that is stored of a token, and names whatever must be safe from
 * deliberate collisions. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include "base/str.h"

enum { DIGEST_HEX = 64 };

void digest_sha256_hex(struct str text, char out[DIGEST_HEX + 1]);
/* HMAC-SHA256 of two texts, one after the other. */
void digest_hmac_sha256_hex(struct str key, struct str first, struct str second,
                            char out[DIGEST_HEX + 1]);
/* A new secret: 256 random bits as hex. False: the kernel has no random bytes. */
bool digest_secret(char out[DIGEST_HEX + 1]);
/* Takes the same time wherever the two differ. Both are DIGEST_HEX long. */
bool digest_equal(const char *a, const char *b);

/* CRC-32C (Castagnoli): detects stored bytes that differ from those written. The same on every
 * machine and in every release; not for hash tables, and no protection against tampering. */

uint32_t crc32c(struct str bytes);
/* The same without the processor's instruction. */
uint32_t crc32c_plain(struct str bytes);

#endif
