/* TLS between our server and our client: which peers are accepted, which are not, and replacing a
 * certificate while connections are open. */
#include "io/tls.h"

#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit.h"
#include "certs.h"
#include "hand.h"
#include "io/ws.h"
#include "peer.h"
#include "site.h"

static struct certs certs;

struct caller {
    struct loop loop;
    struct ws *ws;
    int opened;
    int closed;
    int messages;
    struct buf last;
    const char *error;
};

static void on_opened(struct ws *ws)
{
    ((struct caller *)ws->user)->opened++;
}

static void on_message(struct ws *ws, struct str text)
{
    struct caller *caller = ws->user;

    caller->messages++;
    buf_clear(&caller->last);
    buf_str(&caller->last, text);
}

static void on_closed(struct ws *ws, int code)
{
    struct caller *caller = ws->user;

    caller->closed++;
    caller->error = ws->error;
    caller->ws = NULL;
}

static const struct ws_handler handler = {
    .opened = on_opened, .message = on_message, .closed = on_closed};

static void serve(struct site *site, int which, const char *client_ca)
{
    struct net_tls *tls = NULL;
    struct problem why = {.detail = ""};

    *site = (struct site){.limits.net.header_timeout_ms = 1500};
    site_open(site);
    if (net_tls_server(certs.cert[which], certs.key[which], client_ca, &tls, &why) != ERR_OK)
        fail_msg("%s", why.detail);
    net_listener_tls(site->server.listener, tls);
    net_tls_free(tls);
    assert_int_equal(loop_start(&site->loop), ERR_OK);
}

/* Dials until it is connected or has failed; true if connected. */
static bool call(struct caller *caller, const char *host, int port, const char *ca_file,
                 const char *cert, const char *key)
{
    struct net_tls *tls = NULL;
    struct problem why = {.detail = ""};
    char url[128];
    int settled = 0;

    *caller = (struct caller){0};
    assert_int_equal(loop_init(&caller->loop, 0), ERR_OK);
    assert_int_equal(net_tls_client(ca_file, &tls, &why), ERR_OK);
    if (cert)
        assert_int_equal(net_tls_identity(tls, cert, key, &why), ERR_OK);
    snprintf(url, sizeof url, "wss://%s:%d/ws", host, port);
    assert_int_equal(ws_connect(&caller->loop, url, NULL, 0, tls, &handler, &ws_limits_default,
                                caller, &caller->ws, &why),
                     ERR_OK);
    net_tls_free(tls); /* the connection keeps what it needs */
    while (!settled) {
        uv_run(&caller->loop.uv, UV_RUN_ONCE);
        settled = caller->opened || caller->closed;
    }
    return caller->opened;
}

static void hang_up(struct caller *caller)
{
    loop_done(&caller->loop);
    assert_int_equal(caller->closed, 1);
    buf_free(&caller->last);
}

static void exchange(struct caller *caller, size_t size)
{
    struct buf text = {0};

    buf_fmt(&text, "push %zu", size);
    caller->messages = 0;
    assert_true(ws_send(caller->ws, buf_view(&text)));
    hand_run(&caller->loop, &caller->messages);
    assert_int_equal(caller->last.len, size);
    buf_free(&text);
}

static void test_round_trip(void **state)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1"};
    static struct site site;
    struct caller caller;

    serve(&site, 0, NULL);
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        assert_true(call(&caller, hosts[i], site_port(&site), certs.ca, NULL, NULL));
        exchange(&caller, 10);
        exchange(&caller, 16384);
        exchange(&caller, 500000); /* many records, more than a socket takes at once */
        ws_close(caller.ws, 1000, "");
        hand_run(&caller.loop, &caller.closed);
        assert_null(caller.error);
        hang_up(&caller);
    }
    site_await(&site, &site.ws_closed, 2);
    site_stop(&site);
}

static void test_who_is_not_let_in(void **state)
{
    static struct site site;
    struct caller caller;

    serve(&site, 0, NULL);
    assert_false(call(&caller, "127.0.0.1", site_port(&site), certs.foreign_ca, NULL, NULL));
    assert_non_null(strstr(caller.error, "issuer certificate"));
    hang_up(&caller);
    site_stop(&site);

    site = (struct site){0};
    site_open(&site); /* its certificate is for another name */
    {
        struct net_tls *tls;
        struct problem why;

        assert_int_equal(net_tls_server(certs.other_cert, certs.other_key, NULL, &tls, &why),
                         ERR_OK);
        net_listener_tls(site.server.listener, tls);
        net_tls_free(tls);
    }
    assert_int_equal(loop_start(&site.loop), ERR_OK);
    assert_false(call(&caller, "localhost", site_port(&site), certs.ca, NULL, NULL));
    assert_non_null(strstr(caller.error, "hostname mismatch"));
    hang_up(&caller);
    assert_false(call(&caller, "127.0.0.1", site_port(&site), certs.ca, NULL, NULL));
    assert_non_null(strstr(caller.error, "IP address mismatch"));
    hang_up(&caller);
    site_stop(&site);
}

