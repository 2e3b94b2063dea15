/* One TLS session over our own buffers: net.c feeds ciphertext in and takes it out. Only tls.c uses
 * OpenSSL. */
#ifndef IO_TLS_H
#define IO_TLS_H

#include "base/str.h"
#include "io/net.h"

enum { TLS_RECORD_BYTES = 16384 };

struct tls;

enum tls_result {
    TLS_DONE, /* handshake: finished; read: bytes were read */
    TLS_MORE, /* the peer must send first */
    TLS_ENDED,
    TLS_FAILED, /* tls_error() says why */
};

/* host NULL: server role. Else the certificate must be for `host`. */
struct tls *tls_new(struct net_tls *config, const char *host);
void tls_free(struct tls *tls);
struct net_tls *net_tls_ref(struct net_tls *config); /* one more owner; NULL is fine */

/* Ciphertext from the peer; borrowed until tls_keep, which copies the unused rest. */
void tls_feed(struct tls *tls, struct str cipher);
void tls_keep(struct tls *tls);
enum tls_result tls_handshake(struct tls *tls);
enum tls_result tls_read(struct tls *tls, char *to, size_t size, size_t *ret_len);
bool tls_write(struct tls *tls, struct str plain);
/* The common name in the peer's certificate, after the handshake and if it was verified; NULL: no
 * certificate, or not exactly one common name. */
const char *tls_peer_name(struct tls *tls);
/* Is the peer's certificate on the revocation list of `config` (net_tls_revoked)? */
bool tls_is_revoked(struct tls *tls, struct net_tls *config);
void tls_end(struct tls *tls); /* sends close_notify */
/* Ciphertext for the peer; the caller sends it and empties the buffer. */
struct buf *tls_wire(struct tls *tls);
const char *tls_error(const struct tls *tls);

/* Applies the same requirements to libcurl's SSL_CTX: versions, ciphers, a certificate for `host`.
 */
void tls_guard_client(void *ssl_ctx, const char *host);

/* For the WebSocket handshake: base64 of the text's SHA-1. 29 bytes, NUL-terminated. */
void tls_sha1_base64(struct str text, char *ret_text);

#endif
