/* CRC-32C (Castagnoli): what notices that stored bytes are not those that were written. The same on
 * every machine and in every release; not for hash tables, and no proof against a person. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include "base/str.h"

uint32_t crc32c(struct str bytes);

#endif
