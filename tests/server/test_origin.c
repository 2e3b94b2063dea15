/* Host, Origin and Sec-Fetch-Site: no web page reaches the server through somebody's browser. */
#include "unit.h"

#include "server/origin.h"

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
        {"berth.example", NULL, NULL, true},      /* of `hosts` */
        {"Berth.Example:8080", NULL, NULL, true}, /* with any port */
        {"other.example:9", NULL, NULL, true},    /* with this port */
        {"other.example:10", NULL, NULL, false},
        {"other.example", NULL, NULL, false},
        /* DNS rebinding: the page's own name leads to us */
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
        /* pages of others */
        {"127.0.0.1:7420", "http://evil.example", NULL, false},
        {"127.0.0.1:7420", "null", NULL, false},
        {"127.0.0.1:7420", "", NULL, false},
        {"127.0.0.1:7420", "http://127.0.0.1:3000", NULL, false}, /* another program here */
        {"127.0.0.1:7420", "http://localhost:7420", NULL, false}, /* not the host it called */
        {"127.0.0.1:7420", "http://127.0.0.1:7420.evil.example", NULL, false},
        {"127.0.0.1:7420", "ftp://127.0.0.1:7420", NULL, false},
        {NULL, "http://evil.example", NULL, false},
        {"127.0.0.1:7420", NULL, "cross-site", false}, /* an image, a script: no Origin is sent */
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

/* A link to the page is followed, a link to anything else is not. */
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
        cmocka_unit_test(who_may_call),
        cmocka_unit_test(only_the_page_may_be_linked_to),
    };

    return cmocka_run_group_tests_name("server/origin", tests, NULL, NULL);
}
