/* The route table: which path leads to which route, and that the table is consistent. */
#include "server/api.h"

#include <string.h>

#include "../unit.h"
#include "server/messages.h"
#include "server/route.h"

static void paths_and_methods(void **state)
{
    static const struct {
        enum http_method method;
        const char *path;
        const char *route; /* NULL: none */
        bool known;        /* the path exists with other methods */
        const char *params[ROUTE_PARAMS_MAX];
    } rows[] = {
        {HTTP_M_GET, "/", "/", true, {0}},
        {HTTP_M_GET, "", NULL, false, {0}},
        {HTTP_M_GET, "//", NULL, false, {0}},
        {HTTP_M_GET, "/v1/jobs", "/v1/jobs", true, {0}},
        {HTTP_M_HEAD, "/v1/jobs", "/v1/jobs", true, {0}},
        {HTTP_M_POST, "/v1/jobs", NULL, true, {0}},
        {HTTP_M_OPTIONS, "/v1/jobs", NULL, true, {0}},
        {HTTP_M_OTHER, "/v1/jobs", NULL, true, {0}},
        {HTTP_M_GET, "/v1/jobs/", NULL, false, {0}},
        {HTTP_M_GET, "/V1/jobs", NULL, false, {0}},
        {HTTP_M_GET, "/v1/job", NULL, false, {0}},
        {HTTP_M_GET, "/v1/jobsx", NULL, false, {0}},
        {HTTP_M_GET, "/v1/jobs/j1", "/v1/jobs/{id}", true, {"j1"}},
        {HTTP_M_GET, "/v1/jobs/j1/", NULL, false, {0}},
        {HTTP_M_GET, "/v1/jobs/..", "/v1/jobs/{id}", true, {".."}}, /* an id like any other */
        {HTTP_M_POST, "/v1/jobs/j1/cancel", "/v1/jobs/{id}/cancel", true, {"j1"}},
        {HTTP_M_GET, "/v1/jobs/j1/cancel", NULL, true, {0}},
        {HTTP_M_POST, "/v1/jobs//cancel", NULL, false, {0}},
        {HTTP_M_DELETE, "/v1/nodes/n 1", "/v1/nodes/{id}", true, {"n 1"}},
        {HTTP_M_DELETE, "/v1/nodes/n%201", "/v1/nodes/{id}", true, {"n 1"}},
        {HTTP_M_DELETE, "/v1/%6eodes/n%31", "/v1/nodes/{id}", true, {"n1"}},
        /* An encoded slash does not separate segments; decoding happens once. */
        {HTTP_M_DELETE, "/v1/tokens/a%2Fb", "/v1/tokens/{name}", true, {"a/b"}},
        {HTTP_M_DELETE, "/v1/tokens/a%252Fb", "/v1/tokens/{name}", true, {"a%2Fb"}},
        {HTTP_M_POST, "/v1/jobs/j%2f1/cancel", "/v1/jobs/{id}/cancel", true, {"j/1"}},
        {HTTP_M_GET, "/v1/jobs%2Fj1", NULL, false, {0}},
        {HTTP_M_GET, "%2Fv1/jobs", NULL, false, {0}},
        /* As a call over a socket may have it. */
        {HTTP_M_GET, "/v1/jobs/%2", "/v1/jobs/{id}", true, {"%2"}},
        {HTTP_M_POST,
         "/v1/nodes/n1/rpc/NodeUnit/Inspect",
         "/v1/nodes/{id}/rpc/{service}/{method}",
         true,
         {"n1", "NodeUnit", "Inspect"}},
        {HTTP_M_POST, "/v1/nodes/n1/rpc/NodeUnit", NULL, false, {0}},
        {HTTP_M_POST, "/v1/nodes/n1/rpc/a/b/c", NULL, false, {0}},
        {HTTP_M_GET, "/api/brain/cluster/status", "/api/brain/cluster/status", true, {0}},
    };

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct str params[ROUTE_PARAMS_MAX] = {0};
        struct arena arena = {0};
        bool known;
        const struct route *route =
            route_find(rows[i].method, str_of(rows[i].path), &arena, params, &known);

        if ((route == NULL) != (rows[i].route == NULL) ||
            (route && strcmp(route->path, rows[i].route) != 0) || known != rows[i].known)
            fail_msg("%s: %s, known %d", rows[i].path, route ? route->path : "none", known);
        for (int p = 0; route && p < ROUTE_PARAMS_MAX; p++)
            if (rows[i].params[p])
                assert_str(params[p], rows[i].params[p]);
        arena_free(&arena);
    }
}

