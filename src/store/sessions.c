/* Writes sessions; reader.c reads them. */
#include "store/sessions.h"

#include "base/mem.h"
#include "store/journal.h"

#include <assert.h>
#include <stdlib.h>

struct session {
    struct chain order;
    struct str id; /* all three point into `text` */
    struct str pool;
    struct str lang_pair;
    int64_t written_ms;
    char text[];
};

void sessions_init(struct sessions *sessions)
{
    sessions->known = (struct map){0};
    chain_init(&sessions->order);
}

static void forget(struct sessions *sessions, struct session *session)
{
    map_del(&sessions->known, session->id);
    chain_del(&session->order);
    free(session);
}

void sessions_free(struct sessions *sessions)
{
    while (!chain_alone(&sessions->order))
        forget(sessions, container_of(sessions->order.next, struct session, order));
    map_free(&sessions->known);
}

static struct str put_text(char **at, struct str text)
{
    struct str copy = {.at = *at, .len = text.len};

    if (text.len)
        memcpy(*at, text.at, text.len);
    *at += text.len;
    return copy;
}

void sessions_note(struct sessions *sessions, struct journal *journal, struct str id,
                   struct str pool, struct str lang_pair, int64_t now_ms, int64_t refresh_ms)
{
    struct change_session session = {.id = id, .pool = pool, .lang_pair = lang_pair};
    struct session *known = map_get(&sessions->known, id);
    bool same = known && str_eq(known->pool, pool) && str_eq(known->lang_pair, lang_pair);
    char *at;

    if (same && (refresh_ms <= 0 || now_ms - known->written_ms < refresh_ms))
        return;
    if (known)
        forget(sessions, known);
    same = false;
    journal_session_find(journal, &session, &same);
    if (!same || (refresh_ms > 0 && now_ms - session.updated_ms >= refresh_ms)) {
        session.version += !same; /* the first one is 1 */
        session.updated_ms = now_ms;
        journal_put(journal, &(struct change){.kind = CHANGE_SESSION, .u.session = session});
    }
    known = mem_alloc(sizeof *known + id.len + pool.len + lang_pair.len);
    at = known->text;
    known->id = put_text(&at, id);
    known->pool = put_text(&at, pool);
    known->lang_pair = put_text(&at, lang_pair);
    known->written_ms = session.updated_ms;
    map_put(&sessions->known, known->id, known);
    chain_add_last(&sessions->order, &known->order);
    if (sessions->known.count > SESSIONS_KEPT_MAX)
        forget(sessions, container_of(sessions->order.next, struct session, order));
    assert(sessions->known.count <= SESSIONS_KEPT_MAX);
}
