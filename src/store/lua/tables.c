/* A build tool: generates, as Lua, what the function library shares with the C side, from the C
 * definitions: names and numbers, limits, the job state machine, record layouts. The output becomes
 * the first part of the library. */
#include "model/job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/breakers.h"
#include "store/ending.h"
#include "store/ledger.h"
#include "store/record.h"
#include "store/redis_wire.h"

/* A Lua table with a name for each number; rows of one table are consecutive. NULL: a separate
 * local. */
static const struct {
    const char *table;
    const char *name;
    int64_t value;
} numbers[] = {
#define ERROR(name) {"ERR", #name, WIRE_ERR_##name},
    WIRE_ERRORS(ERROR)
#undef ERROR
        {"WHY", "OK", LEASE_OK},
    {"WHY", "NOT_READY", LEASE_NOT_READY},
    {"WHY", "NO_CAPACITY", LEASE_NO_CAPACITY},
    {"WHY", "FULL", LEASE_FULL},
    {"WHY", "RESOURCES", LEASE_RESOURCES},
    {"WHY", "BREAKER", LEASE_BREAKER},
    {"WHY", "HELD", LIMIT_HELD},
    {"WHY", "CONCURRENCY", LIMIT_CONCURRENCY},
    {"WHY", "RATE", LIMIT_RATE},
    {"WHY", "QUEUE", LIMIT_QUEUE},
    {"HEALTH", "NONE", NODE_HEALTH_NONE},
    {"HEALTH", "READY", NODE_READY},
    {"HEALTH", "DRAINING", NODE_DRAINING},
    {"HEALTH", "OFFLINE", NODE_OFFLINE},
    {"CALLBACK", "NONE", CALLBACK_NONE},
    {"CALLBACK", "WANTED", CALLBACK_WANTED},
    {"CALLBACK", "PENDING", CALLBACK_PENDING},
    {"CALLBACK", "SENT", CALLBACK_SENT},
    {"CALLBACK", "GIVEN_UP", CALLBACK_GIVEN_UP},
    {"BREAKER", "CLOSED", BREAKER_CLOSED},
    {"BREAKER", "OPEN", BREAKER_OPEN},
    {"BREAKER", "HALF_OPEN", BREAKER_HALF_OPEN},
    {"EVENT", "NONE", BREAKER_NO_EVENT},
    {"EVENT", "TRIPPED", BREAKER_TRIPPED},
    {"EVENT", "PROBE_FAILED", BREAKER_PROBE_FAILED},
    {"EVENT", "RECOVERED", BREAKER_RECOVERED},
    {"LINK", "SOCKET", STORE_LINK_SOCKET},
    {"LINK", "POLL", STORE_LINK_POLL},
    {"LINK", "LEFT", STORE_LINK_LEFT},
    {"OUTCOME", "DONE", STORE_DONE},
    {"OUTCOME", "FAIL", STORE_FAIL},
    {"OUTCOME", "REFUSED", STORE_REFUSED},
    {"OUTCOME", "SEND_FAILED", STORE_SEND_FAILED},
    {"OUTCOME", "EXPIRE", STORE_EXPIRE},
    {"OUTCOME", "QUEUE_TIMEOUT", STORE_QUEUE_TIMEOUT},
    {"OUTCOME", "ABANDON", STORE_ABANDON},
    {"CODE", "PUT", COLUMN_PUT},
    {"CODE", "RESERVE", COLUMN_RESERVE},
    {"CODE", "ACK", COLUMN_ACK},
    {"CODE", "FINISH", COLUMN_FINISH},
    {"CODE", "FAST", COLUMN_FAST},
    {"CODE", "OTHER_BUCKET", COLUMN_OTHER_BUCKET},
    {"CODE", "MORE_TEXT", COLUMN_MORE_TEXT},
    {"CODE", "FRESH", COLUMN_FRESH},
    {"LIMIT", "NODE_ID", NODE_ID_MAX},
    {"LIMIT", "WHOLE_PERCENT", RESOURCES_WHOLE_PERCENT},
    {"LIMIT", "LEFT_WHOLE", RESOURCES_LEFT_WHOLE},
    {"LIMIT", "RULES", LIMIT_RULES_MAX},
    {"LIMIT", "STEPS", LIMIT_STEPS},
    {"LIMIT", "HOLD_MS", LIMIT_HOLD_MS_MAX},
    {"LIMIT", "KEY", DEMAND_FULL_KEY_MAX},
    {"LIMIT", "HOLDERS", LIMIT_HOLDERS},
    {"LIMIT", "KEY_REASON", LIMIT_REASON_MAX},
    {"LIMIT", "TYPE", POOL_LANG_MAX},
    {"LIMIT", "HISTORY", STORE_HISTORY_MAX},
    {"LIMIT", "BREAKERS", BREAKERS_MAX},
    {"LIMIT", "NUMBERS", STORE_NUMBERS - 1}, /* 0 is for the embedded store */
    {"LIMIT", "RESULT", WIRE_RESULT_MAX},
    {"LIMIT", "LANE_ANNOUNCED", STORE_LANE_ANNOUNCED},
    {"LIMIT", "RENEW", WIRE_RENEW_MAX},
    {"LIMIT", "OWED", WIRE_OWED_MAX},
    {"LIMIT", "CLEAR", LEDGER_CLEAR_MAX}, /* expired leases cleared by one reserve */
    {NULL, "AWAY_MS", LEDGER_AWAY_MS},
    {NULL, "AWAY_GRACE_MS", LEDGER_AWAY_GRACE_MS},
    {NULL, "BACK_MS", LEDGER_BACK_MS},
    {NULL, "INSTANCE_MS", WIRE_INSTANCE_MS},
    {NULL, "ANSWERS", WIRE_ANSWERS},
    {NULL, "FULL", WIRE_FULL},
    {NULL, "ATTEMPTS_MAX", JOB_ATTEMPTS_MAX},
    {NULL, "FOREVER", WIRE_FOREVER},
    {NULL, "ANSWER", WIRE_ANSWER_MARK},
    {NULL, "BUCKET", RECORD_BUCKET},
    {NULL, "SPAN", RECORD_SPAN},
    {NULL, "JOB_ID", JOB_ID_TEXT},
    {NULL, "TOLD_TEXT", RECORD_TOLD_TEXT},
    {NULL, "TOLD_DONE", RECORD_TOLD_DONE},
    {NULL, "NONE", LEASE_NONE},
    {NULL, "RESERVED_LEASE", LEASE_RESERVED},
    {NULL, "RUNNING_LEASE", LEASE_RUNNING},
    {NULL, "FORMAT_OLDEST", FORMAT_OLDEST},
    {NULL, "FORMAT_NEWEST", FORMAT_NEWEST},
};

