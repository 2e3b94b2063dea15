/* What one changed node costs the keeper: bench_snapshot [NODES...]. A third of the nodes take any
 * type, the others one of ten. The changed node reports other facts, or comes and goes. */
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sched/node_report.h"
#include "sched/snapshot.h"

enum { ROUNDS = 50 };

static int64_t cpu_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static struct facts *facts_of(int number, int round)
{
    struct arena arena = {0};
    struct str json = arena_fmt(
        &arena, "{\"node_id\":\"node-%d\",\"name\":\"v%d\",\"allowed_types\":[\"t%d\"%s]}", number,
        round, number % 10, number % 3 ? "" : ",\"*\"");
    const struct json *root;
    struct node_report report;
    struct facts *facts;
    struct problem why;

    if (json_parse(json, &arena, &root, &why) ||
        node_report_read(root, STR_NONE, NULL, &arena, &report, &why) ||
        node_report_facts(&report, NULL, &facts, &why))
        abort();
    arena_free(&arena);
    return facts;
}

static struct str put(struct node_table *members, int number, int round)
{
    static char id[24];

    snprintf(id, sizeof id, "node-%d", number);
    node_table_put(members, str_of(id), facts_of(number, round));
    return str_of(id);
}

static struct snapshot *publish(struct node_table *members, struct snapshot *before)
{
    struct snapshot *snapshot = node_table_publish(members);

    snapshot_free(before);
    return snapshot;
}

static void measure(int count)
{
    struct node_table *members = node_table_new(NULL, 0);
    struct snapshot *snapshot = NULL;
    int64_t began_us = cpu_us(), all_us, changed_us = 0, came_us = 0;

    for (int i = 0; i < count; i++)
        put(members, i, 0);
    began_us = cpu_us();
    snapshot = publish(members, NULL);
    all_us = cpu_us() - began_us;
    for (int i = 1; i <= ROUNDS; i++) {
        put(members, i * 7919 % count, i);
        began_us = cpu_us();
        snapshot = publish(members, snapshot);
        changed_us += cpu_us() - began_us;
        node_table_del(members, put(members, count + i, i));
        put(members, count + i, i);
        began_us = cpu_us();
        snapshot = publish(members, snapshot);
        came_us += cpu_us() - began_us;
    }
    printf(
        "%d nodes: all at once %lld us, one that says something else %lld us, a new one %lld us\n",
        count, (long long)all_us, (long long)(changed_us / ROUNDS), (long long)(came_us / ROUNDS));
    snapshot_free(snapshot);
    node_table_free(members);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        measure(atoi(argv[i]));
    return 0;
}