static bool is_open(const char *path)
{
    static const char *const open[] = {"/", "/healthz", "/readyz", "/page/{name}"};

    for (size_t i = 0; i < COUNT_OF(open); i++)
        if (strcmp(path, open[i]) == 0)
            return true;
    return false;
}

/* Checks that the messages and parameters that a row names exist. */
static void check_names(const struct route *route)
{
    struct str rest = str_of(route->query);

    if (route->in && !message_type_find(str_of(route->in)))
        fail_msg("%s: messages.c has no %s", route->path, route->in);
    if (route->out && !message_type_find(str_of(route->out)))
        fail_msg("%s: messages.c has no %s", route->path, route->out);
    while (rest.len) {
        struct str name = str_cut(&rest, ' ');

        if (!openapi_knows_query(name))
            fail_msg("%s: openapi.c does not know the parameter " STR_FMT, route->path,
                     STR_ARG(name));
    }
}

/* Each row has what it needs, and no route hides another. */
static void the_table_makes_sense(void **state)
{
    const struct route *route, *other;

    for (size_t i = 0; (route = route_at(i)); i++) {
        assert_true(route->handle && route->help && route->path[0] == '/');
        if ((route->scope == SCOPE_NONE) != is_open(route->path))
            fail_msg("%s: who may call it?", route->path);
        if (route->method == HTTP_M_GET && route->body)
            fail_msg("%s: a GET with a body", route->path);
        if (!route->in != !route->body)
            fail_msg("%s: a body has a schema, and only a body", route->path);
        if (!route->out && !route->media && route->status != 101)
            fail_msg("%s: what does it answer?", route->path);
        check_names(route);
        if ((route->large || route->body_optional) && !route->body)
            fail_msg("%s: takes no body, but says how large", route->path);
        for (size_t j = 0; j < i; j++) {
            other = route_at(j);
            if (other->method == route->method && strcmp(other->path, route->path) == 0)
                fail_msg("%s is in the table twice", route->path);
        }
        /* A path made from the row's pattern finds the same row. */
        struct str params[ROUTE_PARAMS_MAX];
        char path[128] = "";
        bool known;
        for (const char *at = route->path; *at; at++)
            if (*at == '{')
                at = strchr(at, '}'), strcat(path, "x");
            else
                strncat(path, at, 1);
        assert_ptr_equal(route_find(route->method, str_of(path), NULL, params, &known), route);
    }
}

/* --- origin --- */

/* Host, Origin and Sec-Fetch-Site: no web page reaches the server through a browser. */

