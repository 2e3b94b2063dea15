/* What an instance makes of the store's information about a node's connection. */
#include "rig.h"

#include "sched/node_sync.h"

enum { US = 0x11, OTHER = 0x22, NOW_MS = 1000000, BEAT_AGO_MS = 3000 };

static int calls; /* calls of the hook */
static bool away; /* is_away of the last call */

static void linked(struct sched_loop *from, struct node *node, const struct store_live *said,
                   bool is_away)
{
    calls++;
    away = is_away;
}

static const struct {
    const char *what;
    struct store_live said;
    uint64_t link;       /* of a socket of this instance */
    uint64_t link_order; /* of this instance's last report; the store's has order 10 */
    uint32_t instance;   /* expected afterwards */
    bool left;
    int calls;
    bool away;
} rows[] = {
    {"nothing was ever said", {.kind = STORE_LINK_NONE}, 0, 0, 0, false, 0, false},
    {"a socket elsewhere",
     {.kind = STORE_LINK_SOCKET, .instance = OTHER},
     0,
     0,
     OTHER,
     false,
     1,
     true},
    {"it polls elsewhere",
     {.kind = STORE_LINK_POLL, .instance = OTHER},
     0,
     0,
     OTHER,
     false,
     1,
     true},
    {"its socket closed elsewhere",
     {.kind = STORE_LINK_LEFT, .instance = OTHER, .linked_ms = 100},
     0,
     0,
     0,
     true,
     0,
     false},
    {"closed long ago, and it gave signs of life since",
     {.kind = STORE_LINK_LEFT, .instance = OTHER, .linked_ms = 60000},
     0,
     0,
     0,
     false,
     0,
     false},
    {"our socket, as it is", {.kind = STORE_LINK_SOCKET, .instance = US}, 7, 0, 0, false, 0, false},
    {"our socket, which the store forgot", {.kind = STORE_LINK_NONE}, 7, 0, 0, false, 1, false},
    {"our socket, and a newer one elsewhere",
     {.kind = STORE_LINK_SOCKET, .instance = OTHER},
     7,
     0,
     OTHER,
     false,
     1,
     true},
    {"the same, but our report is newer",
     {.kind = STORE_LINK_SOCKET, .instance = OTHER},
     7,
     11,
     0,
     false,
     0,
     false},
    {"the same, but our report is on its way",
     {.kind = STORE_LINK_SOCKET, .instance = OTHER},
     7,
     UINT64_MAX,
     0,
     false,
     0,
     false},
    {"a socket of ours that is not there any more",
     {.kind = STORE_LINK_SOCKET, .instance = US},
     0,
     0,
     0,
     false,
     1,
     false},
};

static void every_word_of_the_store(void **state)
{
    static const struct sched_hooks hooks = {.linked = linked};
    static const int64_t mono_ms = NOW_MS;
    struct store store = {.name = US};
    struct sched_loop loop = {.mono_ms = &mono_ms};
    struct sched sched = {.store = &store, .loops = &loop, .hooks = &hooks};
    loop.sched = &sched;
    struct node_sync *view = node_sync_new(&sched, NULL);

    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct node node = {.link = rows[i].link,
                            .link_order = rows[i].link_order,
                            .heartbeat_ms = NOW_MS - BEAT_AGO_MS};
        struct store_live said = rows[i].said;

        said.silent_ms = -1;
        calls = 0;
        node_sync_take_live(view, &node, &said, 10);
        if (atomic_load(&node.instance) != rows[i].instance ||
            !!node.disconnected_ms != rows[i].left || calls != rows[i].calls ||
            (calls && away != rows[i].away))
            fail_msg("%s: instance %x, left %d, calls %d", rows[i].what, node.instance,
                     node.disconnected_ms != 0, calls);
    }
    node_sync_free(view);
}

/* A store that is not shared has no connections; whatever it returns is ignored. */
static void a_store_of_our_own_has_no_others(void **state)
{
    static const int64_t mono_ms = NOW_MS;
    struct store store = {0};
    struct sched_loop loop = {.mono_ms = &mono_ms};
    struct sched sched = {.store = &store, .loops = &loop};
    loop.sched = &sched;
    struct node_sync *view = node_sync_new(&sched, NULL);
    struct node node = {.heartbeat_ms = 1};
    struct store_live said = {.kind = STORE_LINK_SOCKET, .instance = OTHER, .silent_ms = 5};

    node_sync_take_live(view, &node, &said, 10);
    node_sync_list_peers(view);
    node_sync_tick(view);
    assert_int_equal(node.instance, 0);
    assert_int_equal(node.heartbeat_ms, 1);
    node_sync_free(view);
}

/* Heartbeat times of other instances are exact to a second: a smaller step is no new sign of life,
 * or a lost node would come back again and again. */
static void small_steps_are_no_signs_of_life(void **state)
{
    static const struct {
        int64_t ago_ms, silent_ms, expected_ago_ms;
    } steps[] = {{3000, 2500, 3000}, {3000, 1500, 1500}, {3000, 5000, 3000}, {3000, -1, 3000}};
    static const struct sched_hooks hooks = {.linked = linked};
    static const int64_t mono_ms = NOW_MS;
    struct store store = {.name = US};
    struct sched_loop loop = {.mono_ms = &mono_ms};
    struct sched sched = {.store = &store, .loops = &loop, .hooks = &hooks};
    loop.sched = &sched;
    struct node_sync *view = node_sync_new(&sched, NULL);

    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct node node = {.heartbeat_ms = NOW_MS - steps[i].ago_ms};
        struct store_live said = {.silent_ms = steps[i].silent_ms};

        node_sync_take_live(view, &node, &said, 10);
        assert_int_equal(node.heartbeat_ms, NOW_MS - steps[i].expected_ago_ms);
    }
    node_sync_free(view);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word_of_the_store),
        cmocka_unit_test(a_store_of_our_own_has_no_others),
        cmocka_unit_test(small_steps_are_no_signs_of_life),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
