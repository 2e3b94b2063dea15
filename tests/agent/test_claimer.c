/* Lease and claim loop against a server that is in this file: what is asked, how often, and what is
 * never asked. The rules themselves are tested with model/claim.c. */
#include "agent/claimer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "copies_fixture.h"
#include "model/claim.h"
#include "unit.h"

enum { CALLS_MAX = 64, BODY_MAX = 16384 };

struct table_row {
    char id[16], address[16], selector[16];
    int generation;
    int licences; /* licences that it needs */
};

struct world {
    struct fixture fixture;
    struct link_calls *link_calls;
    struct node_lease *node_lease;
    struct claimer *claimer;
    bool link;
    /* The server's side. */
    struct table_row rows[64];
    int row_count, version;
    const char *online; /* comma-separated */
    const char *leased;
    int left_ms;         /* time left of those leases */
    const char *goodbye; /* nodes whose lease ran out after a goodbye */
    const char *failures;
    const char *mode, *admin;
    const char *hanging; /* path of calls that are never answered */
    bool approved;
    int conflicts; /* number of claims to refuse */
    int seq;
    int lease_ms;
    int calls[4]; /* renew, view, claim, sync; see count_call */
    int claims;
    int yields, failed_yields;
    char yield_reason[128]; /* of the last yield */
    bool usage_hangs;       /* usage of n2 is not answered */
    int rooms[2];           /* licences left on n1 and n2, as the server knows them */
    int room_asks;
    struct capacity capacity;
    struct buf reply;
    struct {
        int64_t id;
        char path[64], body[BODY_MAX];
    } waiting[CALLS_MAX];
    int waiting_count;
};

static bool on_send(struct link_calls *link_calls, struct str text)
{
    struct world *world = link_calls->user;
    struct arena arena = {0};
    const struct json *call;

    if (!world->link)
        return false;
    assert_int_equal(json_parse(text, &arena, &call, NULL), ERR_OK);
    assert_true(world->waiting_count < CALLS_MAX);
    json_int(json_get(call, "id"), &world->waiting[world->waiting_count].id);
    str_copy(json_str(json_get(call, "path"), &arena), world->waiting[world->waiting_count].path,
             64);
    assert_true(str_copy(json_raw(json_get(call, "body")),
                         world->waiting[world->waiting_count].body, BODY_MAX));
    world->waiting_count++;
    arena_free(&arena);
    return true;
}

