/* OpenSSL over two buffers of our own instead of its memory BIOs: those keep the largest record
 * they ever held, ours use no memory while a connection is idle. */
#include "io/tls.h"

#include <assert.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct net_tls {
    SSL_CTX *ctx;
    atomic_int owners;
};

struct tls {
    SSL *ssl;
    struct str fed;  /* borrowed, see tls_feed */
    struct buf kept; /* ciphertext of an earlier feed */
    struct buf wire;
    const char *error;
    bool ended;      /* our close_notify was sent */
    char *peer_name; /* see tls_peer_name */
};

/* --- the BIO --- */

static int bio_read(BIO *bio, char *to, int size)
{
    struct tls *tls = BIO_get_data(bio);
    size_t len = tls->fed.len < (size_t)size ? tls->fed.len : (size_t)size;

    BIO_clear_retry_flags(bio);
    if (len == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(to, tls->fed.at, len);
    tls->fed.at += len;
    tls->fed.len -= len;
    return (int)len;
}

static int bio_write(BIO *bio, const char *from, int len)
{
    struct tls *tls = BIO_get_data(bio);

    BIO_clear_retry_flags(bio);
    buf_add(&tls->wire, from, (size_t)len);
    return len;
}

static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
    return cmd == BIO_CTRL_FLUSH || cmd == BIO_CTRL_PUSH || cmd == BIO_CTRL_POP;
}

static BIO_METHOD *bio_method;

static void make_bio_method(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "berth");
    if (!bio_method || !BIO_meth_set_read(bio_method, bio_read) ||
        !BIO_meth_set_write(bio_method, bio_write) || !BIO_meth_set_ctrl(bio_method, bio_ctrl))
        abort(); /* out of memory */
}

__attribute__((destructor)) static void free_bio_method(void)
{
    BIO_meth_free(bio_method);
}

/* --- configuration --- */

static const char *last_error(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    return text ? text : "unknown TLS error";
}

/* Of TLS 1.2 only cipher suites with forward secrecy and authenticated encryption; those of 1.3 all
 * have both. */
static void set_strength(SSL_CTX *ctx)
{
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)
        abort(); /* the library supports none of them */
}

static enum err config_new(const SSL_METHOD *method, struct net_tls **ret_config,
                           struct problem *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    SSL_CTX *ctx;

    pthread_once(&once, make_bio_method);
    ERR_clear_error();
    ctx = SSL_CTX_new(method);
    if (!ctx)
        return problem_set(why, ERR_MEMORY, "tls", "TLS cannot start: %s.", last_error());
    set_strength(ctx);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    *ret_config = mem_new(struct net_tls);
    (*ret_config)->ctx = ctx;
    (*ret_config)->owners = 1;
    return ERR_OK;
}

enum err net_tls_identity(struct net_tls *config, const char *cert_file, const char *key_file,
                          struct problem *why)
{
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(config->ctx, cert_file) != 1)
        return problem_set(why, ERR_BAD_CONFIG, "tls_cert", "Cannot use certificate %s: %s.",
                           cert_file, last_error());
    if (SSL_CTX_use_PrivateKey_file(config->ctx, key_file, SSL_FILETYPE_PEM) != 1)
        return problem_set(why, ERR_BAD_CONFIG, "tls_key", "Cannot use key %s: %s.", key_file,
                           last_error());
    if (SSL_CTX_check_private_key(config->ctx) != 1)
        return problem_set(why, ERR_BAD_CONFIG, "tls_key",
                           "The key %s does not belong to the certificate %s.", key_file,
                           cert_file);
    return ERR_OK;
}

/* `setting` is the setting that names the file, for messages. */
static enum err trust(struct net_tls *config, const char *ca_file, const char *setting,
                      struct problem *why)
{
    ERR_clear_error();
    if (SSL_CTX_load_verify_file(config->ctx, ca_file) != 1)
        return problem_set(why, ERR_BAD_CONFIG, setting, "Cannot read the certificates in %s: %s.",
                           ca_file, last_error());
    return ERR_OK;
}

/* A configuration that could not be set up is freed. */
static enum err hand_out(struct net_tls *config, enum err err, struct net_tls **ret_tls)
{
    if (err)
        net_tls_free(config);
    else
        *ret_tls = config;
    return err;
}