static void test_client_certificates(void **state)
{
    static struct site site;
    struct caller caller;

    serve(&site, 0, certs.ca);
    assert_true(
        call(&caller, "localhost", site_port(&site), certs.ca, certs.cert[1], certs.key[1]));
    exchange(&caller, 100);
    hang_up(&caller);
    assert_false(call(&caller, "localhost", site_port(&site), certs.ca, NULL, NULL));
    assert_int_equal(site.ws_opened, 1);
    hang_up(&caller);
    site_stop(&site);
}

static long serial_seen(int port)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    struct peer peer;
    X509 *cert;
    long serial;

    peer_dial(&peer, port);
    SSL_set_fd(ssl, peer.fd);
    assert_int_equal(SSL_connect(ssl), 1);
    cert = SSL_get1_peer_certificate(ssl);
    serial = ASN1_INTEGER_get(X509_get_serialNumber(cert));
    X509_free(cert);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    peer_close(&peer);
    return serial;
}

static void reload(struct site *site, int which)
{
    struct net_tls *tls;
    struct problem why;

    assert_int_equal(net_tls_server(certs.cert[which], certs.key[which], NULL, &tls, &why), ERR_OK);
    net_listener_tls(site->server.listener, tls);
    net_tls_free(tls);
}

static void test_reload(void **state)
{
    static struct site site;
    struct caller caller;

    serve(&site, 0, NULL);
    assert_int_equal(serial_seen(site_port(&site)), 11);
    assert_true(call(&caller, "localhost", site_port(&site), certs.ca, NULL, NULL));
    site_do(&site, reload, 1);
    assert_int_equal(serial_seen(site_port(&site)), 12);
    exchange(&caller, 1000); /* the old connection stays open */
    hang_up(&caller);
    site_stop(&site);
}

/* Each error names its setting. */
static void test_files_that_do_not_fit(void **state)
{
    const struct {
        const char *cert, *key, *ca, *setting, *detail;
    } rows[] = {
        {certs.cert[0], certs.key[1], NULL, "tls_key", certs.key[1]},
        {"/nonexistent", certs.key[0], NULL, "tls_cert", "/nonexistent"},
        {certs.cert[0], certs.cert[0], NULL, "tls_key", certs.cert[0]},
        {certs.cert[0], certs.key[0], "/nonexistent", "tls_client_ca", "/nonexistent"},
    };
    struct net_tls *tls = NULL;
    struct problem why;

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(net_tls_server(rows[i].cert, rows[i].key, rows[i].ca, &tls, &why),
                         ERR_BAD_CONFIG);
        assert_string_equal(why.field, rows[i].setting);
        assert_non_null(strstr(why.detail, rows[i].detail));
    }
    assert_int_equal(net_tls_client("/nonexistent", &tls, &why), ERR_BAD_CONFIG);
    assert_string_equal(why.field, "ca_file");
    assert_null(tls);
    net_tls_free(NULL);
}

/* Plain text, half a handshake and an old protocol: the connection is closed, and the server goes
 * on. */
static void test_what_is_not_tls(void **state)
{
    static struct site site;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    struct peer peer;

    serve(&site, 0, NULL);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    while (peer_await(&peer, peer.in.len + 1))
        ; /* an alert may come */
    peer_close(&peer);
    peer_dial(&peer, site_port(&site));
    peer_send(&peer, STR("\x16\x03\x01\x02\x00\x01\x00\x01"));
    assert_true(peer_ended(&peer)); /* its deadline passed */
    peer_close(&peer);
    SSL_CTX_set_security_level(ctx, 0);
    SSL_set_max_proto_version(ssl, TLS1_1_VERSION);
    SSL_set_min_proto_version(ssl, TLS1_VERSION);
    peer_dial(&peer, site_port(&site));
    SSL_set_fd(ssl, peer.fd);
    assert_int_not_equal(SSL_connect(ssl), 1);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    peer_close(&peer);
    assert_int_equal(serial_seen(site_port(&site)), 11);
    site_stop(&site);
}

static int make_certs(void **state)
{
    certs_make(&certs);
    return 0;
}

static int remove_certs(void **state)
{
    certs_remove(&certs);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_who_is_not_let_in),
        cmocka_unit_test(test_client_certificates),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_files_that_do_not_fit),
        cmocka_unit_test(test_what_is_not_tls),
    };

    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