static void write_terminals(struct jsonw *w, const char *names)
{
    struct str rest = str_of(names);

    jsonw_arr(w);
    while (rest.at && rest.len) {
        struct str name = str_cut(&rest, ',');

        jsonw_obj(w);
        jsonw_kstr(w, "terminal_id", name);
        jsonw_kbool(w, "takes", true);
        jsonw_key(w, "tags");
        jsonw_obj(w);
        jsonw_kstr(w, "node_unit", STR("true"));
        jsonw_kstr(w, "node_unit_address", name);
        jsonw_end_obj(w);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
}

static void write_leases(struct jsonw *w, const char *names, int64_t left_ms)
{
    struct str rest = str_of(names);

    while (rest.at && rest.len) {
        jsonw_obj(w);
        jsonw_kstr(w, "address", str_cut(&rest, ','));
        jsonw_kint(w, "left_ms", left_ms);
        jsonw_kbool(w, "goodbye", left_ms < 0);
        jsonw_end_obj(w);
    }
}

static void write_needs(const struct table_row *row, struct jsonw *w)
{
    if (row->licences == 0)
        return;
    jsonw_key(w, "needs");
    jsonw_obj(w);
    jsonw_kint(w, "licences", row->licences);
    jsonw_end_obj(w);
}

static void answer_renew(struct world *world, const struct json *body, struct jsonw *w)
{
    world->calls[0]++;
    jsonw_kint(w, "lease_ms", world->lease_ms);
    jsonw_kint(w, "renew_ms", world->lease_ms / 9);
    jsonw_kint(w, "version", world->version);
    jsonw_kstr(w, "admin", str_of(world->admin));
    jsonw_key(w, "deployments");
    jsonw_arr(w);
    for (int i = 0; i < world->row_count; i++)
        if (strcmp(world->rows[i].address, "n1") == 0) {
            jsonw_obj(w);
            jsonw_kstr(w, "id", str_of(world->rows[i].id));
            jsonw_kint(w, "generation", world->rows[i].generation);
            jsonw_kint(w, "version", 1);
            jsonw_key(w, "spec");
            jsonw_obj(w);
            jsonw_kstr(w, "command", STR("serve"));
            jsonw_kstr(w, "selector", str_of(world->rows[i].selector));
            write_needs(&world->rows[i], w);
            jsonw_end_obj(w);
            jsonw_end_obj(w);
        }
    jsonw_end_arr(w);
}

static void answer_view(struct world *world, const struct json *body, struct jsonw *w)
{
    world->calls[1]++;
    jsonw_kint(w, "now_ms", 1);
    jsonw_kint(w, "version", world->version);
    jsonw_kstr(w, "mode", str_of(world->mode));
    jsonw_kint(w, "approved_until_ms", world->approved ? 2 : 0);
    jsonw_key(w, "leases");
    jsonw_arr(w);
    write_leases(w, world->leased, world->left_ms);
    write_leases(w, world->goodbye, -1);
    jsonw_end_arr(w);
    jsonw_kraw(w, "failures", str_of(world->failures));
    jsonw_key(w, "rows");
    jsonw_arr(w);
    for (int i = 0; i < world->row_count; i++) {
        jsonw_obj(w);
        jsonw_kstr(w, "id", str_of(world->rows[i].id));
        jsonw_kstr(w, "type", STR("deployment"));
        jsonw_kbool(w, "enabled", true);
        jsonw_kstr(w, "address", str_of(world->rows[i].address));
        jsonw_kint(w, "generation", world->rows[i].generation);
        jsonw_kstr(w, "selector", str_of(world->rows[i].selector));
        write_needs(&world->rows[i], w);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
}

static void answer_yield(struct world *world, const struct json *body, struct jsonw *w)
{
    bool failed = false;

    json_bool(json_get(body, "failed"), &failed);
    for (int i = 0; i < world->row_count; i++) {
        struct table_row *row = &world->rows[i];

        if (!json_str_is(json_get(body, "id"), row->id))
            continue;
        assert_string_equal(row->address, "n1");
        row->address[0] = 0;
        row->generation++;
        world->version++;
        world->yields++;
        str_copy(json_str(json_get(body, "reason"), &world->fixture.arena), world->yield_reason,
                 sizeof world->yield_reason);
        if (failed) {
            assert_string_equal(row->id, "d01");
            world->failed_yields++;
            world->failures = "[{\"id\":\"d01\",\"address\":\"n1\"}]";
        }
    }
}

static void answer_sync(struct world *world, const struct json *body, struct jsonw *w)
{
    world->calls[3]++;
    jsonw_kstr(w, "source", STR("s1"));
    jsonw_kint(w, "seq", world->seq++);
    jsonw_key(w, "terminals");
    write_terminals(w, world->online);
}

static void write_rooms(struct world *world, struct jsonw *w)
{
    world->room_asks++;
    jsonw_key(w, "room");
    jsonw_obj(w);
    for (int i = 0; i < 2; i++) {
        jsonw_key(w, i ? "n2" : "n1");
        jsonw_obj(w);
        jsonw_kraw(w, "resources", STR("{\"licences\":9}"));
        jsonw_key(w, "left");
        jsonw_obj(w);
        jsonw_kint(w, "licences", world->rooms[i] - (i == 0 ? world->fixture.kept : 0));
        jsonw_end_obj(w);
        jsonw_end_obj(w);
    }
    jsonw_end_obj(w);
}

static void answer_usage(struct world *world, const struct json *body, struct jsonw *w)
{
    if (json_get(body, "room"))
        write_rooms(world, w);
    jsonw_kraw(w, "usage",
               world->usage_hangs
                   ? STR("{\"n1\":{\"cpu_percent\":50,\"memory_mb\":10},\"n2\":null}")
                   : STR("{\"n1\":{\"cpu_percent\":50,\"memory_mb\":10},\"n2\":{"
                         "\"cpu_percent\":1,\"memory_mb\":10}}"));
}

static void answer_lost(struct world *world, const struct json *body, struct jsonw *w)
{
    assert_string_equal(world->mode, "seed");
    for (int i = 0; i < world->row_count; i++)
        if (json_str_is(json_get(body, "address"), world->rows[i].address)) {
            world->rows[i].address[0] = 0;
            world->rows[i].generation++;
        }
    world->version++;
}

static void answer_nothing(struct world *world, const struct json *body, struct jsonw *w)
{
}

/* False: another node was first. */
static bool claim(struct world *world, const struct json *body)
{
    struct arena arena = {0};
    struct str id = json_str(json_get(body, "id"), &arena);
    bool won = false;

    world->calls[2]++;
    for (int i = 0; i < world->row_count; i++) {
        struct table_row *row = &world->rows[i];
        int64_t generation = -1;

        json_int(json_get(body, "generation"), &generation);
        if (!str_is(id, row->id) || !json_str_is(json_get(body, "observed"), row->address) ||
            generation != row->generation || world->conflicts-- > 0)
            continue;
        strcpy(row->address, "n1");
        row->generation++;
        world->version++;
        world->claims++;
        won = true;
    }
    arena_free(&arena);
    return won;
}

static const struct {
    const char *path;
    void (*answer)(struct world *world, const struct json *body, struct jsonw *w);
} routes[] = {
    {"/v1/deployments/lost", answer_lost},     {"/v1/deployments/renew", answer_renew},
    {"/v1/deployments/view", answer_view},     {"/v1/terminals/sync", answer_sync},
    {"/v1/terminals/usage", answer_usage},     {"/v1/deployments/status", answer_nothing},
    {"/v1/deployments/claim", answer_nothing}, {"/v1/deployments/yield", answer_yield},
};

static void answer_one(struct world *world, int number)
{
    const struct json *body = fixture_json(&world->fixture, str_of(world->waiting[number].body));
    const char *path = world->waiting[number].path;
    bool ok = true;
    size_t i = 0;

    if (world->hanging && strcmp(path, world->hanging) == 0)
        return;
    while (i < COUNT_OF(routes) && strcmp(routes[i].path, path) != 0)
        i++;
    assert_true(i < COUNT_OF(routes));
    if (strcmp(path, "/v1/deployments/claim") == 0)
        ok = claim(world, body);
    struct jsonw w = jsonw_to(&world->reply);
    buf_clear(&world->reply);
    jsonw_obj(&w);
    jsonw_kstr(&w, "msg", STR("reply"));
    jsonw_kint(&w, "re", world->waiting[number].id);
    if (ok) {
        jsonw_kbool(&w, "ok", true);
        jsonw_key(&w, "body");
        jsonw_obj(&w);
        routes[i].answer(world, body, &w);
        jsonw_end_obj(&w);
    } else {
        jsonw_kint(&w, "status", 409);
        jsonw_kstr(&w, "error", STR("CONFLICT"));
        jsonw_kstr(&w, "reason", STR("claim_conflict"));
    }
    jsonw_end_obj(&w);
    assert_true(link_calls_reply(world->link_calls,
                                 fixture_json(&world->fixture, buf_view(&world->reply))));
}

/* Lets `ms` pass, then answers everything that was asked. */
static void pass(struct world *world, int64_t ms)
{
    fixture_tick(&world->fixture, ms);
    for (int i = 0; i < world->waiting_count; i++)
        answer_one(world, i);
    world->waiting_count = 0;
    arena_reset(&world->fixture.arena);
}

static void pass_long(struct world *world, int64_t ms)
{
    for (; ms > 0; ms -= 100)
        pass(world, 100);
}

static void rows(struct world *world, int count, const char *address)
{
    for (int i = 0; i < count; i++) {
        struct table_row *row = &world->rows[world->row_count++];

        snprintf(row->id, sizeof row->id, "d%02d", world->row_count);
        snprintf(row->address, sizeof row->address, "%s", address);
    }
    world->version++;
}

static int owned(const struct world *world, const char *address)
{
    int count = 0;

    for (int i = 0; i < world->row_count; i++)
        count += strcmp(world->rows[i].address, address) == 0;
    return count;
}

static int64_t skips(struct world *world, const char *reason)
{
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);
    int64_t count = 0;

    claimer_write(world->claimer, &w);
    json_int(json_get(json_get(fixture_json(&world->fixture, buf_view(&text)), "skips"), reason),
             &count);
    buf_free(&text);
    return count;
}

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct fixture *fixture = &world->fixture;

    world->mode = "hardened";
    world->admin = "none";
    world->online = "n1,n2";
    world->leased = "";
    world->left_ms = 1000;
    world->goodbye = "";
    world->failures = "[]";
    world->lease_ms = 45000;
    fixture_make(fixture);
    fixture->config.claim_policy = claim_policy_by_name(STR("deployment_count"));
    fixture->config.claim_interval_ms = 5000;
    fixture->config.move_after_failures = 3;
    fixture->config.claim_weights = score_defaults;
    resources_declare(&world->capacity.resources, STR("licences"), 9);
    fixture->licences = 9;
    fixture_open(fixture);
    world->link_calls = link_calls_new(&fixture->loop, on_send, world);
    world->node_lease = node_lease_new(&fixture->loop, world->link_calls, fixture->copies,
                                       &fixture->config, STR("n1"), STR("i1"));
    world->claimer =
        claimer_new(&fixture->loop, &(struct claimer_config){.config = &fixture->config,
                                                             .node_id = STR("n1"),
                                                             .link_calls = world->link_calls,
                                                             .copies = fixture->copies,
                                                             .capacity = &world->capacity,
                                                             .node_lease = world->node_lease});
    world->link = true;
    node_lease_up(world->node_lease);
    claimer_up(world->claimer);
    *state = world;
    return 0;
}

