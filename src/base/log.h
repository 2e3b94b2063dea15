/* One event a line, logfmt or JSON, on stderr: `event=job.retry job_id=j41 node_id=n7
 * attempt_id=2`. The code that makes a decision logs it, once; base, io, model and store return
 * errors instead. Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"
#include "base/str.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_LOGFMT, LOG_JSON };

struct log_kv {
    const char *key; /* NULL ends the list; "" is left out */
    struct str text;
    int64_t num;
    bool is_num; /* num is the value, not text */
};

#define KS(name, str)   ((struct log_kv){.key = (name), .text = (str)})
#define KC(name, cstr)  ((struct log_kv){.key = (name), .text = str_of(cstr)})
#define KI(name, value) ((struct log_kv){.key = (name), .num = (value), .is_num = true})

void log_setup(enum log_level least, enum log_format format, int fd); /* before the threads start */
void log_tune(enum log_level least, enum log_format format);          /* any time */
/* Appends lines to this file from now on. Called again with the same path it reopens the file,
 * after a log rotation moved the old one away. */
enum err log_open(const char *path, struct problem *why);
void log_keep(void); /* keeps the last lines in memory; call before the threads start */
void log_recent(struct buf *ret_lines); /* oldest first, each with its newline */
bool log_on(enum log_level level);
void log_write(enum log_level level, const char *event, const struct log_kv *kvs);

#define log_event(level, event, ...)                                                               \
    do {                                                                                           \
        if (log_on(level))                                                                         \
            log_write((level), (event), (const struct log_kv[]){__VA_ARGS__, {.key = NULL}});      \
    } while (0)

#endif
