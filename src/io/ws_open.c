/* Handshakes of both roles (RFC 6455 section 4). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"
#include "base/url.h"
#include "io/http_private.h"
#include "io/tls.h"
#include "io/ws_private.h"

enum { WS_KEY_LEN = 24, WS_ANSWER_BYTES_MAX = 16 * 1024, WS_ANSWER_HEADERS_MAX = 64 };

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* --- the server's role --- */

static void accept_for(struct str key, char *ret_accept)
{
    char text[WS_KEY_LEN + 36];

    assert(key.len == WS_KEY_LEN);
    memcpy(text, key.at, WS_KEY_LEN);
    memcpy(text + WS_KEY_LEN, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 36);
    tls_sha1_base64((struct str){.at = text, .len = sizeof text}, ret_accept);
}

/* Base64 of 16 bytes: 22 digits, of which the last carries two bits, and two fillers. */
static bool is_key(struct str key)
{
    if (key.len != WS_KEY_LEN || key.at[22] != '=' || key.at[23] != '=' ||
        !strchr("AQgw", key.at[21]))
        return false;
    for (size_t i = 0; i < 22; i++)
        if (!key.at[i] || !strchr(base64, key.at[i]))
            return false;
    return true;
}

bool ws_wanted(const struct http_request *req)
{
    return req->method == HTTP_M_GET && req->priv->minor > 0 && req->priv->upgrade &&
           req->body.len == 0 && http_list_has(http_header_get(req, "upgrade"), STR("websocket")) &&
           str_is(http_header_get(req, "sec-websocket-version"), "13") &&
           is_key(http_header_get(req, "sec-websocket-key"));
}