static const struct {
    const char *name;
    const char *text;
} packed[] = {
    {"PUT_TERM", COLUMN_PUT_TERM},   {"ACK_TERM", COLUMN_ACK_TERM},
    {"BOUND", COLUMN_BOUND},         {"SEND", COLUMN_SEND},
    {"PUT_REST", COLUMN_PUT_REST},   {"COUNT_REST", COLUMN_COUNT_REST},
    {"NODE_REST", COLUMN_NODE_REST}, {"WAIT_REST", COLUMN_WAIT_REST},
    {"ACK_REST", COLUMN_ACK_REST},   {"FINISH_REST", COLUMN_FINISH_REST},
    {"UNREADABLE", WIRE_UNREADABLE},
};

static bool same_table(size_t i, size_t k)
{
    return k < COUNT_OF(numbers) && numbers[i].table && numbers[k].table &&
           strcmp(numbers[i].table, numbers[k].table) == 0;
}

static void write_numbers(void)
{
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        if (!numbers[i].table) {
            printf("local %s = %" PRId64 "\n", numbers[i].name, numbers[i].value);
            continue;
        }
        if (i == 0 || !same_table(i, i - 1))
            printf("local %s = {", numbers[i].table);
        printf("%s = %" PRId64 "%s", numbers[i].name, numbers[i].value,
               same_table(i, i + 1) ? ", " : "}\n");
    }
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        printf("%s%s", i ? ", " : "local ", job_state_name((enum job_state)i));
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        printf("%s%d", i ? ", " : " = ", i);
    printf("\n");
    for (size_t i = 0; i < COUNT_OF(packed); i++)
        printf("%s%s = '%s'%s", i ? ", " : "local PACKED = {", packed[i].name, packed[i].text,
               i + 1 < COUNT_OF(packed) ? "" : "}\n");
    printf("local REASON = {RUN_TIMEOUT = '" ENDING_RUN_TIMEOUT "', NODE_LOST = '" ENDING_NODE_LOST
           "'}\n");
}

/* --- the job machine --- */

static struct job_step try(int state, int event, bool attempts_left, bool candidates_left)
{
    return job_step(&(struct job_facts){.state = (enum job_state)state,
                                        .attempt = 1,
                                        .max_attempts = attempts_left ? 2 : 1,
                                        .node = STR("n")},
                    &(struct job_input){.event = (enum job_event)event,
                                        .attempt = 1,
                                        .node = STR("n"),
                                        .candidates_left = candidates_left});
}