static int teardown(void **state)
{
    struct world *world = *state;

    claimer_free(world->claimer);
    node_lease_free(world->node_lease);
    link_calls_free(world->link_calls);
    fixture_close(&world->fixture);
    fixture_remove(&world->fixture);
    buf_free(&world->reply);
    free(world);
    return 0;
}

static void test_one_each_interval(void **state)
{
    struct world *world = *state;

    world->fixture.config.claim_budget = 1;
    rows(world, 6, "");
    rows(world, 6, "n2");
    for (int64_t ms = 0; ms < 33000; ms += 100) {
        pass(world, 100);
        claimer_wake(world->claimer); /* an event does not make it claim more */
        assert_true(world->claims <= 1 + ms / 5000);
    }
    assert_int_equal(world->claims, 6);
    assert_int_equal(fake_run_alive(), 6); /* each starts when the renewal names it */
    pass_long(world, 30000);
    assert_int_equal(world->claims, 6);
    assert_int_equal(owned(world, "n2"), 6); /* none was taken away */
    assert_true(skips(world, "no_candidate") > 0);
}

static void test_an_event_wakes_it(void **state)
{
    struct world *world = *state;

    pass_long(world, 3000);
    rows(world, 1, "");
    claimer_wake(world->claimer);
    pass_long(world, 600);
    assert_int_equal(world->claims, 1);
}

