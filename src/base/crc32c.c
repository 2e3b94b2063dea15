/* Eight bytes at a time, by eight tables (slicing). */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

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

uint32_t crc32c(struct str bytes)
{
    const unsigned char *at = (const unsigned char *)bytes.at;
    size_t left = bytes.len;
    uint32_t crc = ~0u;

    pthread_once(&once, fill_tables);
    for (; left >= 8; at += 8, left -= 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^ tables[5][crc >> 16 & 255] ^
              tables[4][crc >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; left > 0; at++, left--)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}
