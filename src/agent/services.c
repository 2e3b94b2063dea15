/* Turns the server's reply into a text, and the text into a file. A pool thread writes the file, so
 * that a hanging disk blocks nothing else, and replaces it atomically: readers find the old one or
 * the new one. */
#include "agent/services.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/fd.h"
#include "base/clock.h"
#include "base/log.h"

enum {
    CALL_MS = 3000,
    FIRST_MS = 5000, /* how long an earlier agent's file may stay */
};

struct services_entry {
    struct str name, node, address; /* address.at == NULL: unknown */
    int64_t index, port;            /* port 0: none */
    struct str healthy;             /* JSON */
    int64_t until_ms;               /* clock_lease_ms(): end of its node's lease */
};

/* --- the file, on a pool thread --- */

/* World-readable: it contains only names and ports. */
static void write_file(struct loop_job *job)
{
    struct services *services = container_of(job, struct services, job);
    char fresh[SERVICES_PATH_MAX + 8];
    int fd;

    snprintf(fresh, sizeof fresh, "%s.new", services->path);
    fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    services->error = fd < 0 ? errno : fd_write_all(fd, buf_view(&services->written));
    fd_close(fd);
    if (!services->error && rename(fresh, services->path) != 0)
        services->error = errno;
    if (services->error && fd >= 0)
        unlink(fresh);
}

/* --- on the loop --- */

static void file_written(struct loop_job *job)
{
    struct services *services = container_of(job, struct services, job);

    assert(services->busy);
    services->busy = false;
    if (services->error && services->error != services->last_error)
        log_event(LOG_WARN, "agent.services_not_written", KC("path", services->path),
                  KC("reason", strerror(services->error)));
    services->last_error = services->error;
    if (services->error)
        buf_clear(&services->written); /* the next change tries again */
}

static void make_text(struct services *services)
{
    struct jsonw w = jsonw_to(&services->text);
    int64_t now_ms = clock_lease_ms();
    struct str name = STR_NONE;

    services->ends_ms = INT64_MAX;
    buf_clear(&services->text);
    jsonw_obj(&w);
    jsonw_kobj(&w, "services");
    for (size_t i = 0; i < services->count; i++) {
        const struct services_entry *entry = &services->entries[i];

        if (entry->until_ms <= now_ms)
            continue;
        if (entry->until_ms < services->ends_ms)
            services->ends_ms = entry->until_ms;
        if (!name.at || !str_eq(name, entry->name)) {
            if (name.at)
                jsonw_end_arr(&w);
            name = entry->name;
            jsonw_key_str(&w, name);
            jsonw_arr(&w);
        }
        jsonw_obj(&w);
        jsonw_kint(&w, "index", entry->index);
        jsonw_kstr(&w, "node", entry->node);
        jsonw_kstr(&w, "address", entry->address);
        if (entry->port)
            jsonw_kint(&w, "port", entry->port);
        else
            jsonw_knull(&w, "port");
        jsonw_kraw(&w, "healthy", entry->healthy);
        jsonw_end_obj(&w);
    }
    if (name.at)
        jsonw_end_arr(&w);
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
    buf_char(&services->text, '\n');
}

/* Replaces the file if it is out of date. */
static void keep_file(struct services *services)
{
    struct str path = services->config->services_file;

    if (services->busy) {
        services->ends_ms = 0; /* the next tick tries again */
        return;
    }
    make_text(services);
    if (str_eq(buf_view(&services->text), buf_view(&services->written)))
        return;
    if (snprintf(services->path, sizeof services->path, "%s%s" STR_FMT,
                 str_starts(path, STR("/")) ? "" : services->dir,
                 str_starts(path, STR("/")) ? "" : "/",
                 STR_ARG(path)) >= (int)sizeof services->path)
        return;
    buf_clear(&services->written);
    buf_str(&services->written, buf_view(&services->text));
    services->busy = true;
    loop_work(services->loop, &services->job);
}

/* --- the server's reply --- */

static int by_place(const void *left, const void *right)
{
    const struct services_entry *a = left, *b = right;
    int order = str_cmp(a->name, b->name);

    if (order == 0)
        order = (a->index > b->index) - (a->index < b->index);
    return order != 0 ? order : str_cmp(a->node, b->node);
}