enum err net_tls_server(const char *cert_file, const char *key_file, const char *client_ca_file,
                        struct net_tls **ret_tls, struct problem *why)
{
    static const unsigned char session_context[] = "berth";
    struct net_tls *config;
    enum err err = config_new(TLS_server_method(), &config, why);

    if (err)
        return err;
    err = net_tls_identity(config, cert_file, key_file, why);
    if (!err && client_ca_file) {
        err = trust(config, client_ca_file, "tls_client_ca", why);
        SSL_CTX_set_client_CA_list(config->ctx, SSL_load_client_CA_file(client_ca_file));
        SSL_CTX_set_verify(config->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    SSL_CTX_set_session_id_context(config->ctx, session_context, sizeof session_context - 1);
    SSL_CTX_set_session_cache_mode(config->ctx, SSL_SESS_CACHE_OFF); /* tickets are enough */
    return hand_out(config, err, ret_tls);
}

void net_tls_client_optional(struct net_tls *config)
{
    SSL_CTX_set_verify(config->ctx, SSL_VERIFY_PEER, NULL);
}

enum err net_tls_client(const char *ca_file, struct net_tls **ret_tls, struct problem *why)
{
    struct net_tls *config;
    enum err err = config_new(TLS_client_method(), &config, why);

    if (err)
        return err;
    if (ca_file)
        err = trust(config, ca_file, "ca_file", why);
    else if (SSL_CTX_set_default_verify_paths(config->ctx) != 1)
        err = problem_set(why, ERR_BAD_CONFIG, "ca_file",
                          "Cannot read the system's certificates: %s.", last_error());
    SSL_CTX_set_verify(config->ctx, SSL_VERIFY_PEER, NULL);
    return hand_out(config, err, ret_tls);
}

enum err net_tls_revoked(struct net_tls *config, const char *crl_file, struct problem *why)
{
    X509_STORE *store = SSL_CTX_get_cert_store(config->ctx);
    X509_LOOKUP *lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());

    ERR_clear_error();
    if (!lookup || X509_load_crl_file(lookup, crl_file, X509_FILETYPE_PEM) < 1)
        return problem_set(why, ERR_BAD_CONFIG, "tls_client_crl",
                           "Cannot read the list of revoked certificates %s: %s.", crl_file,
                           last_error());
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    return ERR_OK;
}

struct net_tls *net_tls_ref(struct net_tls *config)
{
    if (config)
        config->owners++;
    return config;
}

void net_tls_free(struct net_tls *config)
{
    if (!config || --config->owners > 0)
        return;
    SSL_CTX_free(config->ctx); /* sessions hold references of their own */
    free(config);
}

/* --- sessions --- */

/* The certificate must be valid for `host` by its subjectAltName; the common name does not count.
 * True: `host` is a name, not an address, so SNI is sent. */
static bool check_host(X509_VERIFY_PARAM *param, const char *host)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1)
        return false;
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS |
                                               X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (X509_VERIFY_PARAM_set1_host(param, host, 0) != 1)
        abort(); /* out of memory */
    return true;
}

void tls_guard_client(void *ssl_ctx, const char *host)
{
    set_strength(ssl_ctx);
    check_host(SSL_CTX_get0_param(ssl_ctx), host);
}

struct tls *tls_new(struct net_tls *config, const char *host)
{
    struct tls *tls = mem_new(struct tls);
    BIO *bio = BIO_new(bio_method);

    assert(bio_method && config->owners > 0);
    tls->ssl = SSL_new(config->ctx);
    if (!tls->ssl || !bio)
        abort(); /* out of memory */
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    if (host) {
        if (check_host(SSL_get0_param(tls->ssl), host) &&
            SSL_set_tlsext_host_name(tls->ssl, host) != 1)
            abort(); /* out of memory */
        SSL_set_connect_state(tls->ssl);
    } else {
        SSL_set_accept_state(tls->ssl);
    }
    return tls;
}

void tls_free(struct tls *tls)
{
    if (!tls)
        return;
    SSL_free(tls->ssl);
    free(tls->peer_name);
    buf_free(&tls->kept);
    buf_free(&tls->wire);
    free(tls);
}