static void write_otherwise(const char *need, struct job_step without)
{
    printf(", need = '%s'", need);
    if (without.accepted)
        printf(", otherwise = %d", without.state);
}

/* An edge: its target, the condition for it, the target otherwise, the effect on the lease, and
 * whether the next attempt begins. */
static void write_edge(int state, int event)
{
    struct job_step step = try(state, event, true, true);
    struct job_step no_attempts = try(state, event, false, true);
    struct job_step no_candidates = try(state, event, true, false);

    if (!step.accepted)
        return;
    printf(" %s = {to = %d", job_event_name((enum job_event)event), step.state);
    if (no_attempts.accepted != step.accepted || no_attempts.state != step.state)
        write_otherwise("attempts", no_attempts);
    else if (no_candidates.accepted != step.accepted || no_candidates.state != step.state)
        write_otherwise("candidates", no_candidates);
    if (step.effect != JOB_EFFECT_NONE)
        printf(", effect = '%s'", job_effect_name(step.effect));
    printf("%s},", step.attempt > 1 ? ", next = true" : "");
}

/* Must it name the job's attempt and node? True for messages from nodes. */
static bool is_by_node(int event)
{
    for (int state = 0; state < JOB_STATE_COUNT; state++) {
        struct job_facts facts = {
            .state = (enum job_state)state, .attempt = 1, .max_attempts = 2, .node = STR("n")};
        struct job_input in = {.event = (enum job_event)event, .candidates_left = true};

        if (try(state, event, true, true).accepted && !job_step(&facts, &in).accepted)
            return event != JOB_EV_RESERVED; /* which names the chosen node */
    }
    return false;
}

static void write_machine(void)
{
    printf("local machine = {edges = {}, by_node = {}, endings = {}}\n");
    for (int state = 0; state < JOB_STATE_COUNT; state++) {
        printf("machine.edges[%d] = {", state);
        for (int event = 0; event < JOB_EVENT_COUNT; event++)
            write_edge(state, event);
        printf("}\n");
    }
    for (int event = 0; event < JOB_EVENT_COUNT; event++)
        if (is_by_node(event))
            printf("machine.by_node.%s = true\n", job_event_name((enum job_event)event));
    for (int i = 0; i < STORE_OUTCOME_COUNT; i++)
        printf("machine.endings[%d] = {event = '%s', reason = '%s', of_attempt = %s}\n", i,
               job_event_name(endings[i].event), endings[i].reason,
               endings[i].of_attempt ? "true" : "false");
}

/* --- the records --- */

static const char *const codes[] = {
    [RECORD_U8] = "B",    [RECORD_BOOL] = "B", [RECORD_U32] = "I4", [RECORD_I32] = "i4",
    [RECORD_TIME] = "i6", [RECORD_I64] = "i8", [RECORD_U64] = "c8", [RECORD_TEXT] = "s"};

/* Iterates over the fields of one format, and of one part unless that is NULL. */
static const struct record_field *next_field(const struct record_layout *layout, int format,
                                             const char *part, size_t *at)
{
    while (*at < layout->count) {
        const struct record_field *field = &layout->fields[(*at)++];

        if (record_is_there(field, format) && (!part || strcmp(field->part, part) == 0))
            return field;
    }
    return NULL;
}

static void write_format(const struct record_layout *layout, int format, const char *part)
{
    bool first = !part || strcmp(part, layout->fields[0].part) == 0; /* with the format itself */
    const struct record_field *field;

    printf("'<%s", first ? "B" : "");
    for (size_t at = 0; (field = next_field(layout, format, part, &at));)
        printf("%s", codes[field->kind]);
    printf("'");
}

/* As struct.pack takes it. */
static void write_packed_plain(const struct record_field *field)
{
    assert(field->plain != RECORD_GIVEN && (field->kind != RECORD_U64 || field->plain == 0));
    if (field->kind == RECORD_U64)
        printf("NO_LANE");
    else
        printf("%" PRId64, field->plain);
}

static void write_plain(const struct record_field *field)
{
    if (field->kind == RECORD_BOOL)
        printf("%s", field->plain ? "true" : "false");
    else
        write_packed_plain(field);
}

/* Generates code that makes a new table from a record, or, for `state`, which has no rest, fills an
 * existing one. */
