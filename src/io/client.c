/* libcurl's multi interface driven by libuv: curl asks for sockets to be watched and for a timer.
 */
#include "io/client.h"

#include <assert.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "base/url.h"
#include "io/tls.h"

enum { CONNECT_TIMEOUT_MS = 10000, HOST_BYTES_MAX = 256 };

/* One call in flight; freed before its `done` is called. */
struct flight {
    struct client *client;
    struct client_call *call;
    CURL *easy;
    struct curl_slist *headers;
    bool too_large;
    bool ended; /* by its piece() */
    LIST_ENTRY(flight) link;
};

LIST_HEAD(flight_list, flight);

struct client {
    struct loop_part part;
    struct loop *loop;
    CURLM *multi;
    uv_timer_t timer;
    struct flight_list flights;
    bool closing;
};

/* A socket of curl's, watched until curl asks us to stop. */
struct watch {
    uv_poll_t poll;
    struct client *client;
    curl_socket_t fd;
};

/* --- the end of a call --- */

static void finish(struct flight *flight, enum err err)
{
    struct client_call *call = flight->call;
    long status = 0;

    assert(call->priv == flight);
    curl_easy_getinfo(flight->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(flight->client->multi, flight->easy);
    curl_easy_cleanup(flight->easy);
    curl_slist_free_all(flight->headers);
    LIST_REMOVE(flight, link);
    free(flight);
    call->priv = NULL;
    call->err = err;
    call->status = (int)status;
    call->done(call); /* may free the call, send another, or free the client */
}

static void finish_ended(struct client *client)
{
    CURLMsg *msg;
    int left;

    while (!client->closing && (msg = curl_multi_info_read(client->multi, &left))) {
        struct flight *flight;

        if (msg->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&flight);
        finish(flight, flight->too_large                               ? ERR_TOO_LARGE
                       : msg->data.result == CURLE_OK || flight->ended ? ERR_OK
                       : msg->data.result == CURLE_OPERATION_TIMEDOUT  ? ERR_TIMEOUT
                                                                       : ERR_IO);
    }
}

/* --- what curl asks of the loop --- */

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = container_of(poll, struct watch, poll);
    struct client *client = watch->client;
    int flags = 0;
    int running;

    loop_enter(client->loop);
    if (status < 0)
        flags = CURL_CSELECT_ERR;
    if (events & UV_READABLE)
        flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        flags |= CURL_CSELECT_OUT;
    curl_multi_socket_action(client->multi, watch->fd, flags, &running);
    finish_ended(client);
}

static void on_timer(uv_timer_t *timer)
{
    struct client *client = timer->data;
    int running;

    curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    finish_ended(client);
}

static int want_timer(CURLM *multi, long timeout_ms, void *user)
{
    struct client *client = user;

    if (client->closing)
        return 0;
    if (timeout_ms < 0)
        uv_timer_stop(&client->timer);
    else
        uv_timer_start(&client->timer, on_timer, (uint64_t)timeout_ms, 0);
    return 0;
}

static void on_watch_closed(uv_handle_t *handle)
{
    free(container_of(handle, struct watch, poll));
}

static int want_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *of_socket)
{
    struct client *client = user;
    struct watch *watch = of_socket;
    int events = 0;

    if (what == CURL_POLL_REMOVE) {
        if (watch) {
            curl_multi_assign(client->multi, fd, NULL);
            uv_poll_stop(&watch->poll);
            uv_close((uv_handle_t *)&watch->poll, on_watch_closed);
        }
        return 0;
    }
    if (!watch) {
        watch = mem_new(struct watch);
        watch->client = client;
        watch->fd = fd;
        if (uv_poll_init_socket(&client->loop->uv, &watch->poll, fd) != 0) {
            free(watch);
            return -1;
        }
        curl_multi_assign(client->multi, fd, watch);
    }
    if (what & CURL_POLL_IN)
        events |= UV_READABLE;
    if (what & CURL_POLL_OUT)
        events |= UV_WRITABLE;
    return uv_poll_start(&watch->poll, events, on_ready) == 0 ? 0 : -1;
}

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *addr)
{
    return socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol);
}

/* --- a call --- */

static size_t on_body(char *bytes, size_t size, size_t count, void *user)
{
    struct flight *flight = user;
    struct client_call *call = flight->call;
    size_t len = size * count;
    long status = 0;

    if (call->piece) {
        curl_easy_getinfo(flight->easy, CURLINFO_RESPONSE_CODE, &status);
        if (status >= 200 && status <= 299) {
            call->status = (int)status;
            flight->ended = !call->piece(call, (struct str){.at = bytes, .len = len});
            return flight->ended ? 0 : len;
        }
    }
    if (call->reply.len + len > (size_t)call->reply_bytes_max) {
        flight->too_large = true;
        return 0; /* makes curl end the transfer */
    }
    buf_add(&call->reply, bytes, len);
    return len;
}

static struct curl_slist *add_header(struct curl_slist *list, const char *line)
{
    list = curl_slist_append(list, line);
    if (!list)
        abort(); /* out of memory */
    return list;
}

/* libcurl on its own would accept a certificate by its common name. */
static CURLcode guard_tls(CURL *easy, void *ssl_ctx, void *user)
{
    const struct flight *flight = user;
    struct url url;
    char host[HOST_BYTES_MAX];

    if (!url_parse(str_of(flight->call->url), &url) || !str_copy(url.host, host, sizeof host))
        return CURLE_URL_MALFORMAT;
    tls_guard_client(ssl_ctx, host);
    return CURLE_OK;
}