static void test_budget(void **state)
{
    struct world *world = *state;

    world->fixture.config.claim_budget = 20;
    rows(world, 30, "");
    pass_long(world, 1000);
    assert_int_equal(world->claims, 20);
    pass_long(world, 6000);
    assert_int_equal(world->claims, 20); /* more than n2 owns */
    assert_true(skips(world, "not_eligible") > 0);
}

/* It claims its half at once when the list of members is no longer new; the other half is n2's. */
static void test_a_share(void **state)
{
    struct world *world = *state;

    rows(world, 30, "");
    pass_long(world, 1000);
    assert_int_equal(world->claims, 1); /* n2 may be about to connect */
    pass_long(world, 5000);
    assert_int_equal(world->claims, 15);
    pass_long(world, 20000);
    assert_int_equal(world->claims, 15);
    assert_true(skips(world, "not_eligible") > 0);
    for (int i = 0; i < world->row_count; i++)
        if (!world->rows[i].address[0])
            strcpy(world->rows[i].address, "n2");
    rows(world, 3, "");
    claimer_wake(world->claimer);
    pass_long(world, 700);               /* an event starts a cycle, even just after a claim */
    assert_int_equal(world->claims, 17); /* n1 is first by name */
    rows(world, 4, "");
    claimer_wake(world->claimer);
    pass_long(world, 700);
    assert_int_equal(world->claims, 19); /* two of five level the counts, and n1 is first again */
}

/* With a policy whose metric must be measured again, it claims one share in an interval. */
static void test_a_share_by_usage(void **state)
{
    struct world *world = *state;

    world->fixture.config.claim_policy = claim_policy_by_name(STR("resource_usage"));
    world->usage_hangs = true;
    rows(world, 20, "");
    pass_long(world, 1000);
    assert_int_equal(world->claims, 1);
    for (int64_t ms = 0; ms < 5600; ms += 100) {
        claimer_wake(world->claimer);
        pass(world, 100);
    }
    assert_int_equal(world->claims, 1 + 10);
}

