/* A line is built on the stack and leaves in one write, so lines of different threads never mix and
 * no lock is needed. A line is at most PIPE_BUF long, which a pipe takes in one piece. When the
 * reader of the log stops reading, lines are dropped and counted, but no thread blocks. */
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

enum { LOG_RECENT = 1000 }; /* lines kept in memory, for log_recent() */

enum {
    LINE_MAX_BYTES = PIPE_BUF,
    VALUE_MAX_BYTES = 1024, /* of one value before escaping; the rest becomes "..." */
    TAIL_BYTES = 32,        /* kept free for the mark of a cut line, a brace and the newline */
};

static const char *const level_names[] = {
    [LOG_DEBUG] = "debug",
    [LOG_INFO] = "info",
    [LOG_WARN] = "warn",
    [LOG_ERROR] = "error",
};

/* Read by every thread, changed by a reload. */
static _Atomic int least_level = LOG_INFO;
static _Atomic int line_format = LOG_LOGFMT;
static _Atomic int line_fd = STDERR_FILENO;
static _Atomic bool line_socket;   /* the log is a socket: systemd's journal */
static _Atomic int64_t lost_lines; /* since a line last got through */

/* Lines by number; each slot is swapped atomically, so no thread waits. */
static _Atomic(char *) recent[LOG_RECENT];
static _Atomic uint64_t recent_count;
static bool keeps;

struct line {
    char at[LINE_MAX_BYTES];
    size_t len;
    bool cut;  /* something did not fit; nothing more is added */
    bool json; /* fixed for the whole line, even if a reload changes the format meanwhile */
};

/* O_NONBLOCK on standard error would affect every process that shares it. A pipe can be reopened,
 * which gives this process a description of its own. */
static int own_stderr(void)
{
    static int own = -1;
    struct stat info;

    if (own < 0 && fstat(STDERR_FILENO, &info) == 0 && S_ISFIFO(info.st_mode))
        own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return own >= 0 ? own : STDERR_FILENO;
}

void log_setup(enum log_level least, enum log_format format, int fd)
{
    struct stat info;

    assert(least <= LOG_ERROR && format <= LOG_JSON && fd >= 0);
    least_level = least;
    line_format = format;
    line_fd = fd == STDERR_FILENO ? own_stderr() : fd;
    line_socket = fstat(line_fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

void log_tune(enum log_level least, enum log_format format)
{
    assert(least <= LOG_ERROR && format <= LOG_JSON);
    least_level = least;
    line_format = format;
}

enum err log_open(const char *path, struct problem *why)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0640);
    int now = line_fd;

    if (fd < 0)
        return problem_set(why, ERR_BAD_CONFIG, "log_file", "log_file %s cannot be opened: %s.",
                           path, strerror(errno));
    line_socket = false;
    if (now == STDERR_FILENO) {
        line_fd = fd;
        return ERR_OK;
    }
    /* The descriptor number stays: a thread that is just writing reaches the old file or the new.
     */
    bool swapped = dup3(fd, now, O_CLOEXEC) == now;
    assert(swapped);
    close(fd);
    return ERR_OK;
}

bool log_on(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&least_level, memory_order_relaxed);
}

static void put(struct line *line, const char *bytes, size_t len)
{
    if (line->cut || len > sizeof line->at - TAIL_BYTES - line->len) {
        line->cut = true;
        return;
    }
    memcpy(line->at + line->len, bytes, len);
    line->len += len;
}