static bool set_up(struct flight *flight)
{
    const struct client_call *call = flight->call;
    CURL *easy = flight->easy;
    bool head = strcmp(call->method, "HEAD") == 0;
    struct buf line = {0};

    if (head)
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    if (!head && (call->body.len > 0 || strcmp(call->method, "POST") == 0)) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body.len);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body.at ? call->body.at : "");
    }
    if (!head)
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
    flight->headers = add_header(NULL, "Expect:"); /* no round trip before a large body */
    if (call->content_type) {
        buf_fmt(&line, "Content-Type: %s", call->content_type);
        buf_char(&line, '\0');
        flight->headers = add_header(flight->headers, line.at);
        buf_free(&line);
    }
    for (size_t i = 0; call->headers && call->headers[i]; i++)
        flight->headers = add_header(flight->headers, call->headers[i]);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, flight->headers);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, flight);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L); /* request exactly the path that was checked */
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "berth/" BERTH_VERSION);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_SSL_CTX_FUNCTION, guard_tls);
    curl_easy_setopt(easy, CURLOPT_SSL_CTX_DATA, flight);
    if (call->ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, call->ca_file);
    if (call->cert_file) {
        curl_easy_setopt(easy, CURLOPT_SSLCERT, call->cert_file);
        curl_easy_setopt(easy, CURLOPT_SSLKEY, call->key_file);
    }
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)call->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     call->timeout_ms && call->timeout_ms < CONNECT_TIMEOUT_MS
                         ? (long)call->timeout_ms
                         : (long)CONNECT_TIMEOUT_MS);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, flight);
    return curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_URL, call->url) == CURLE_OK;
}

static bool is_http(const struct url *url)
{
    return str_eq_nocase(url->scheme, STR("http")) || str_eq_nocase(url->scheme, STR("https"));
}

enum err client_send(struct client *client, struct client_call *call)
{
    struct flight *flight;
    struct url url;

    assert(call->method && call->url && call->done);
    assert(call->timeout_ms > 0 || call->piece);
    if (client->closing || client->loop->stopping)
        return ERR_CLOSED;
    if (!url_parse(str_of(call->url), &url) || url.port_number < 0 || !is_http(&url))
        return ERR_BAD_FIELD;
    flight = mem_new(struct flight);
    flight->client = client;
    flight->call = call;
    flight->easy = curl_easy_init();
    if (!flight->easy)
        abort(); /* out of memory */
    if (!set_up(flight) || curl_multi_add_handle(client->multi, flight->easy) != CURLM_OK) {
        curl_easy_cleanup(flight->easy);
        curl_slist_free_all(flight->headers);
        free(flight);
        return ERR_BAD_FIELD;
    }
    LIST_INSERT_HEAD(&client->flights, flight, link);
    call->priv = flight;
    return ERR_OK;
}

/* --- the client --- */

static void on_timer_closed(uv_handle_t *handle)
{
    free(container_of(handle, struct client, timer));
}

void client_free(struct client *client)
{
    struct flight *flight;

    if (!client || client->closing)
        return;
    client->closing = true;
    while ((flight = LIST_FIRST(&client->flights)))
        finish(flight, ERR_CLOSED);
    curl_multi_cleanup(client->multi);
    loop_remove_part(client->loop, &client->part);
    uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}

static void close_part(struct loop_part *part)
{
    client_free(container_of(part, struct client, part));
}

static void free_part(struct loop_part *part)
{
    assert(!"client_free has taken it out of the loop");
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

enum err client_new(struct loop *loop, int64_t connections_max, struct client **ret_client)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct client *client = mem_new(struct client);

    assert(connections_max > 0);
    pthread_once(&once, init_curl);
    client->multi = curl_multi_init();
    if (!client->multi) {
        free(client);
        return ERR_MEMORY;
    }
    client->loop = loop;
    client->part.close = close_part;
    client->part.free = free_part;
    LIST_INIT(&client->flights);
    uv_timer_init(&loop->uv, &client->timer);
    client->timer.data = client;
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, want_socket);
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, want_timer);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)connections_max);
    curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)connections_max);
    loop_add_part(loop, &client->part);
    *ret_client = client;
    return ERR_OK;
}

/* --- which URLs may be called --- */

/* False for dot segments, plain or escaped: a server could read such a path as another one. */
static bool is_plain_path(struct str path)
{
    for (size_t i = 0; i + 1 < path.len; i++) {
        struct str at = str_from(path, i);

        if (path.at[i] == '?')
            return true;
        if (str_starts(at, STR("/.")) || str_starts(at, STR("/%2e")) || str_starts(at, STR("/%2E")))
            return false;
    }
    return true;
}

static int port_of(const struct url *url)
{
    if (url->port_number)
        return url->port_number;
    return str_eq_nocase(url->scheme, STR("https")) ? 443 : 80;
}

static bool matches(const struct url *url, struct str pattern)
{
    struct url want;

    if (str_eq(pattern, STR("loopback")))
        return url_is_loopback(url);
    if (!url_parse(pattern, &want) || !str_starts(url->target, want.target))
        return false;
    return str_eq_nocase(url->scheme, want.scheme) && str_eq_nocase(url->host, want.host) &&
           url->is_v6 == want.is_v6 && (want.port_number == -1 || port_of(url) == port_of(&want)) &&
           (want.target.at[want.target.len - 1] == '/' || url->target.len == want.target.len ||
            url->target.at[want.target.len] == '/' || url->target.at[want.target.len] == '?');
}

bool client_url_allowed(struct str text, const struct str *patterns, size_t count)
{
    struct url url;

    if (!url_parse(text, &url) || url.port_number < 0 || !is_http(&url) ||
        !is_plain_path(url.target))
        return false;
    for (size_t i = 0; i < count; i++)
        if (matches(&url, patterns[i]))
            return true;
    return false;
}
