#include "certs.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../unit.h"

static void set_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509_EXTENSION *extension;

    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    assert_non_null(extension);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
}

/* Signed by `ca` with `ca_key`, or self-signed if they are NULL. */
static X509 *cert_new(EVP_PKEY *key, const char *name, const char *alt_names, int serial, X509 *ca,
                      EVP_PKEY *ca_key)
{
    X509 *cert = X509_new();
    X509_NAME *subject = X509_get_subject_name(cert);

    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), serial);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, ca ? X509_get_subject_name(ca) : subject);
    set_extension(cert, ca ? ca : cert, NID_basic_constraints,
                  ca ? "CA:FALSE" : "critical,CA:TRUE");
    if (alt_names)
        set_extension(cert, ca, NID_subject_alt_name, alt_names);
    assert_true(X509_sign(cert, ca ? ca_key : key, EVP_sha256()) > 0);
    return cert;
}

static void write_cert(X509 *cert, char *path, size_t size, const char *dir, const char *name)
{
    FILE *file;

    snprintf(path, size, "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
}

static void write_key(EVP_PKEY *key, char *path, size_t size, const char *dir, const char *name)
{
    FILE *file;

    snprintf(path, size, "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
}

/* Writes a new key and its certificate to files. */
static void make_leaf(struct certs *certs, const char *stem, const char *alt_names, int serial,
                      X509 *ca, EVP_PKEY *ca_key, char *cert_path, char *key_path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = cert_new(key, stem, alt_names, serial, ca, ca_key);
    char name[32];

    snprintf(name, sizeof name, "%s.crt", stem);
    write_cert(cert, cert_path, sizeof certs->ca, certs->dir, name);
    snprintf(name, sizeof name, "%s.key", stem);
    write_key(key, key_path, sizeof certs->ca, certs->dir, name);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void certs_make(struct certs *certs)
{
    EVP_PKEY *ca_key = EVP_EC_gen("P-256");
    X509 *ca = cert_new(ca_key, "Test CA", NULL, 1, NULL, NULL);
    EVP_PKEY *foreign_key = EVP_EC_gen("P-256");
    X509 *foreign = cert_new(foreign_key, "Foreign CA", NULL, 2, NULL, NULL);
    const char *tmp = getenv("TMPDIR");

    snprintf(certs->dir, sizeof certs->dir, "%.40s/berth-certs-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(certs->dir));
    write_cert(ca, certs->ca, sizeof certs->ca, certs->dir, "ca.crt");
    write_cert(foreign, certs->foreign_ca, sizeof certs->ca, certs->dir, "foreign.crt");
    make_leaf(certs, "one", "DNS:localhost,IP:127.0.0.1", 11, ca, ca_key, certs->cert[0],
              certs->key[0]);
    make_leaf(certs, "two", "DNS:localhost,IP:127.0.0.1", 12, ca, ca_key, certs->cert[1],
              certs->key[1]);
    make_leaf(certs, "other", "DNS:other.example", 13, ca, ca_key, certs->other_cert,
              certs->other_key);
    X509_free(ca);
    X509_free(foreign);
    EVP_PKEY_free(ca_key);
    EVP_PKEY_free(foreign_key);
}

void certs_remove(struct certs *certs)
{
    unlink(certs->ca);
    unlink(certs->foreign_ca);
    unlink(certs->other_cert);
    unlink(certs->other_key);
    for (int i = 0; i < 2; i++) {
        unlink(certs->cert[i]);
        unlink(certs->key[i]);
    }
    assert_int_equal(rmdir(certs->dir), 0);
}