static void put_c(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

/* One character, escaped as in JSON: no control character may reach a terminal, and no newline may
 * start a line. Returns how many bytes of `text` it used. */
static size_t put_escaped(struct line *line, struct str text)
{
    static const char hex[] = "0123456789abcdef";
    size_t len = str_utf8_len(text);
    unsigned char c = (unsigned char)text.at[0];
    struct str shown = {.at = text.at, .len = len};

    if (len == 0) {
        put(line, "\xef\xbf\xbd", 3); /* U+FFFD */
        return 1;
    }
    if (c == '"' || c == '\\') {
        put(line, (const char[]){'\\', (char)c}, 2);
    } else if (c == '\n') {
        put(line, "\\n", 2);
    } else if (c == '\t') {
        put(line, "\\t", 2);
    } else if (c == '\r') {
        put(line, "\\r", 2);
    } else if (!str_is_text(shown)) { /* C0, DEL, or C1, whose second byte is its code point */
        unsigned char code = len == 1 ? c : (unsigned char)text.at[1];

        put(line, (const char[]){'\\', 'u', '0', '0', hex[code >> 4], hex[code & 15]}, 6);
    } else {
        put(line, shown.at, len);
    }
    return len;
}

static void put_quoted(struct line *line, struct str text)
{
    size_t most = text.len > VALUE_MAX_BYTES ? VALUE_MAX_BYTES : text.len;

    put(line, "\"", 1);
    for (size_t i = 0; i < most;)
        i += put_escaped(line, str_from(text, i));
    if (most < text.len)
        put(line, "...", 3);
    put(line, "\"", 1);
}

/* Can the value go into logfmt without quotes? */
static bool is_bare(struct str text)
{
    if (text.len == 0 || text.len > VALUE_MAX_BYTES || !str_is_text(text))
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (text.at[i] == ' ' || text.at[i] == '"' || text.at[i] == '=' || text.at[i] == '\\')
            return false;
    return true;
}

static void put_pair(struct line *line, const char *key, const struct log_kv *kv)
{
    size_t before = line->len;
    char number[24];

    assert(str_is_id(str_of(key), VALUE_MAX_BYTES)); /* keys are ours and need no quotes */
    if (line->json) {
        put_c(line, ",\"");
        put_c(line, key);
        put_c(line, "\":");
    } else {
        put_c(line, " ");
        put_c(line, key);
        put_c(line, "=");
    }
    if (kv->is_num)
        put(line, number, (size_t)snprintf(number, sizeof number, "%" PRId64, kv->num));
    else if (!line->json && is_bare(kv->text))
        put(line, kv->text.at, kv->text.len);
    else
        put_quoted(line, kv->text);
    if (line->cut)
        line->len = before; /* half a pair would break the line's syntax */
}

/* A full or closed stderr loses the line: logging must not stop the work. */
static bool send_line(const struct line *line)
{
    ssize_t written;

    do
        written = line_socket ? send(line_fd, line->at, line->len, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : write(line_fd, line->at, line->len);
    while (written < 0 && errno == EINTR);
    return written >= 0;
}

static void build(struct line *line, enum log_level level, const char *event,
                  const struct log_kv *kvs)
{
    bool json = line_format == LOG_JSON;
    char now[CLOCK_ISO_BYTES];
    const char *tail;

    clock_iso(clock_wall_ms(), now);
    line->len = 0;
    line->cut = false;
    line->json = json;
    put_c(line, json ? "{\"ts\":\"" : "ts=");
    put_c(line, now);
    put_c(line, json ? "\"" : "");
    put_pair(line, "level", &KC("level", level_names[level]));
    put_pair(line, "event", &KC("event", event));
    for (; kvs->key && !line->cut; kvs++)
        if (kvs->key[0])
            put_pair(line, kvs->key, kvs);
    if (line->cut)
        tail = json ? ",\"cut\":true}\n" : " cut=true\n";
    else
        tail = json ? "}\n" : "\n";
    assert(line->len + strlen(tail) <= sizeof line->at);
    memcpy(line->at + line->len, tail, strlen(tail));
    line->len += strlen(tail);
}

void log_write(enum log_level level, const char *event, const struct log_kv *kvs)
{
    struct line line;
    bool sent;
    int64_t lost;

    assert(level <= LOG_ERROR && event && kvs);
    build(&line, level, event, kvs);
    sent = send_line(&line);
    if (keeps) {
        uint64_t number = atomic_fetch_add(&recent_count, 1);

        free(atomic_exchange(&recent[number % LOG_RECENT],
                             mem_cstr((struct str){line.at, line.len})));
    }
    lost = sent ? atomic_exchange(&lost_lines, 0) : 1;
    if (sent && lost) {
        build(&line, LOG_WARN, "log.lost",
              (const struct log_kv[]){KI("lines", lost), {.key = NULL}});
        sent = send_line(&line);
    }
    if (!sent)
        atomic_fetch_add(&lost_lines, lost);
}

void log_keep(void)
{
    keeps = true;
}

/* A line is taken out of its slot while it is copied. If a newer line gets into the slot meanwhile,
 * the newer one stays. */
void log_recent(struct buf *ret_lines)
{
    uint64_t count = recent_count;
    uint64_t first = count > LOG_RECENT ? count - LOG_RECENT : 0;

    for (uint64_t i = first; i < count; i++) {
        _Atomic(char *) *slot = &recent[i % LOG_RECENT];
        char *text = atomic_exchange(slot, NULL), *none = NULL;

        if (!text)
            continue;
        buf_str(ret_lines, str_of(text));
        if (!atomic_compare_exchange_strong(slot, &none, text))
            free(text);
    }
}
