/* From the end of a run to what the server is told about it. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/jobs_private.h"
#include "agent/runfile.h"

#define SETTLED_FILE  "settled"
#define EVIDENCE_FILE "evidence"

enum { EVIDENCE_MAX = 4096 };

enum { SPARE_DEPTH = 4 }; /* levels the server may put around the output */

void jobs_reason(const struct run_exit *exit, char *to, size_t size)
{
    const char *name;

    assert(size >= 48);
    if (strcmp(exit->reason, "EXITED") == 0 && exit->exit_code == 0) {
        to[0] = 0;
    } else if (strcmp(exit->reason, "EXITED") == 0) {
        snprintf(to, size, "EXIT_%d", exit->exit_code);
    } else if (strcmp(exit->reason, "SIGNALLED") == 0) {
        name = sigabbrev_np(exit->signal);
        if (name)
            snprintf(to, size, "SIGNAL_%s", name);
        else
            snprintf(to, size, "SIGNAL_%d", exit->signal);
    } else if (strcmp(exit->reason, "DEADLINE") == 0) {
        snprintf(to, size, "LEASE_LOST");
    } else {
        snprintf(to, size, "%s", exit->reason);
    }
}

/* A file in the run's directory. */
static int open_in(const struct agent_job *job, const char *name, int flags)
{
    struct buf path = {0};
    int fd, error;

    buf_fmt(&path, "%s/%s/%s", runs_dir(job->jobs->runs), job->key, name);
    buf_char(&path, 0);
    fd = open(path.at, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    error = errno;
    buf_free(&path);
    errno = error;
    return fd;
}

void jobs_settled_mark(const struct agent_job *job)
{
    int fd = open_in(job, SETTLED_FILE, O_WRONLY | O_CREAT);

    if (fd >= 0)
        close(fd);
}

bool jobs_settled_marked(const struct agent_job *job)
{
    int fd = open_in(job, SETTLED_FILE, O_RDONLY);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

void jobs_evidence_keep(struct agent_job *job, struct str evidence)
{
    int fd = open_in(job, EVIDENCE_FILE, O_WRONLY | O_CREAT | O_TRUNC);

    job->evidence = arena_str(&job->arena, evidence);
    if (fd >= 0) {
        ssize_t ignored = write(fd, evidence.at, evidence.len); /* half of it reads as nothing */

        (void)ignored;
        close(fd);
    }
}

void jobs_evidence_find(struct agent_job *job)
{
    struct arena arena = {0};
    const struct json *root;
    char text[EVIDENCE_MAX];
    int fd = open_in(job, EVIDENCE_FILE, O_RDONLY | O_NONBLOCK);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;
    struct str evidence = {.at = text, .len = got > 0 ? (size_t)got : 0};

    if (evidence.len > 0 && json_parse(evidence, &arena, &root, NULL) == ERR_OK)
        job->evidence = arena_str(&job->arena, evidence);
    if (fd >= 0)
        close(fd);
    arena_free(&arena);
}

/* The job may be anybody's, and so may be what stands there: no links, no pipes, no more than we
 * want. False: nothing to read. */
static bool read_output(const struct agent_job *job, struct buf *text, const char **ret_wrong)
{
    struct stat st;
    ssize_t got = 0;
    int fd = open_in(job, RUNFILE_RESULT, O_RDONLY | O_NONBLOCK);

    if (fd < 0) {
        if (errno != ENOENT)
            *ret_wrong = "the result file cannot be opened";
        return false;
    }
    buf_reserve(text, JOBS_OUTPUT_MAX + 1);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        *ret_wrong = "the result file is not a plain file";
    else
        while (text->len <= JOBS_OUTPUT_MAX &&
               (got = read(fd, text->at + text->len, JOBS_OUTPUT_MAX + 1 - text->len)) > 0)
            text->len += (size_t)got;
    close(fd);
    if (got < 0)
        *ret_wrong = "the result file cannot be read";
    else if (text->len > JOBS_OUTPUT_MAX)
        *ret_wrong = "the result file is larger than 48 KiB";
    return !*ret_wrong && text->len > 0;
}

/* What stands between the white space around it. */
static struct str trimmed(struct str text)
{
    while (text.len > 0 && strchr(" \t\r\n", text.at[0]) && text.at[0])
        text.at++, text.len--;
    while (text.len > 0 && strchr(" \t\r\n", text.at[text.len - 1]) && text.at[text.len - 1])
        text.len--;
    return text;
}

/* JSON, also where it stands a few levels deeper. */
static bool is_json(struct str text)
{
    struct arena arena = {0};
    struct buf deep = {0};
    const struct json *root;
    bool ok;

    for (int i = 0; i < SPARE_DEPTH; i++)
        buf_char(&deep, '[');
    buf_str(&deep, text);
    for (int i = 0; i < SPARE_DEPTH; i++)
        buf_char(&deep, ']');
    /* By itself first: "1],[2" is JSON only among our brackets. */
    ok = json_parse(text, &arena, &root, NULL) == ERR_OK &&
         json_parse_body(buf_view(&deep), &arena, &root, NULL) == ERR_OK;
    buf_free(&deep);
    arena_free(&arena);
    return ok;
}

static void write_or_null(struct jsonw *w, const char *name, int value)
{
    if (value >= 0)
        jsonw_kint(w, name, value);
    else
        jsonw_knull(w, name);
}

static void write_all(const struct agent_job *job, struct str tail, struct str output,
                      const char *wrong, struct buf *out)
{
    const struct run_exit *exit = &job->run->exit;
    struct jsonw w = jsonw_to(out);

    jsonw_obj(&w);
    write_or_null(&w, "exit_code", exit->exit_code);
    if (exit->signal >= 0)
        jsonw_kint(&w, "signal", exit->signal);
    jsonw_kint(&w, "user_ms", exit->user_ms);
    jsonw_kint(&w, "system_ms", exit->system_ms);
    jsonw_kint(&w, "rss_kb_max", exit->rss_kb_max);
    jsonw_kint(&w, "started_ms", exit->started_ms);
    jsonw_kint(&w, "ended_ms", exit->ended_ms);
    jsonw_kint(&w, "output_bytes", exit->output_bytes);
    if (exit->detail[0] && exit->exit_code != 0)
        jsonw_kstr(&w, "detail", str_of(exit->detail));
    jsonw_kstr(&w, "tail", tail.at ? tail : STR(""));
    if (output.at)
        jsonw_kraw(&w, "output", output);
    if (wrong)
        jsonw_kstr(&w, "output_error", str_of(wrong));
    if (job->evidence.at)
        jsonw_kraw(&w, "emergency", job->evidence);
    jsonw_end_obj(&w);
}

/* The last bytes of a text, from the start of a character on. */
static struct str last_of(struct str text, size_t max)
{
    if (text.len > max) {
        text.at += text.len - max;
        text.len = max;
        while (text.len > 0 && ((unsigned char)text.at[0] & 0xc0) == 0x80) {
            text.at++;
            text.len--;
        }
    }
    return text;
}

void jobs_result_write(const struct agent_job *job, struct buf *out)
{
    struct buf output = {0};
    const char *wrong = NULL;
    bool has = read_output(job, &output, &wrong);
    size_t start = out->len, tail_max = RUN_TAIL_BYTES;

    assert(job->run && job->run->state == RUN_ENDED);
    if (has && !is_json(buf_view(&output))) {
        wrong = "the result file does not hold valid JSON";
        has = false;
    }
    /* A tail of control characters grows sixfold: then less of it has to do. */
    do {
        out->len = start;
        write_all(job, last_of(job->run->exit.tail, tail_max),
                  has ? trimmed(buf_view(&output)) : STR_NONE, wrong, out);
        tail_max /= 2;
    } while (out->len - start > JOBS_RESULT_MAX && tail_max > 0);
    buf_free(&output);
}