static void write_read(const struct record_layout *layout, int format)
{
    const struct record_field *field;

    printf("  read = function(%s, packed)\n    local _", layout->rest ? "id" : "u");
    for (size_t at = 0; (field = next_field(layout, format, NULL, &at));)
        printf(", %s", field->name);
    printf("%s = unpack_struct(", layout->rest ? ", to" : "");
    write_format(layout, format, NULL);
    printf(", packed)\n");
    printf("%s", layout->rest ? "    return {id = id" : "");
    for (size_t i = 0; i < layout->count; i++) {
        field = &layout->fields[i];
        printf(layout->rest ? ", %s = " : "    u.%s = ", field->name);
        if (!record_is_there(field, format))
            write_plain(field);
        else
            printf("%s%s", field->name, field->kind == RECORD_BOOL ? " == 1" : "");
        printf("%s", layout->rest ? "" : "\n");
    }
    if (layout->rest)
        printf(", %s = sub(packed, to)}\n", layout->rest);
    printf("  end,\n");
}

/* Default values for when there is no record yet. */
static void write_begin(const struct record_layout *layout)
{
    printf("  begin = function(u)\n");
    for (size_t i = 0; i < layout->count; i++) {
        if (layout->fields[i].plain == RECORD_GIVEN)
            continue;
        printf("    u.%s = ", layout->fields[i].name);
        write_plain(&layout->fields[i]);
        printf("\n");
    }
    printf("  end,\n");
}

/* A function that packs a table: whole, or only its first part. */
static void write_pack(const char *name, const struct record_layout *layout, int format,
                       const char *part)
{
    const struct record_field *field;

    printf("  %s = function(t)\n    return pack(", name);
    write_format(layout, format, part);
    printf(", %d", format);
    for (size_t at = 0; (field = next_field(layout, format, part, &at));) {
        printf(", t.%s", field->name);
        if (field->kind == RECORD_BOOL)
            printf(" and 1 or 0");
        else if (field->plain != RECORD_GIVEN) {
            printf(" or ");
            write_packed_plain(field);
        }
    }
    printf(layout->rest && !part ? ") .. t.%s\n  end,\n" : ")\n  end,\n", layout->rest);
}

/* The text of the counts of a node. */
static void write_counts(int format)
{
    const struct record_field *field;
    const char *comma = "";

    printf("  counts = function(");
    for (size_t at = 0; (field = next_field(&record_node, format, "counts", &at));) {
        if (field->plain != RECORD_GIVEN)
            continue;
        printf("%s%s", comma, field->name);
        comma = ", ";
    }
    printf(")\n    return pack(");
    write_format(&record_node, format, "counts");
    printf(", %d", format);
    for (size_t at = 0; (field = next_field(&record_node, format, "counts", &at));) {
        printf(", ");
        if (field->plain == RECORD_GIVEN)
            printf("%s", field->name);
        else
            write_packed_plain(field);
    }
    printf(")\n  end,\n");
}

/* The positions of the numbers, the first text and the parts. */
static void write_places(const struct record_layout *layout, int format)
{
    const struct record_field *field;
    size_t place = 2; /* the first byte is the format */
    const char *part = "";

    printf("  at = {");
    for (size_t at = 0; (field = next_field(layout, format, NULL, &at));) {
        printf("%s = %zu, ", field->name, place);
        if (field->kind == RECORD_TEXT)
            break;
        place += record_width(field->kind);
    }
    printf("},\n  from = {");
    place = 2;
    for (size_t at = 0; (field = next_field(layout, format, NULL, &at));) {
        if (strcmp(part, field->part) != 0)
            printf("%s = %zu, ", field->part, *part ? place : 1);
        part = field->part;
        if (field->kind == RECORD_TEXT)
            break;
        place += record_width(field->kind);
    }
    printf("rest = %zu},\n", place); /* of one without texts */
}

static void write_layout(const struct record_layout *layout, int format)
{
    printf("records.%s[%d] = {\n", layout->name, format);
    write_read(layout, format);
    if (!layout->rest)
        write_begin(layout);
    write_pack("pack", layout, format, NULL);
    write_places(layout, format);
    if (layout == &record_job)
        write_pack("head", layout, format, "head");
    if (layout == &record_node)
        write_counts(format);
    printf("}\n");
}

int main(void)
{
    printf("-- Made by lua/tables.c.\n");
    printf("local pack, unpack_struct, sub\n");
    printf("local KEY = '" REDIS_KEY "'\n");
    printf("local NO_LANE = '\\0\\0\\0\\0\\0\\0\\0\\0'\n");
    write_numbers();
    write_machine();
    printf("local records = {job = {}, node = {}, state = {}}\n");
    for (int format = FORMAT_OLDEST; format <= FORMAT_NEWEST; format++) {
        write_layout(&record_job, format);
        write_layout(&record_node, format);
        write_layout(&record_state, format);
    }
    return 0;
}
