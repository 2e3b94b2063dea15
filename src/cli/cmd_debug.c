/* `berth debug bundle`: everything needed to investigate a problem later, in one file (a minimal
 * ustar for plain files), without secrets. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/request.h"

/* A .tar.gz of texts, in memory. */
enum { BLOCK = 512, GZIP_WINDOW = 15 + 16, CHUNK = 65536 };

struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

_Static_assert(sizeof(struct header) == BLOCK, "what the format says");

enum { NAME_BYTES = 96, JOBS_MOST = 500 };

/* The routes to fetch. An error reply is also worth a file. */
static const struct {
    const char *name;
    const char *path;
    bool text;
} parts[] = {
    {"health.json", "/readyz", false},
    {"server.json", "/v1/debug", false},
    {"status.json", "/v1/cluster/status", false},
    {"nodes.json", "/v1/nodes?limit=1000", false},
    {"pools.json", "/v1/pools?limit=1000", false},
    {"breakers.json", "/v1/breakers?limit=1000", false},
    {"report.json", "/v1/report?since=24h", false},
    {"metrics.txt", "/metrics", true},
};

static const struct flag bundle_flags[] = {
    FLAG("file", 'f', TEXT, "FILE",
         "where to put it; - is standard output (default berth-debug-TIME.tar.gz)"),
};

struct bundle {
    struct cli *cli;
    struct buf tar; /* not compressed yet */
    int64_t mtime_s;
    char prefix[NAME_BYTES]; /* the directory inside */
    int failed;
};

static void add(struct bundle *bundle, const char *name, struct str text)
{
    struct header header = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
    static const char zeros[BLOCK];
    unsigned sum = 0;

    assert(text.len < 1ull << 33);
    snprintf(header.name, sizeof header.name, "%.40s/%.40s", bundle->prefix, name);
    memcpy(header.mode, "0000600", 8);
    memcpy(header.uid, "0000000", 8);
    memcpy(header.gid, "0000000", 8);
    snprintf(header.size, sizeof header.size, "%011llo", (unsigned long long)text.len);
    snprintf(header.mtime, sizeof header.mtime, "%011llo", (unsigned long long)bundle->mtime_s);
    memset(header.sum, ' ', sizeof header.sum);
    for (size_t i = 0; i < BLOCK; i++)
        sum += ((const unsigned char *)&header)[i];
    snprintf(header.sum, sizeof header.sum, "%06o", sum);
    buf_add(&bundle->tar, &header, BLOCK);
    buf_str(&bundle->tar, text);
    buf_add(&bundle->tar, zeros, (BLOCK - text.len % BLOCK) % BLOCK);
}

static bool pack(struct bundle *bundle, struct buf *ret_gz)
{
    static const char end[2 * BLOCK];
    z_stream stream = {0};
    int done = Z_OK;

    buf_add(&bundle->tar, end, sizeof end);
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_WINDOW, 8,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    stream.next_in = (unsigned char *)bundle->tar.at;
    stream.avail_in = (unsigned)bundle->tar.len;
    while (done == Z_OK) {
        buf_reserve(ret_gz, CHUNK);
        stream.next_out = (unsigned char *)ret_gz->at + ret_gz->len;
        stream.avail_out = CHUNK;
        done = deflate(&stream, Z_FINISH);
        ret_gz->len += CHUNK - stream.avail_out;
    }
    deflateEnd(&stream);
    return done == Z_STREAM_END;
}

static void add_jobs(struct bundle *bundle)
{
    /* The course of a job, without its payload, which belongs to its owner. */
    static const char *const members[] = {
        "job_id", "state",      "attempt_id", "max_attempts",  "node_id",  "type",    "priority",
        "reason", "created_ms", "updated_ms", "dispatched_ms", "acked_ms", "ended_ms"};
    struct request request = {
        .method = "GET", .path = arena_fmt(&bundle->cli->arena, "/v1/jobs?limit=%d", JOBS_MOST).at};
    const struct json *list, *job;
    struct str said = STR_NONE;
    struct buf text = {0};
    struct jsonw w = jsonw_to(&text);

    if (request_quietly(bundle->cli, &request, &said) != CLI_OK)
        return; /* the other parts show why */
    list = json_get(request.json, "jobs");
    jsonw_arr(&w);
    for (job = json_items(list); job; job = json_after(list, job)) {
        jsonw_obj(&w);
        for (size_t k = 0; k < COUNT_OF(members); k++)
            jsonw_kraw(&w, members[k], json_raw(json_get(job, members[k])));
        jsonw_end_obj(&w);
    }
    jsonw_end_arr(&w);
    add(bundle, "jobs.json", buf_view(&text));
    buf_free(&text);
}