static void test_conflicts_are_counted_and_the_next_is_tried(void **state)
{
    struct world *world = *state;

    world->fixture.config.claim_budget = 1;
    rows(world, 3, "");
    world->conflicts = 2;
    pass_long(world, 1000);
    assert_int_equal(world->calls[2], 3);
    assert_int_equal(world->claims, 1);
    assert_int_equal(skips(world, "claim_conflict"), 2);
}

/* n2 is lost: nothing is claimed before the warm-up, the grace period and the end of its lease. */
static void test_lost(void **state)
{
    struct world *world = *state;

    world->fixture.config.claim_budget = 1;
    rows(world, 2, "n2");
    world->online = "n1";
    world->leased = "n2";
    pass_long(world, 60000);
    assert_int_equal(world->calls[2], 0); /* the lease is still good */
    world->leased = "";
    world->version++;
    pass_long(world, 3000);
    assert_int_equal(world->claims, 1);
    pass_long(world, 6000);
    assert_int_equal(world->claims, 2);
}

/* It knows when the lease ends, and looks then, not an interval later. */
static void test_lost_is_taken_at_once(void **state)
{
    struct world *world = *state;

    rows(world, 2, "n2");
    pass_long(world, 40000);
    world->online = "n1";
    world->leased = "n2";
    world->left_ms = 37000;
    claimer_wake(world->claimer);
    pass(world, 600);
    for (int ms = 0; ms < 37000; ms += 100) {
        world->left_ms = 37000 - ms;
        pass(world, 100);
    }
    assert_int_equal(world->claims, 0);
    world->leased = "";
    pass_long(world, 1000);
    assert_int_equal(world->claims, 2);
}

static void test_warm_up_after_a_new_connection(void **state)
{
    struct world *world = *state;

    rows(world, 2, "n2");
    world->online = "n1";
    pass_long(world, 29000);
    assert_int_equal(world->calls[2], 0);
    world->link = false; /* the server restarts */
    world->node_lease->up = false;
    world->claimer->up = false;
    link_calls_down(world->link_calls);
    pass_long(world, 10000);
    world->link = true;
    node_lease_up(world->node_lease);
    claimer_up(world->claimer);
    pass_long(world, 29000);
    assert_int_equal(world->calls[2], 0);
    world->online = "n1,n2"; /* n2 reconnects as well */
    pass_long(world, 60000);
    assert_int_equal(world->calls[2], 0);
    assert_int_equal(owned(world, "n2"), 2);
}

static void test_mass_loss(void **state)
{
    struct world *world = *state;

    rows(world, 1, "n2");
    rows(world, 1, "n3");
    rows(world, 1, "");
    world->online = "n1";
    pass_long(world, 120000);
    assert_int_equal(world->claims, 1); /* only what nobody owned */
    assert_int_equal(owned(world, ""), 0);
    assert_true(skips(world, "mass_loss") > 0);
    world->approved = true;
    pass_long(world, 6000);
    assert_int_equal(world->claims, 3);
}

/* Nodes that said goodbye are not lost: new deployments and theirs are claimed. */
static void test_goodbye(void **state)
{
    struct world *world = *state;

    world->online = "n1,n2,n3";
    pass_long(world, 40000);
    world->online = "n1";
    world->goodbye = "n2,n3";
    rows(world, 1, "");
    claimer_wake(world->claimer);
    pass_long(world, 1000);
    assert_int_equal(world->claims, 1);
    rows(world, 2, "n2");
    rows(world, 2, "n3");
    pass_long(world, 40000);
    assert_int_equal(world->claims, 5);
    assert_int_equal(skips(world, "mass_loss"), 0);
}

/* --- giving up --- */

static void fail_often(struct world *world, int times)
{
    for (int i = 0; i < times; i++) {
        for (int64_t ms = 0; ms < 120000 && fake_run_alive() == 0; ms += 100)
            pass(world, 100);
        assert_int_equal(fake_run_alive(), 1);
        fake_run_begin(fake_runs[fake_run_count - 1].key);
        fake_run_end(fake_runs[fake_run_count - 1].key, "EXITED", 127, -1, "not found");
    }
}

