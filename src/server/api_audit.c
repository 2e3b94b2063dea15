/* /v1/audit: who did what, newest first. */
#include <assert.h>

#include "server/api.h"
#include "server/audit.h"

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };

struct audit_call {
    struct audit_query query;
    struct call *call;
};

static void answered(struct audit_query *query)
{
    struct audit_call *own = container_of(query, struct audit_call, query);

    struct buf answer = query->answer; /* the reply ends the request, and us with it */

    call_json(own->call, 200, &answer);
    buf_free(&answer);
}

void api_audit(struct call *call)
{
    struct audit_call *own = arena_new(call->arena, struct audit_call);
    struct str kind = http_query(call->req, "kind");
    int64_t limit = LIST_DEFAULT, before = 0;
    enum audit_kind known;
    bool verify = false;

    if (!call_query_int(call, "limit", 1, LIST_MAX, &limit) ||
        !call_query_int(call, "cursor", 1, INT64_MAX, &before) ||
        !call_query_bool(call, "verify", &verify))
        return;
    if (kind.at && !audit_kind_parse(kind, &known)) {
        call_error(call, ERR_BAD_FIELD, "kind", "kind must be %s or %s.",
                   audit_kind_name(AUDIT_CHANGE), audit_kind_name(AUDIT_REFUSED));
        return;
    }
    own->call = call;
    own->query = (struct audit_query){.request.from = call->worker,
                                      .before = before,
                                      .max = (size_t)limit,
                                      .verify = verify,
                                      .who = http_query(call->req, "who"),
                                      .action = http_query(call->req, "action"),
                                      .target = http_query(call->req, "target"),
                                      .kind = kind,
                                      .done = answered};
    audit_ask(&own->query);
}