static void take_copies(struct services *services, const struct json *given)
{
    struct arena *arena = &services->arena;
    const struct json *list, *item;

    arena_reset(arena);
    services->count = 0;
    if (json_parse(arena_str(arena, json_raw(given)), arena, &list, NULL))
        return;
    services->entries = arena_array(arena, struct services_entry, list->count + 1);
    for (item = json_items(list); item; item = json_after(list, item)) {
        struct services_entry *entry = &services->entries[services->count];
        const struct json *healthy = json_get(item, "healthy");
        int64_t left_ms = 0;

        *entry =
            (struct services_entry){.name = json_str(json_get(item, "service"), arena),
                                    .node = json_str(json_get(item, "node"), arena),
                                    .address = json_str(json_get(item, "address"), arena),
                                    .healthy = json_type(healthy) == JSON_TRUE    ? STR("true")
                                               : json_type(healthy) == JSON_FALSE ? STR("false")
                                                                                  : STR("null")};
        json_int(json_get(item, "index"), &entry->index);
        json_int(json_get(item, "port"), &entry->port);
        json_int(json_get(item, "left_ms"), &left_ms);
        entry->until_ms = services->asked_ms + left_ms;
        services->count += entry->name.len > 0 && entry->node.len > 0;
    }
    qsort(services->entries, services->count, sizeof *services->entries, by_place);
}

static void on_answer(struct link_call *call)
{
    struct services *services = container_of(call, struct services, call);
    const struct json *copies = json_get(call->reply, "copies");
    int64_t left_ms = 0;
    bool unchanged = false;

    services->asking = false;
    services->next_ms = services->loop->mono_ms + services->config->services_interval_ms;
    if (call->err || !call->reply)
        return; /* what is known stays until its leases end */
    json_bool(json_get(call->reply, "unchanged"), &unchanged);
    if (unchanged && json_int(json_get(call->reply, "left_ms"), &left_ms)) {
        for (size_t i = 0; i < services->count; i++) /* the first end: none lasts longer */
            if (services->entries[i].until_ms < services->asked_ms + left_ms)
                services->entries[i].until_ms = services->asked_ms + left_ms;
    } else if (json_type(copies) == JSON_ARR) {
        take_copies(services, copies);
        services->number = -1;
        json_int(json_get(call->reply, "number"), &services->number);
    }
    keep_file(services);
}

static void on_tick(struct loop_part *part)
{
    struct services *services = container_of(part, struct services, part);
    bool wanted = services->config->services_interval_ms > 0;

    if (wanted && services->up && !services->asking &&
        services->loop->mono_ms >= services->next_ms) {
        struct jsonw w = jsonw_to(&services->body);

        buf_clear(&services->body);
        jsonw_obj(&w);
        jsonw_kstr(&w, "node_id", services->node_id);
        if (services->number >= 0)
            jsonw_kint(&w, "if_number", services->number);
        jsonw_end_obj(&w);
        services->asking = true;
        services->asked_ms = clock_lease_ms();
        services->call = (struct link_call){.path = "/v1/deployments/services",
                                            .body = buf_view(&services->body),
                                            .timeout_ms = CALL_MS,
                                            .done = on_answer};
        link_calls_send(services->link_calls, &services->call);
    }
    if (wanted && clock_lease_ms() >= services->ends_ms)
        keep_file(services);
}

void services_up(struct services *services)
{
    services->up = true;
    services->number = -1; /* another server may number differently */
    services->next_ms = services->loop->mono_ms;
}

void services_init(struct services *services, struct loop *loop, struct link_calls *link_calls,
                   const struct config *config, struct str node_id, const char *dir)
{
    *services = (struct services){.loop = loop,
                                  .link_calls = link_calls,
                                  .config = config,
                                  .node_id = node_id,
                                  .dir = dir,
                                  .number = -1,
                                  .ends_ms = clock_lease_ms() + FIRST_MS,
                                  .job = {.run = write_file, .done = file_written},
                                  .part = {.tick = on_tick, .free = link_part_left}};
    loop_add_part(loop, &services->part);
}

void services_stop(struct services *services)
{
    if (services->loop)
        loop_remove_part(services->loop, &services->part);
}

void services_done(struct services *services)
{
    arena_free(&services->arena);
    buf_free(&services->body);
    buf_free(&services->text);
    buf_free(&services->written);
}
