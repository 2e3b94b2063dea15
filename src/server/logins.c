/* Failures leak away at max_per_min a minute; the bucket holds as many. */
#include "server/logins.h"

#include <assert.h>
#include <stddef.h>

#include "base/str.h"

enum { MILLI = 1000, MINUTE_MS = 60000 };

static struct login *set_of(struct logins *logins, uint64_t peer)
{
    assert(peer != 0);
    return logins->table[(peer * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (LOGINS_SETS - 1)];
}

static struct login *find(struct logins *logins, uint64_t peer)
{
    struct login *set = set_of(logins, peer);

    for (int i = 0; i < LOGINS_WAYS; i++)
        if (set[i].peer == peer)
            return &set[i];
    return NULL;
}

/* The one of its set that is missed least: without failures before with, then the oldest. */
static struct login *find_or_take(struct logins *logins, uint64_t peer, int64_t now_ms)
{
    struct login *set = set_of(logins, peer);
    struct login *least = find(logins, peer);

    if (least)
        return least;
    least = &set[0];
    for (int i = 1; i < LOGINS_WAYS; i++) {
        bool clean = set[i].failures_milli == 0, least_clean = least->failures_milli == 0;

        if (clean != least_clean ? clean : set[i].seen_ms < least->seen_ms)
            least = &set[i];
    }
    *least = (struct login){.peer = peer, .seen_ms = now_ms};
    return least;
}

static void leak(struct login *login, int64_t max_per_min, int64_t now_ms)
{
    int64_t passed_ms = now_ms > login->seen_ms ? now_ms - login->seen_ms : 0;
    int64_t less = passed_ms >= MINUTE_MS ? login->failures_milli
                                          : passed_ms * max_per_min * MILLI / MINUTE_MS;

    assert(login->failures_milli >= 0 && less >= 0);
    login->failures_milli = less < login->failures_milli ? login->failures_milli - less : 0;
    /* What was too little to count stays for the next time. */
    login->seen_ms = login->failures_milli == 0
                         ? now_ms
                         : login->seen_ms + less * MINUTE_MS / (max_per_min * MILLI);
    if (login->failures_milli == 0)
        login->told = false;
}

bool logins_may(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms)
{
    struct login *login = find(logins, peer);

    if (!login || max_per_min == 0)
        return true;
    leak(login, max_per_min, now_ms);
    return login->failures_milli + MILLI <= max_per_min * MILLI;
}

bool logins_failed(struct logins *logins, uint64_t peer, int64_t max_per_min, int64_t now_ms)
{
    struct login *login;
    bool news;

    if (max_per_min == 0)
        return false;
    login = find_or_take(logins, peer, now_ms);
    leak(login, max_per_min, now_ms);
    login->failures_milli += MILLI;
    news = !login->told && login->failures_milli + MILLI > max_per_min * MILLI;
    login->told |= news;
    return news;
}
