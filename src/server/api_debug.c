/* GET /v1/debug: this process for whoever looks into it: settings without secrets, the store, the
 * last lines of the log. */
#include <assert.h>
#include <malloc.h>
#include <unistd.h>

#include "base/log.h"
#include "server/api.h"

static void write_store(struct jsonw *w, struct server *server)
{
    struct store_status status;

    store_status(server->store, &status);
    jsonw_key(w, "store");
    jsonw_obj(w);
    jsonw_kstr(w, "mode", str_of(store_mode_name(status.mode)));
    jsonw_kint(w, "since_ms", status.since_ms);
    jsonw_kint(w, "errors", status.errors);
    jsonw_kint(w, "calls", status.calls);
    jsonw_kint(w, "batches", status.batches);
    jsonw_kstr(w, "detail", str_of(status.detail));
    jsonw_kstr(w, "generation", str_of(status.generation));
    jsonw_end_obj(w);
}

static void write_log(struct jsonw *w)
{
    struct buf lines = {0};
    struct str rest;

    log_recent(&lines);
    rest = buf_view(&lines);
    jsonw_key(w, "log");
    jsonw_arr(w);
    while (rest.len > 0)
        jsonw_str(w, str_cut(&rest, '\n'));
    jsonw_end_arr(w);
    buf_free(&lines);
}

void api_debug(struct call *call)
{
    struct server *server = call->worker->server;
    struct settings *settings = server->settings; /* once: a reload may swap them */
    struct mallinfo2 heap = mallinfo2();
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    jsonw_obj(&w);
    jsonw_kstr(&w, "version", STR(BERTH_VERSION));
    jsonw_kint(&w, "pid", getpid());
    jsonw_kint(&w, "started_ms", server->started_ms);
    jsonw_kint(&w, "now_ms", call->worker->loop.wall_ms);
    jsonw_kint(&w, "loops", server->loop_count);
    jsonw_kint(&w, "heap_bytes", (int64_t)(heap.uordblks + heap.hblkhd));
    write_store(&w, server);
    jsonw_key(&w, "settings");
    conf_show_json(&container_of(settings, struct settings_source, settings)->conf, &w);
    write_log(&w);
    jsonw_end_obj(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}
