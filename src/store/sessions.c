/* Notes sessions; reading them is reader.c's. */
#include "store/sessions.h"

#include "base/mem.h"
#include "store/journal.h"

#include <assert.h>
#include <stdlib.h>

struct session {
    struct chain order;
    struct str id; /* all three in `text` */
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

    for (size_t i = 0; i < text.len; i++)
        *(*at)++ = text.at[i];
    return copy;
}

static void keep(struct sessions *sessions, const struct change_session *from, int64_t written_ms)
{
    size_t bytes = from->id.len + from->pool.len + from->lang_pair.len;
    struct session *session = mem_alloc(sizeof *session + bytes);
    char *at = session->text;

    session->id = put_text(&at, from->id);
    session->pool = put_text(&at, from->pool);
    session->lang_pair = put_text(&at, from->lang_pair);
    session->written_ms = written_ms;
    map_put(&sessions->known, session->id, session);
    chain_add_last(&sessions->order, &session->order);
    if (sessions->known.count > SESSIONS_KEPT_MAX)
        forget(sessions, container_of(sessions->order.next, struct session, order));
    assert(sessions->known.count <= SESSIONS_KEPT_MAX);
}

void sessions_note(struct sessions *sessions, struct journal *journal, struct str id,
                   struct str pool, struct str lang_pair, int64_t now_ms, int64_t refresh_ms)
{
    struct change_session session = {.id = id, .pool = pool, .lang_pair = lang_pair};
    struct session *known = map_get(&sessions->known, id);
    bool same = known && str_eq(known->pool, pool) && str_eq(known->lang_pair, lang_pair);

    if (same && (refresh_ms <= 0 || now_ms - known->written_ms < refresh_ms))
        return;
    if (known)
        forget(sessions, known);
    same = false;
    journal_session_find(journal, &session, &same);
    if (!same || (refresh_ms > 0 && now_ms - session.updated_ms >= refresh_ms)) {
        session.version += !same; /* the first one is 1 */
        session.updated_ms = now_ms;
        journal_session_put(journal, &session);
    }
    keep(sessions, &session, session.updated_ms);
}