/* A deployment that cannot run here is given up if another node may try it, and not claimed
 * again. */
static void test_what_fails_goes_elsewhere(void **state)
{
    struct world *world = *state;

    rows(world, 1, "n1");
    rows(world, 2, "n2"); /* n2 has more, and still gets it */
    pass_long(world, 1000);
    fail_often(world, 2);
    pass_long(world, 6000);
    assert_int_equal(world->yields, 0);
    fail_often(world, 1);
    pass_long(world, 6000);
    if (fake_run_alive()) /* stopped before it is given up */
        fake_run_end(fake_runs[fake_run_count - 1].key, "STOPPED", -1, 15, "");
    pass_long(world, 1000);
    assert_int_equal(world->yields, 1);
    assert_int_equal(world->failed_yields, 1);
    pass_long(world, 20000);
    assert_int_equal(world->claims, 0);
    assert_int_equal(fake_run_alive(), 0);
    world->online = "n1"; /* no other node is left */
    pass_long(world, 10000);
    assert_int_equal(world->claims, 1);
}

static void test_what_fails_everywhere_stays(void **state)
{
    struct world *world = *state;

    rows(world, 1, "n1");
    world->failures = "[{\"id\":\"d01\",\"address\":\"n2\"}]";
    pass_long(world, 1000);
    fail_often(world, 6);
    pass_long(world, 10000);
    assert_int_equal(world->yields, 0);
    world->failures = "[]";
    world->online = "n1";
    fail_often(world, 2);
    pass_long(world, 10000);
    assert_int_equal(world->yields, 0);
}

/* The selector no longer matches: the copy is stopped, given up, and left alone. */
static void test_a_changed_selector(void **state)
{
    struct world *world = *state;
    struct arena arena = {0};

    assert_int_equal(
        json_parse(STR("{\"zone\":\"a\"}"), &arena, &world->fixture.config.labels, NULL), ERR_OK);
    rows(world, 1, "n1");
    strcpy(world->rows[0].selector, "zone=a");
    pass_long(world, 1000);
    fake_run_begin(fake_runs[0].key);
    strcpy(world->rows[0].selector, "zone=b");
    world->version++;
    node_lease_renew_now(world->node_lease);
    pass_long(world, 1000);
    assert_string_equal(fake_runs[0].stop, "STOPPED");
    assert_int_equal(world->yields, 0); /* the copy still runs */
    fake_run_end(fake_runs[0].key, "STOPPED", -1, 15, "");
    pass_long(world, 1000);
    assert_int_equal(world->yields, 1);
    assert_int_equal(world->failed_yields, 0);
    pass_long(world, 20000);
    assert_int_equal(world->claims, 0);
    assert_int_equal(fake_run_count, 1);
    arena_free(&arena);
}

static void test_what_keeps_it_from_claiming(void **state)
{
    struct world *world = *state;

    rows(world, 2, "");
    world->claimer->danger = true;
    pass_long(world, 6000);
    assert_true(skips(world, "level") > 0);
    world->claimer->danger = false;
    world->admin = "cordoned";
    pass_long(world, 6000);
    assert_true(skips(world, "draining") > 0);
    world->admin = "none";
    world->fixture.config.deployments_max = 0;
    pass_long(world, 6000);
    assert_true(skips(world, "full") > 0);
    assert_false(claimer_takes(world->claimer));
    world->fixture.config.deployments_max = 1;
    world->fixture.config.claim_policy = claim_policy_by_name(STR("none"));
    pass_long(world, 6000);
    assert_true(skips(world, "policy_disabled") > 0);
    assert_int_equal(world->calls[2], 0);
    world->fixture.config.claim_policy = claim_policy_by_name(STR("deployment_count"));
    pass_long(world, 20000);
    assert_int_equal(world->claims, 1); /* after which it is full */
}

static void test_no_lease_no_claim(void **state)
{
    struct world *world = *state;

    rows(world, 2, "");
    world->hanging = "/v1/deployments/renew";
    pass_long(world, 20000);
    assert_int_equal(world->calls[2], 0);
    assert_true(skips(world, "view_not_ready") > 0);
}