/* The log as lines, out of server.json. */
static void add_log(struct bundle *bundle)
{
    struct request request = {.method = "GET", .path = "/v1/debug"};
    struct str said = STR_NONE;
    const struct json *list, *line;
    struct buf text = {0};

    if (request_quietly(bundle->cli, &request, &said) != CLI_OK)
        return;
    list = json_get(request.json, "log");
    for (line = json_items(list); line; line = json_after(list, line)) {
        buf_str(&text, json_str(line, &bundle->cli->arena));
        buf_char(&text, '\n');
    }
    add(bundle, "log.txt", buf_view(&text));
    buf_free(&text);
}

static int write_out(struct cli *cli, const char *path, struct str bytes)
{
    bool to_stdout = strcmp(path, "-") == 0;
    int fd = to_stdout ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd < 0)
        return cli_fail(cli, CLI_FAILED, "%s cannot be made: %m", path);
    while (bytes.len > 0) {
        ssize_t wrote = write(fd, bytes.at, bytes.len);

        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            int code = cli_fail(cli, CLI_FAILED, "%s cannot be written: %m", path);

            if (!to_stdout) { /* a partial bundle is useless */
                close(fd);
                unlink(path);
            }
            return code;
        }
        bytes = str_from(bytes, (size_t)wrote);
    }
    if (!to_stdout && close(fd) != 0)
        return cli_fail(cli, CLI_FAILED, "%s cannot be written: %m", path);
    if (!to_stdout)
        fprintf(cli->out, "%s\n", path);
    return CLI_OK;
}

static int cmd_debug_bundle(struct cli *cli)
{
    struct bundle bundle = {.cli = cli, .mtime_s = clock_wall_ms() / 1000};
    const char *file = cli_text(cli, "file");
    struct buf gz = {0};
    struct tm tm;
    time_t now = (time_t)bundle.mtime_s;
    int code;

    gmtime_r(&now, &tm);
    strftime(bundle.prefix, sizeof bundle.prefix, "berth-debug-%Y%m%d-%H%M%S", &tm);
    add(&bundle, "version.txt",
        arena_fmt(&cli->arena, "berth %s asked %s\n", BERTH_VERSION, cli->addr));
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const char *name = parts[i].name, *path = parts[i].path;
        struct request request = {
            .method = "GET", .path = path, .any_status = !parts[i].text, .text = parts[i].text};
        struct str said = STR_NONE;

        if (request_quietly(cli, &request, &said) == CLI_OK) {
            add(&bundle, name, request.reply);
            continue;
        }
        bundle.failed++;
        add(&bundle, arena_fmt(&cli->arena, "%s.error.txt", name).at,
            arena_fmt(&cli->arena, "GET %s: " STR_FMT "\n", path, STR_ARG(said)));
        fprintf(cli->err, "berth: %s is missing: " STR_FMT "\n", name, STR_ARG(said));
    }
    add_jobs(&bundle);
    add_log(&bundle);
    if (!file)
        file = arena_fmt(&cli->arena, "%s.tar.gz", bundle.prefix).at;
    code = pack(&bundle, &gz) ? write_out(cli, file, buf_view(&gz))
                              : cli_fail(cli, CLI_FAILED, "cannot pack");
    buf_free(&bundle.tar);
    buf_free(&gz);
    if (code == CLI_OK && bundle.failed == (int)COUNT_OF(parts))
        return cli_fail(cli, CLI_UNAVAILABLE, "the server answered nothing");
    return code;
}

static const struct command rows[] = {
    VERB("debug", "bundle", NULL, .flags = FLAGS(bundle_flags),
         .help = "one file with all that helps to find out what is wrong",
         .detail =
             "Health, status, nodes, pools, breakers, the report, metrics, the last jobs without\n"
             "what they were about, settings without secrets, the last lines of the log. Needs\n"
             "the scope operate. What cannot be had is named inside.",
         .examples = "berth debug bundle\n"
                     "berth debug bundle -f - | tar tz",
         .run = cmd_debug_bundle),
};

const struct command_set commands_debug = COMMANDS(rows);
