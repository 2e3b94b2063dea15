/* Entity tags as RFC 9110 has them; those of others are only compared. */
#include "server/etag.h"

#include <assert.h>

static bool stands_in(struct str list, struct str etag, bool weak_ok)
{
    while (list.len) {
        struct str item = str_trim(str_cut(&list, ','));

        if (weak_ok && str_starts(item, STR("W/")))
            item = (struct str){.at = item.at + 2, .len = item.len - 2};
        if (str_eq(item, etag) || str_is(item, "*"))
            return true;
    }
    return false;
}

bool etag_has_copy(struct http_request *req, struct str etag)
{
    return stands_in(http_header_get(req, "If-None-Match"), etag, true);
}

bool etag_matches(struct call *call, struct str etag, const char *what)
{
    struct str wanted = http_header_get(call->req, "If-Match");

    assert(etag.len > 2 && etag.at[0] == '"');
    if (!wanted.at || stands_in(wanted, etag, false))
        return true;
    call_error(call, ERR_PRECONDITION, "If-Match", "%s changed: its ETag is " STR_FMT " now.", what,
               STR_ARG(etag));
    return false;
}

void etag_json(struct call *call, const struct buf *body, struct str etag)
{
    struct http_header header = {.name = STR("ETag"), .value = etag};
    bool known = etag_has_copy(call->req, etag);
    struct http_reply reply = {.status = known ? 304 : 200,
                               .body = known ? STR_NONE : buf_view(body),
                               .headers = &header,
                               .header_count = 1};

    call_reply(call, &reply);
}