/* A call that hangs ends at its deadline, and the next cycle comes. */
static void test_a_hanging_call(void **state)
{
    struct world *world = *state;

    rows(world, 2, "");
    world->hanging = "/v1/deployments/view";
    pass_long(world, 20000);
    assert_int_equal(world->calls[2], 0);
    assert_in_range(world->calls[3], 3, 6);
    world->hanging = NULL;
    pass_long(world, 9000);
    assert_true(world->claims > 0);
}

static void test_a_node_that_does_not_tell_is_not_the_favourite(void **state)
{
    struct world *world = *state;

    world->fixture.config.claim_policy = claim_policy_by_name(STR("resource_usage"));
    rows(world, 2, "");
    pass_long(world, 12000);
    assert_int_equal(world->claims, 0); /* n2 is idler */
    world->usage_hangs = true;
    pass_long(world, 6000);
    assert_int_equal(world->claims, 1);
    world->fixture.config.unknown_metric = CONFIG_UNKNOWN_ZERO; /* as in mode seed */
    pass_long(world, 12000);
    assert_int_equal(world->claims, 1);
}

/* Mode seed has no leases and no grace period: an absent node is lost at once; all it owned is
 * released, and one deployment is claimed. */
static void test_seed_mode(void **state)
{
    struct world *world = *state;

    world->mode = "seed";
    world->leased = "n2";
    rows(world, 3, "n2");
    pass_long(world, 1000);
    assert_int_equal(world->calls[2], 0); /* n2 is online */
    world->online = "n1";
    pass_long(world, 5600);
    assert_int_equal(owned(world, "n2"), 0);
    assert_int_equal(owned(world, ""), 2);
    assert_int_equal(world->claims, 1);
    world->online = "";
    rows(world, 1, "n3");
    pass_long(world, 12000);
    assert_int_equal(owned(world, "n3"), 1); /* a view without members releases nothing */
}

/* The deadline of running copies counts from the moment the renewal was sent, not from its
 * answer. */
static void test_fence_counts_from_the_question(void **state)
{
    struct world *world = *state;
    int64_t before_ms;

    rows(world, 1, "n1");
    before_ms = clock_lease_ms();
    pass(world, 0);
    assert_int_equal(fake_run_count, 1);
    assert_in_range(fake_runs[0].deadline_ms, before_ms + 30000 - 2000, clock_lease_ms() + 30000);
    assert_int_equal(fake_runs[0].spec.deadline_grace_ms, 10000);
    fake_run_begin(fake_runs[0].key);
    world->hanging = "/v1/deployments/renew";
    int64_t deadline_ms = fake_runs[0].deadline_ms;
    pass_long(world, 20000);
    assert_int_equal(fake_runs[0].deadline_ms, deadline_ms);
    world->hanging = NULL;
    pass_long(world, 6000);
    assert_true(fake_runs[0].deadline_ms >= deadline_ms);
}

/* It claims only what fits, here and as the server sees it, and leaves the rest to other nodes;
 * nothing is claimed back and forth. */
static void test_claims_what_fits(void **state)
{
    struct world *world = *state;

    rows(world, 2, "");
    pass_long(world, 20000);
    assert_int_equal(world->room_asks, 0); /* no deployment has needs */
    assert_int_equal(world->claims, 1);
    strcpy(world->rows[0].address, "n1");
    strcpy(world->rows[1].address, "n1");
    rows(world, 4, "");
    for (int i = 2; i < 6; i++)
        world->rows[i].licences = i; /* 2, 3, 4, 5 */
    world->rooms[0] = 6;
    world->rooms[1] = 0;
    pass_long(world, 20000);
    assert_true(world->room_asks > 0);
    assert_int_equal(owned(world, "n1"), 4); /* those with 2 and 3; another one is too big */
    assert_int_equal(owned(world, ""), 2);
    assert_int_equal(world->calls[2], world->claims); /* none was refused */
    assert_int_equal(world->fixture.kept, 5);
    assert_true(skips(world, "no_room") > 0);
    assert_int_equal(world->yields, 0);
}

/* The server believes in more room than the node itself knows of. */
static void test_own_room_counts(void **state)
{
    struct world *world = *state;

    world->rooms[0] = world->rooms[1] = 9;
    world->online = "n1";
    world->capacity.resources.items[0].usable = 3;
    rows(world, 2, "");
    world->rows[0].licences = 4;
    world->rows[1].licences = 3;
    pass_long(world, 20000);
    assert_int_equal(world->claims, 1);
    assert_string_equal(world->rows[1].address, "n1");
    assert_int_equal(world->calls[2], 1);
}