static void who_may_call(void **state)
{
    static const struct {
        const char *host, *origin, *site;
        bool allowed;
    } rows[] = {
        /* programs: no Origin, no Sec-Fetch-Site */
        {"127.0.0.1:7420", NULL, NULL, true},
        {"localhost", NULL, NULL, true},
        {"LOCALHOST:7420", NULL, NULL, true},
        {"[::1]:7420", NULL, NULL, true},
        {"[::1]", NULL, NULL, true},
        {NULL, NULL, NULL, true},                 /* HTTP/1.0 */
        {"10.1.2.3:7420", NULL, NULL, true},      /* the listen address */
        {"berth.example", NULL, NULL, true},      /* in `hosts` */
        {"Berth.Example:8080", NULL, NULL, true}, /* with any port */
        {"other.example:9", NULL, NULL, true},    /* with this port */
        {"other.example:10", NULL, NULL, false},
        {"other.example", NULL, NULL, false},
        /* DNS rebinding: the attacker's name resolves to this server */
        {"evil.example:7420", NULL, NULL, false},
        {"evil.example", "http://evil.example", "same-origin", false},
        {"127.0.0.1.evil.example", NULL, NULL, false},
        {"localhost.evil.example", NULL, NULL, false},
        {"", NULL, NULL, false},
        {"127.0.0.2", NULL, NULL, false},
        {"[::1", NULL, NULL, false},
        /* our own page */
        {"127.0.0.1:7420", "http://127.0.0.1:7420", NULL, true},
        {"127.0.0.1:7420", "https://127.0.0.1:7420", "same-origin", true},
        {"berth.example", "https://BERTH.example", "same-origin", true},
        {"127.0.0.1:7420", NULL, "none", true}, /* typed in */
        /* pages of other origins */
        {"127.0.0.1:7420", "http://evil.example", NULL, false},
        {"127.0.0.1:7420", "null", NULL, false},
        {"127.0.0.1:7420", "", NULL, false},
        {"127.0.0.1:7420", "http://127.0.0.1:3000", NULL, false}, /* another program on this host */
        {"127.0.0.1:7420", "http://localhost:7420", NULL, false}, /* not the name in Host */
        {"127.0.0.1:7420", "http://127.0.0.1:7420.evil.example", NULL, false},
        {"127.0.0.1:7420", "ftp://127.0.0.1:7420", NULL, false},
        {NULL, "http://evil.example", NULL, false},
        {"127.0.0.1:7420", NULL, "cross-site", false}, /* an image or script: no Origin is sent */
        {"127.0.0.1:7420", NULL, "same-site", false},  /* another port of this machine */
        {"127.0.0.1:7420", NULL, "what is this", false},
    };
    struct str hosts[] = {STR("berth.example"), STR("other.example:9")};
    struct settings settings = {.listen = STR("10.1.2.3:7420"),
                                .hosts = {.at = hosts, .count = COUNT_OF(hosts)}};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *names[] = {"Host", "Origin", "Sec-Fetch-Site"};
        const char *values[] = {rows[i].host, rows[i].origin, rows[i].site};
        struct http_header headers[3];
        struct http_request req = {.method = HTTP_M_POST, .path = STR("/v1/x"), .headers = headers};
        struct problem why = {0};

        for (size_t h = 0; h < COUNT_OF(names); h++)
            if (values[h])
                headers[req.header_count++] =
                    (struct http_header){.name = str_of(names[h]), .value = str_of(values[h])};
        enum err err = origin_check(&req, &settings, &why);
        if (err != (rows[i].allowed ? ERR_OK : ERR_FORBIDDEN))
            fail_msg("row %zu: Host %s, Origin %s, site %s: %s", i, rows[i].host, rows[i].origin,
                     rows[i].site, err_name(err));
        assert_true(rows[i].allowed || why.detail[0]);
    }
}

/* A browser may follow a link to the page, but not to anything else. */
static void only_the_page_may_be_linked_to(void **state)
{
    static const struct {
        enum http_method method;
        const char *path;
        const char *mode;
        bool allowed;
    } rows[] = {
        {HTTP_M_GET, "/", "navigate", true},
        {HTTP_M_HEAD, "/", "navigate", true},
        {HTTP_M_POST, "/", "navigate", false},
        {HTTP_M_GET, "/", "no-cors", false},
        {HTTP_M_GET, "/v1/node/jobs", "navigate", false},
    };
    struct settings settings = {.listen = STR("127.0.0.1:7420")};

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct http_header headers[] = {{STR("host"), STR("127.0.0.1:7420")},
                                              {STR("sec-fetch-site"), STR("cross-site")},
                                              {STR("sec-fetch-mode"), str_of(rows[i].mode)}};
        struct http_request req = {.method = rows[i].method,
                                   .path = str_of(rows[i].path),
                                   .headers = headers,
                                   .header_count = COUNT_OF(headers)};
        struct problem why;

        if ((origin_check(&req, &settings, &why) == ERR_OK) != rows[i].allowed)
            fail_msg("row %zu", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_and_methods),
        cmocka_unit_test(the_table_makes_sense),
        cmocka_unit_test(who_may_call),
        cmocka_unit_test(only_the_page_may_be_linked_to),
    };

    return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
