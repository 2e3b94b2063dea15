/* The ustar format, as far as plain files need it. */
#include "cli/tarball.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

enum { BLOCK = 512, GZIP_WINDOW = 15 + 16, CHUNK = 65536 };

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

_Static_assert(sizeof(struct header) == BLOCK, "what the format says");

void tarball_add(struct tarball *tarball, const char *name, struct str text)
{
    struct header header = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
    static const char zeros[BLOCK];
    unsigned sum = 0;

    assert(strlen(name) < sizeof header.name && text.len < 1ull << 33);
    memcpy(header.name, name, strlen(name));
    memcpy(header.mode, "0000600", 8);
    memcpy(header.uid, "0000000", 8);
    memcpy(header.gid, "0000000", 8);
    snprintf(header.size, sizeof header.size, "%011llo", (unsigned long long)text.len);
    snprintf(header.mtime, sizeof header.mtime, "%011llo", (unsigned long long)tarball->mtime_s);
    memset(header.sum, ' ', sizeof header.sum);
    for (size_t i = 0; i < BLOCK; i++)
        sum += ((const unsigned char *)&header)[i];
    snprintf(header.sum, sizeof header.sum, "%06o", sum);
    buf_add(&tarball->tar, &header, BLOCK);
    buf_str(&tarball->tar, text);
    buf_add(&tarball->tar, zeros, (BLOCK - text.len % BLOCK) % BLOCK);
}

enum err tarball_pack(struct tarball *tarball, struct buf *ret_gz)
{
    static const char end[2 * BLOCK];
    z_stream stream = {0};
    int done = Z_OK;

    buf_add(&tarball->tar, end, sizeof end);
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_WINDOW, 8,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return ERR_INTERNAL;
    stream.next_in = (unsigned char *)tarball->tar.at;
    stream.avail_in = (unsigned)tarball->tar.len;
    while (done == Z_OK) {
        buf_reserve(ret_gz, CHUNK);
        stream.next_out = (unsigned char *)ret_gz->at + ret_gz->len;
        stream.avail_out = CHUNK;
        done = deflate(&stream, Z_FINISH);
        ret_gz->len += CHUNK - stream.avail_out;
    }
    deflateEnd(&stream);
    return done == Z_STREAM_END ? ERR_OK : ERR_INTERNAL;
}

void tarball_free(struct tarball *tarball)
{
    buf_free(&tarball->tar);
}