/* If none of the planned rows fits here, nothing is claimed, and the cycle does not report a
 * conflict. */
static void test_no_room_is_no_conflict(void **state)
{
    struct world *world = *state;

    world->rooms[0] = 9;
    world->capacity.resources.items[0].usable = 3;
    rows(world, 2, "");
    world->rows[0].licences = world->rows[1].licences = 4;
    for (int i = 0; i < 120; i++) {
        pass(world, 100);
        assert_int_not_equal(world->claimer->last, CLAIM_CONFLICT);
    }
    assert_int_equal(world->claimer->last, CLAIM_NO_ROOM);
    assert_int_equal(world->calls[2], 0);
    assert_true(skips(world, "no_room") > 0);
    assert_int_equal(skips(world, "claim_conflict"), 0);
    assert_true(world->claimer->last_attempt_ms < 0); /* no claim was attempted */
}

/* A version that needs more than this node has is given up if another node has room, even where
 * failures do not move deployments. It does not count as a failure, and is not claimed again while
 * there is no room. */
static void test_no_room_moves_it(void **state)
{
    struct world *world = *state;

    world->fixture.config.move_after_failures = 0;
    world->fixture.licences = 3;
    world->capacity.resources.items[0].usable = 3;
    rows(world, 1, "n1");
    world->rows[0].licences = 5;
    pass_long(world, 20000);
    assert_int_equal(world->yields, 0); /* no node has that much */
    world->rooms[1] = 9;
    pass_long(world, 20000);
    assert_int_equal(world->yields, 1);
    assert_int_equal(world->failed_yields, 0);
    assert_string_equal(world->yield_reason, "This node has no room for it: licences: 3 free.");
    world->rooms[0] = 9; /* the server does not know yet */
    pass_long(world, 60000);
    assert_int_equal(world->claims, 0);
}

/* A short lack of room, even if it repeats, moves nothing. */
static void test_little_room_for_a_moment(void **state)
{
    struct world *world = *state;

    rows(world, 1, "n1");
    world->rows[0].licences = 5;
    world->rooms[0] = world->rooms[1] = 9;
    world->fixture.licences = 3;
    pass_long(world, 2000);
    claimer_wake(world->claimer);
    pass_long(world, 2000);
    world->fixture.licences = 9;
    pass_long(world, 2000);
    assert_int_equal(fake_run_alive(), 1);
    for (int i = 0; i < 10; i++) {
        world->fixture.licences = i % 2 ? 9 : 3; /* its room is reserved by now */
        pass_long(world, 4000);
    }
    assert_int_equal(fake_run_alive(), 1);
    assert_int_equal(world->yields, 0);
}

#define CLAIM_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLAIM_TEST(test_one_each_interval),
        CLAIM_TEST(test_an_event_wakes_it),
        CLAIM_TEST(test_budget),
        CLAIM_TEST(test_a_share),
        CLAIM_TEST(test_a_share_by_usage),
        CLAIM_TEST(test_conflicts_are_counted_and_the_next_is_tried),
        CLAIM_TEST(test_lost),
        CLAIM_TEST(test_lost_is_taken_at_once),
        CLAIM_TEST(test_warm_up_after_a_new_connection),
        CLAIM_TEST(test_mass_loss),
        CLAIM_TEST(test_goodbye),
        CLAIM_TEST(test_what_fails_goes_elsewhere),
        CLAIM_TEST(test_what_fails_everywhere_stays),
        CLAIM_TEST(test_a_changed_selector),
        CLAIM_TEST(test_what_keeps_it_from_claiming),
        CLAIM_TEST(test_no_lease_no_claim),
        CLAIM_TEST(test_a_hanging_call),
        CLAIM_TEST(test_a_node_that_does_not_tell_is_not_the_favourite),
        CLAIM_TEST(test_seed_mode),
        CLAIM_TEST(test_fence_counts_from_the_question),
        CLAIM_TEST(test_claims_what_fits),
        CLAIM_TEST(test_own_room_counts),
        CLAIM_TEST(test_no_room_is_no_conflict),
        CLAIM_TEST(test_no_room_moves_it),
        CLAIM_TEST(test_little_room_for_a_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