void tls_feed(struct tls *tls, struct str cipher)
{
    assert(tls->fed.len == 0); /* tls_keep must be called between two feeds */
    if (tls->kept.len > 0) {
        buf_str(&tls->kept, cipher);
        cipher = buf_view(&tls->kept);
    }
    tls->fed = cipher;
}

void tls_keep(struct tls *tls)
{
    if (tls->fed.len == 0) {
        buf_free(&tls->kept);
    } else if (tls->kept.len > 0) {
        assert(tls->fed.len <= tls->kept.len);
        buf_drop(&tls->kept, tls->kept.len - tls->fed.len);
    } else {
        buf_str(&tls->kept, tls->fed);
    }
    tls->fed = STR_NONE;
}

/* The result of an OpenSSL call; records the reason if it failed. */
static enum tls_result outcome(struct tls *tls, int ret)
{
    long verify;

    switch (SSL_get_error(tls->ssl, ret)) {
    case SSL_ERROR_NONE:
        return TLS_DONE;
    case SSL_ERROR_WANT_READ:
        return TLS_MORE;
    case SSL_ERROR_ZERO_RETURN:
        return TLS_ENDED;
    default:
        verify = SSL_get_verify_result(tls->ssl);
        tls->error = verify != X509_V_OK ? X509_verify_cert_error_string(verify) : last_error();
        return TLS_FAILED;
    }
}

enum tls_result tls_handshake(struct tls *tls)
{
    ERR_clear_error();
    return outcome(tls, SSL_do_handshake(tls->ssl));
}

enum tls_result tls_read(struct tls *tls, char *to, size_t size, size_t *ret_len)
{
    ERR_clear_error();
    return outcome(tls, SSL_read_ex(tls->ssl, to, size, ret_len));
}

bool tls_write(struct tls *tls, struct str plain)
{
    size_t written;

    ERR_clear_error();
    /* The output buffer has no limit, so this writes everything or fails. */
    return outcome(tls, SSL_write_ex(tls->ssl, plain.at, plain.len, &written)) == TLS_DONE &&
           written == plain.len;
}

void tls_end(struct tls *tls)
{
    if (tls->ended)
        return;
    tls->ended = true;
    ERR_clear_error();
    SSL_shutdown(tls->ssl);
}

/* The subject's common name, complete or NULL: a NUL inside must not cut it short. */
static char *common_name(X509 *cert)
{
    X509_NAME *subject = X509_get_subject_name(cert);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    ASN1_STRING *value;
    unsigned char *text = NULL;
    char *name = NULL;
    int len;

    if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0)
        return NULL; /* none, or several: which one would count? */
    value = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    len = ASN1_STRING_to_UTF8(&text, value);
    if (len > 0 && !memchr(text, 0, (size_t)len))
        name = (char *)mem_str((struct str){.at = (char *)text, .len = (size_t)len}).at;
    OPENSSL_free(text);
    return name;
}

const char *tls_peer_name(struct tls *tls)
{
    X509 *cert = SSL_get0_peer_certificate(tls->ssl);

    if (!tls->peer_name && cert && SSL_get_verify_result(tls->ssl) == X509_V_OK)
        tls->peer_name = common_name(cert);
    return tls->peer_name;
}

bool tls_is_revoked(struct tls *tls, struct net_tls *config)
{
    STACK_OF(X509_OBJECT) *kept = X509_STORE_get0_objects(SSL_CTX_get_cert_store(config->ctx));
    X509 *cert = SSL_get0_peer_certificate(tls->ssl);
    X509_REVOKED *entry;

    for (int i = 0; cert && i < sk_X509_OBJECT_num(kept); i++) {
        X509_CRL *list = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(kept, i));

        if (list && X509_CRL_get0_by_cert(list, &entry, cert) == 1)
            return true;
    }
    return false;
}

struct buf *tls_wire(struct tls *tls)
{
    return &tls->wire;
}

const char *tls_error(const struct tls *tls)
{
    return tls->error ? tls->error : "TLS failed";
}

void tls_sha1_base64(struct str text, char *ret_text)
{
    unsigned char digest[20];
    int ok = EVP_Digest(text.at, text.len, digest, NULL, EVP_sha1(), NULL);

    assert(ok == 1);
    EVP_EncodeBlock((unsigned char *)ret_text, digest, sizeof digest);
}