struct ws *ws_accept(struct http_request *req, const struct ws_handler *handler,
                     const struct ws_limits *limits, void *user)
{
    struct ws_private *p;
    char accept[32];

    assert(ws_wanted(req) && req->priv->answerable);
    if (req->gone || req->priv->conn->net->closing) {
        http_request_free(req->priv);
        return NULL;
    }
    p = ws_new(req->loop, handler, limits, user);
    str_copy(str_of(req->peer), p->ws.peer, sizeof p->ws.peer);
    accept_for(http_header_get(req, "sec-websocket-key"), accept);
    p->net = http_take(req, &ws_net_handler, p);
    p->net->queue_bounded = !limits->counts_behind;
    net_write(p->net, STR("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                          "Connection: Upgrade\r\nSec-WebSocket-Accept: "));
    net_write(p->net, str_of(accept));
    net_write(p->net, STR("\r\n\r\n"));
    ws_begin(p);
    return &p->ws;
}

/* --- the client's role --- */

void ws_opening_free(struct ws_private *p)
{
    if (!p->opening)
        return;
    buf_free(&p->opening->answer);
    free(p->opening);
    p->opening = NULL;
}

static void give_up(struct ws_private *p, const char *error)
{
    if (!p->net->error)
        p->net->error = error;
    net_close(p->net);
}

static struct str find(const struct http_head *head, struct str name)
{
    for (size_t i = 0; i < head->header_count; i++)
        if (str_eq_nocase(head->headers[i].name, name))
            return head->headers[i].value;
    return STR_NONE;
}

/* NULL when the server agreed. */
static const char *judge(struct ws_private *p, struct str text)
{
    struct http_header headers[WS_ANSWER_HEADERS_MAX];
    struct http_head head = {.headers = headers, .header_max = WS_ANSWER_HEADERS_MAX};

    if (http_head_response(&head, text) != ERR_OK)
        return "the server's answer is malformed";
    if (head.status != 101) {
        p->ws.status = head.status;
        return "the server refused the upgrade";
    }
    if (!head.upgrade || !http_list_has(find(&head, STR("upgrade")), STR("websocket")) ||
        !str_is(find(&head, STR("sec-websocket-accept")), p->opening->accept))
        return "the server's handshake is wrong";
    if (find(&head, STR("sec-websocket-extensions")).at ||
        find(&head, STR("sec-websocket-protocol")).at)
        return "the server chose what was not offered";
    return NULL;
}

void ws_opening_read(struct ws_private *p, struct str bytes)
{
    struct ws_opening *opening = p->opening;
    enum http_scan_result result;
    const char *error = NULL;
    struct buf answer;
    size_t len = 0;

    buf_str(&opening->answer, bytes);
    result = http_scan(&opening->scan, buf_view(&opening->answer), &len);
    if (result == HTTP_SCAN_BAD || opening->answer.len - len > WS_ANSWER_BYTES_MAX * 8)
        error = "the server's answer is malformed";
    else if (result == HTTP_SCAN_MORE && opening->answer.len <= WS_ANSWER_BYTES_MAX)
        return;
    else if (result == HTTP_SCAN_MORE)
        error = "the server's answer is too long";
    else
        error = judge(p, (struct str){.at = opening->answer.at, .len = len});
    if (error) {
        give_up(p, error);
        return;
    }
    answer = opening->answer; /* may hold the first frames */
    opening->answer = (struct buf){0};
    ws_opening_free(p);
    str_copy(str_of(p->net->peer), p->ws.peer, sizeof p->ws.peer);
    ws_begin(p);
    if (p->ws.handler->opened)
        p->ws.handler->opened(&p->ws);
    if (answer.len > len && !p->net->closing)
        ws_read(p, (struct str){.at = answer.at + len, .len = answer.len - len});
    buf_free(&answer);
}

static void write_request(struct ws_private *p, const struct url *url,
                          const struct http_header *headers, size_t header_count)
{
    unsigned char random[16];
    char key[WS_KEY_LEN + 1];
    struct buf text = {0};

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        abort();
    for (size_t i = 0, bits = 0; i < 22; i++, bits += 6) {
        unsigned pair =
            (unsigned)random[bits / 8] << 8 | (bits / 8 < 15 ? random[bits / 8 + 1] : 0);

        key[i] = base64[pair >> (10 - bits % 8) & 63];
    }
    memcpy(key + 22, "==", 3);
    accept_for(str_of(key), p->opening->accept);
    buf_fmt(&text, "GET " STR_FMT " HTTP/1.1\r\nHost: ", STR_ARG(url->target));
    buf_fmt(&text, url->is_v6 ? "[" STR_FMT "]" : STR_FMT, STR_ARG(url->host));
    if (url->port_number)
        buf_fmt(&text, ":%d", url->port_number);
    buf_fmt(&text,
            "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: %s\r\n",
            key);
    for (size_t i = 0; i < header_count; i++)
        buf_fmt(&text, STR_FMT ": " STR_FMT "\r\n", STR_ARG(headers[i].name),
                STR_ARG(headers[i].value));
    buf_str(&text, STR("\r\n"));
    net_write(p->net, buf_view(&text));
    buf_free(&text);
}

enum err ws_connect(struct loop *loop, const char *url_text, const struct http_header *headers,
                    size_t header_count, struct net_tls *tls, const struct ws_handler *handler,
                    const struct ws_limits *limits, void *user, struct ws **ret_ws,
                    struct problem *why)
{
    struct net_limits net_limits = http_limits_default.net;
    struct ws_private *p;
    struct url url;
    char host[256];
    bool secure;
    int port;
    enum err err;

    if (!url_parse(str_of(url_text), &url) || url.port_number < 0 ||
        !str_copy(url.host, host, sizeof host))
        return problem_set(why, ERR_BAD_FIELD, "url", "\"%s\" is not a WebSocket URL.", url_text);
    secure = str_eq_nocase(url.scheme, STR("wss"));
    if (!secure && !str_eq_nocase(url.scheme, STR("ws")))
        return problem_set(why, ERR_BAD_FIELD, "url", "\"%s\" must begin with ws:// or wss://.",
                           url_text);
    if (secure && !tls)
        return problem_set(why, ERR_BAD_CONFIG, "url", "wss:// needs TLS to be set up.");
    port = url.port_number ? url.port_number : secure ? 443 : 80;
    p = ws_new(loop, handler, limits, user);
    p->client = true;
    net_limits.write_queue_bytes_max = 2 * limits->queue_bytes_max;
    err = net_connect(loop, host, port, secure ? tls : NULL, &net_limits, &ws_net_handler, p,
                      &p->net, why);
    if (err) {
        free(p);
        return err;
    }
    p->opening = mem_new(struct ws_opening);
    write_request(p, &url, headers, header_count);
    *ret_ws = &p->ws;
    return ERR_OK;
}
