/* Encodes records as sectors and finds their places in the file. */
#include "store/logfile.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"

enum {
    VERSION = 1,
    SECTORS_PER_PAGE = LOG_PAGE / LOG_SECTOR,
    WINDOW_BYTES = 64 << 10, /* read at a time */
    CALL_BYTES = 64 << 10,   /* SQLite's VFS takes less than 128 KiB in one call */
};

/* The first bytes of a sector; numbers are little-endian. */
struct head {
    uint32_t sum; /* CRC-32C of the rest of the sector */
    uint32_t run;
    uint64_t number; /* of the record */
    uint32_t left;   /* sectors of the record that follow */
    uint16_t bytes;  /* of the record in this sector, after the header */
    uint8_t version;
    uint8_t first; /* 1: the record begins here */
};
static_assert(sizeof(struct head) == LOG_HEADER, "no holes");

enum sector { SECTOR_OK, SECTOR_EMPTY, SECTOR_NEWER, SECTOR_DAMAGED };

static bool fail(struct logfile *log, const char *what, int code, int sys)
{
    log->fault = (struct fault){.what = what, .code = code, .sys = sys};
    return false;
}

static bool damaged(struct logfile *log, uint64_t number)
{
    return fail(log, "read the journal", FAULT_DAMAGED, (int)number);
}

/* Opening. */

bool logfile_open(struct logfile *log, const char *path, bool create)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_WAL | (create ? SQLITE_OPEN_CREATE : 0);
    sqlite3_file *file;
    struct rnd rnd;
    int code;

    *log = (struct logfile){0};
    file = mem_zeroed(1, (size_t)vfs->szOsFile);
    errno = 0;
    code = vfs->xOpen(vfs, path, file, flags, NULL);
    if (code != SQLITE_OK) {
        free(file);
        return fail(log, "open the journal", code, errno);
    }
    rnd_seed_os(&rnd);
    log->run = (uint32_t)rnd_next(&rnd);
    log->file = file;
    return true;
}

void logfile_close(struct logfile *log)
{
    if (log->file)
        log->file->pMethods->xClose(log->file);
    free(log->file);
    free(log->lasts);
    buf_free(&log->window);
    buf_free(&log->out);
    *log = (struct logfile){.fault = log->fault};
}

static bool write_at(struct logfile *log, struct str bytes, int64_t at)
{
    int code = SQLITE_OK;

    errno = 0;
    for (size_t done = 0; done < bytes.len && code == SQLITE_OK; done += CALL_BYTES) {
        size_t len = bytes.len - done < CALL_BYTES ? bytes.len - done : CALL_BYTES;

        code =
            log->file->pMethods->xWrite(log->file, bytes.at + done, (int)len, at + (int64_t)done);
    }
    buf_clear(&log->window); /* it may include the old contents */
    return code == SQLITE_OK || fail(log, "write the journal", code, errno);
}

static bool sync_file(struct logfile *log)
{
    int code;

    errno = 0;
    code = log->file->pMethods->xSync(log->file, SQLITE_SYNC_NORMAL | SQLITE_SYNC_DATAONLY);
    return code == SQLITE_OK || fail(log, "sync the journal", code, errno);
}

/* Reading. */

static bool file_size(struct logfile *log, int64_t *ret_size)
{
    sqlite3_int64 size = 0;
    int code = log->file->pMethods->xFileSize(log->file, &size);

    *ret_size = size;
    return code == SQLITE_OK || fail(log, "read the journal", code, 0);
}

/* A write that ran out of space may end anywhere: an incomplete last sector is ignored. */
static bool cut_window(struct logfile *log, int64_t at)
{
    int64_t size, end;
    bool ok = file_size(log, &size);

    end = size - size % LOG_SECTOR - at;
    if (end < 0)
        end = 0;
    if (end < (int64_t)log->window.len)
        memset(log->window.at + end, 0, log->window.len - (size_t)end);
    return ok;
}

/* `len` bytes of the file, zeros past its end. NULL: reading failed. */
static const char *look(struct logfile *log, int64_t at, size_t len)
{
    size_t want = len > WINDOW_BYTES ? len : WINDOW_BYTES;
    int code = SQLITE_OK;

    if (at >= log->window_at && at + (int64_t)len <= log->window_at + (int64_t)log->window.len)
        return log->window.at + (at - log->window_at);
    buf_clear(&log->window);
    buf_reserve(&log->window, want);
    errno = 0;
    for (size_t done = 0; done < want && code == SQLITE_OK; done += CALL_BYTES) {
        size_t some = want - done < CALL_BYTES ? want - done : CALL_BYTES;

        code = log->file->pMethods->xRead(log->file, log->window.at + done, (int)some,
                                          at + (int64_t)done);
    }
    log->window.len = want;
    log->window_at = at;
    if (code == SQLITE_OK || (code == SQLITE_IOERR_SHORT_READ && cut_window(log, at)))
        return log->window.at;
    buf_clear(&log->window);
    if (code != SQLITE_IOERR_SHORT_READ)
        fail(log, "read the journal", code, errno);
    return NULL;
}

static enum sector judge(const char *sector, struct head *ret_head)
{
    static const char zeros[LOG_SECTOR];

    memcpy(ret_head, sector, sizeof *ret_head);
    if (le32toh(ret_head->sum) !=
        crc32c((struct str){sector + sizeof ret_head->sum, LOG_SECTOR - sizeof ret_head->sum}))
        return memcmp(sector, zeros, LOG_SECTOR) == 0 ? SECTOR_EMPTY : SECTOR_DAMAGED;
    ret_head->run = le32toh(ret_head->run);
    ret_head->number = le64toh(ret_head->number);
    ret_head->left = le32toh(ret_head->left);
    ret_head->bytes = le16toh(ret_head->bytes);
    if (ret_head->version > VERSION)
        return SECTOR_NEWER;
    return ret_head->bytes <= LOG_ROOM ? SECTOR_OK : SECTOR_DAMAGED;
}

static int64_t size_of(const struct head *first)
{
    return ((int64_t)first->left + 1) * LOG_SECTOR;
}

/* Reads the sector at `at`; *ret_begins: a record begins with it. False: reading failed. */
static bool look_at(struct logfile *log, int64_t at, struct head *ret_head, enum sector *ret_sector,
                    bool *ret_begins)
{
    const char *sector = look(log, at, LOG_SECTOR);

    if (!sector)
        return false;
    *ret_sector = judge(sector, ret_head);
    if (*ret_sector == SECTOR_NEWER)
        return fail(log, "open the journal", FAULT_NEWER, ret_head->version);
    *ret_begins = *ret_sector == SECTOR_OK && ret_head->first;
    return true;
}

/* Are all sectors of the record that begins at `at` present? A damaged sector is a failure: a power
 * cut does not cause one. */
static bool look_whole(struct logfile *log, int64_t at, const struct head *first, bool *ret_whole)
{
    const char *bytes = look(log, at, (size_t)size_of(first));

    *ret_whole = false;
    if (!bytes)
        return false;
    for (uint32_t i = 0; i <= first->left; i++) {
        struct head head;
        enum sector sector = judge(bytes + (size_t)i * LOG_SECTOR, &head);

        if (sector == SECTOR_DAMAGED)
            return damaged(log, first->number);
        if (sector != SECTOR_OK || head.run != first->run || head.number != first->number ||
            head.left != first->left - i || head.first != (i == 0))
            return true;
    }
    *ret_whole = true;
    return true;
}

/* Does the complete record `number` begin at `at`? */
static bool is_at(struct logfile *log, int64_t at, uint64_t number, struct head *ret_head,
                  bool *ret_is)
{
    enum sector sector;
    bool begins;

    *ret_is = false;
    if (!look_at(log, at, ret_head, &sector, &begins))
        return false;
    return !begins || ret_head->number != number || look_whole(log, at, ret_head, ret_is);
}

static bool count_regions(struct logfile *log, int64_t *ret_count)
{
    bool ok = file_size(log, ret_count);

    *ret_count = (*ret_count + LOG_REGION - 1) / LOG_REGION;
    return ok;
}

/* Looks past the window. An unreadable sector does not count: the record is then missing. */
static bool begins_with(struct logfile *log, int64_t region, uint64_t number)
{
    char sector[LOG_SECTOR];
    struct head head;
    int code = log->file->pMethods->xRead(log->file, sector, LOG_SECTOR, region * LOG_REGION);

    return code == SQLITE_OK && judge(sector, &head) == SECTOR_OK && head.first &&
           head.number == number;
}

/* The records of a region are contiguous from its start. */
static bool walk_to(struct logfile *log, int64_t region, uint64_t number, struct head *ret_head,
                    bool *ret_found)
{
    uint64_t before = 0;

    log->at = region * LOG_REGION;
    *ret_found = false;
    do {
        enum sector sector;
        bool begins;

        if (!look_at(log, log->at, ret_head, &sector, &begins))
            return false;
        if (!begins || ret_head->number > number || (before && ret_head->number != before + 1))
            return true;
        if (ret_head->number == number)
            return look_whole(log, log->at, ret_head, ret_found);
        before = ret_head->number;
        log->at += size_of(ret_head);
    } while (log->at % LOG_REGION);
    return true;
}

/* Finds the record: after the one read before, at the start of a region, or, if none was read
 * before, anywhere. The window may be older than the record. */
static bool find(struct logfile *log, uint64_t number, struct head *ret_head, bool *ret_found)
{
    int64_t count;

    if (!is_at(log, log->at, number, ret_head, ret_found) || *ret_found)
        return *ret_found;
    buf_clear(&log->window);
    if (!is_at(log, log->at, number, ret_head, ret_found) || *ret_found)
        return *ret_found;
    if (!count_regions(log, &count))
        return false;
    for (int64_t i = 0; i < count; i++) {
        if (!begins_with(log, i, number))
            continue;
        log->at = i * LOG_REGION;
        if (!is_at(log, log->at, number, ret_head, ret_found) || *ret_found)
            return *ret_found;
    }
    for (int64_t i = 0; i < count && !*ret_found; i++)
        if (!walk_to(log, i, number, ret_head, ret_found))
            return false;
    return true;
}

bool logfile_read(struct logfile *log, uint64_t number, struct arena *arena, struct str *ret_bytes,
                  int64_t *ret_size)
{
    struct head head;
    bool found = false;
    const char *from;
    char *to;
    size_t len = 0;

    if (!find(log, number, &head, &found))
        return false;
    if (!found)
        return damaged(log, number);
    *ret_size = size_of(&head);
    from = look(log, log->at, (size_t)*ret_size);
    assert(from); /* it is in the window */
    to = arena_raw(arena, (size_t)*ret_size);
    for (int64_t at = 0; at < *ret_size; at += LOG_SECTOR) {
        memcpy(&head, from + at, sizeof head);
        memcpy(to + len, from + at + LOG_HEADER, le16toh(head.bytes));
        len += le16toh(head.bytes);
    }
    *ret_bytes = (struct str){.at = to, .len = len};
    log->at += *ret_size;
    return true;
}

/* The end. */

static void note_region(struct logfile *log, int64_t region, uint64_t number)
{
    if (region >= log->regions) {
        log->lasts = mem_resize(log->lasts, (size_t)(region + 1) * sizeof *log->lasts);
        memset(log->lasts + log->regions, 0,
               (size_t)(region + 1 - log->regions) * sizeof *log->lasts);
        log->regions = region + 1;
    }
    if (number > log->lasts[region])
        log->lasts[region] = number;
}

static void note_record(struct logfile *log, int64_t at, int64_t size, uint64_t number)
{
    for (int64_t i = at / LOG_REGION; i <= (at + size - 1) / LOG_REGION; i++)
        note_region(log, i, number);
}

/* The result of a walk over all regions. */
struct survey {
    uint64_t after, upto;
    uint64_t last; /* the highest complete record */
    int64_t last_at, last_size;
    uint64_t part;    /* the highest incomplete one */
    uint64_t lowest;  /* of the records after `after`; 0: none */
    uint64_t count;   /* of the records after `after` */
    uint64_t missing; /* a damaged sector is where this record should begin; 0: none */
};

/* Surveys the record at `at`. *ret_whole: it is complete, so the next one may follow it. */
static bool survey_record(struct logfile *log, struct survey *survey, int64_t at,
                          const struct head *head, bool *ret_whole)
{
    note_record(log, at, size_of(head), head->number);
    *ret_whole = true;
    if (head->number <= survey->after)
        return true;
    if (!look_whole(log, at, head, ret_whole))
        return false;
    if (*ret_whole && head->number > survey->upto) {
        log->refused = head->number;
        log->refused_at = at;
        return true;
    }
    if (!*ret_whole) {
        survey->part = head->number > survey->part ? head->number : survey->part;
        return true;
    }
    survey->count++;
    if (!survey->lowest || head->number < survey->lowest)
        survey->lowest = head->number;
    if (head->number > survey->last) {
        survey->last = head->number;
        survey->last_at = at;
        survey->last_size = size_of(head);
    }
    return true;
}

static void note_missing(struct survey *survey, uint64_t number)
{
    survey->missing = number > survey->after ? number : survey->after + 1;
}

/* Old contents follow the last record of a region. A record there with a number above `next` means
 * that `next` is lost: it was on disk before that one was written. */
static bool survey_rest(struct logfile *log, struct survey *survey, int64_t at, uint64_t next)
{
    do {
        struct head head;
        enum sector sector;
        bool begins;

        if (!look_at(log, at, &head, &sector, &begins))
            return false;
        if (begins && head.number > next)
            note_missing(survey, next);
        at += LOG_PAGE;
    } while (at % LOG_REGION);
    return true;
}

/* The records of a region are contiguous from its start. */
static bool survey_region(struct logfile *log, struct survey *survey, int64_t region)
{
    int64_t at = region * LOG_REGION;
    uint64_t next = 0; /* the expected number; 0: any */

    do {
        struct head head;
        enum sector sector;
        bool begins, whole;

        if (!look_at(log, at, &head, &sector, &begins))
            return false;
        if (sector == SECTOR_DAMAGED && (next == 0 || next > survey->after))
            note_missing(survey, next);
        if (!begins || (next && head.number != next)) {
            /* A region in the middle of a long record has no record at its start. */
            if (next == 0 && log->lasts[region])
                return true;
            next = next ? next : survey->after;
            return next < survey->after || survey_rest(log, survey, at, next);
        }
        if (!survey_record(log, survey, at, &head, &whole))
            return false;
        if (!whole)
            return survey_rest(log, survey, at, head.number);
        next = head.number + 1;
        at += size_of(&head);
    } while (at % LOG_REGION);
    return true;
}

/* A record is missing: reports which. */
static bool name_missing(struct logfile *log, const struct survey *survey)
{
    uint64_t number = survey->after;
    struct head head;
    bool found = true;

    while (found && ++number <= survey->last && find(log, number, &head, &found))
        log->at += found ? size_of(&head) : 0;
    return damaged(log, number);
}

bool logfile_end(struct logfile *log, uint64_t after, uint64_t upto, uint64_t *ret_last)
{
    struct survey survey = {.after = after, .upto = upto, .last = after, .last_at = -1};
    int64_t count;

    assert(log->file && !log->lasts && after <= upto);
    if (!count_regions(log, &count))
        return false;
    for (int64_t i = 0; i < count; i++) {
        note_region(log, i, 0);
        if (!survey_region(log, &survey, i))
            return false;
    }
    /* The file must have every record after `after`. */
    if (survey.missing)
        return damaged(log, survey.missing);
    if (survey.lowest && survey.lowest != after + 1)
        return fail(log, "read the journal", FAULT_GAP, (int)survey.lowest);
    if (survey.count != survey.last - after)
        return name_missing(log, &survey);
    if (survey.part > survey.last + 1)
        return damaged(log, survey.last + 1);
    log->last_at = survey.last_at;
    log->last_size = survey.last_size;
    if (survey.last_at >= 0 && survey.last_size <= LOG_REGION)
        log->end = survey.last_at + survey.last_size;
    *ret_last = survey.last;
    return true;
}

/* Fills the first regions with zeros, so that even the first commits write into blocks which are
 * already allocated. If there is no room, or the disk fails, the file grows as it is written. */
static void fill_ahead(struct logfile *log, int64_t size)
{
    static const char zeros[CALL_BYTES];
    int code = SQLITE_OK;

    for (int64_t at = size; at < LOG_AHEAD && code == SQLITE_OK; at += CALL_BYTES) {
        int64_t left = LOG_AHEAD - at;

        code = log->file->pMethods->xWrite(log->file, zeros,
                                           (int)(left < CALL_BYTES ? left : CALL_BYTES), at);
    }
    if (code != SQLITE_OK)
        log->file->pMethods->xTruncate(log->file, size);
    else if (size < LOG_AHEAD)
        note_region(log, LOG_AHEAD / LOG_REGION - 1, 0);
}

bool logfile_settle(struct logfile *log)
{
    static const char zeros[LOG_PAGE];
    const char *bytes = log->last_at < 0 ? "" : look(log, log->last_at, (size_t)log->last_size);
    sqlite3_int64 size = 0;
    int code;

    if (!bytes)
        return false;
    /* An incomplete sector at the end of the file must not end up between others. */
    code = log->file->pMethods->xFileSize(log->file, &size);
    if (code == SQLITE_OK && size % LOG_SECTOR) {
        size -= size % LOG_SECTOR;
        code = log->file->pMethods->xTruncate(log->file, size);
    }
    if (code != SQLITE_OK)
        return fail(log, "cut the journal", code, errno);
    fill_ahead(log, size);
    if (log->last_at >= 0) {
        buf_clear(&log->out);
        buf_add(&log->out, bytes, (size_t)log->last_size);
        if (!write_at(log, buf_view(&log->out), log->last_at))
            return false;
    }
    if (log->refused && !write_at(log, (struct str){zeros, LOG_PAGE}, log->refused_at))
        return false;
    log->refused = 0;
    return sync_file(log);
}

/* Writing. */

/* Finds room for `size` bytes: after the last record, or in the first free regions, which a long
 * record does not share. */
static int64_t place(struct logfile *log, uint64_t done, int64_t size)
{
    int64_t want = (size + LOG_REGION - 1) / LOG_REGION;
    int64_t free_count = 0;

    if (log->end % LOG_REGION && log->end % LOG_REGION + size <= LOG_REGION)
        return log->end;
    for (int64_t i = 0; i < log->regions; i++) {
        free_count = log->lasts[i] <= done ? free_count + 1 : 0;
        if (free_count == want)
            return (i + 1 - want) * LOG_REGION;
    }
    return (log->regions - free_count) * LOG_REGION;
}

static void fill(struct buf *to, uint32_t run, uint64_t number, struct str bytes)
{
    size_t sectors = (bytes.len + LOG_ROOM - 1) / LOG_ROOM;

    sectors =
        (sectors / SECTORS_PER_PAGE + (sectors % SECTORS_PER_PAGE || !sectors)) * SECTORS_PER_PAGE;
    buf_clear(to);
    buf_reserve(to, sectors * LOG_SECTOR);
    for (size_t i = 0; i < sectors; i++) {
        size_t len = bytes.len < LOG_ROOM ? bytes.len : LOG_ROOM;
        char *sector = to->at + to->len;
        struct head head = {.run = htole32(run),
                            .number = htole64(number),
                            .left = htole32((uint32_t)(sectors - 1 - i)),
                            .bytes = htole16((uint16_t)len),
                            .version = VERSION,
                            .first = i == 0};

        if (len)
            memcpy(sector + LOG_HEADER, bytes.at, len);
        memset(sector + LOG_HEADER + len, 0, LOG_ROOM - len);
        memcpy(sector, &head, sizeof head);
        head.sum =
            htole32(crc32c((struct str){sector + sizeof head.sum, LOG_SECTOR - sizeof head.sum}));
        memcpy(sector, &head.sum, sizeof head.sum);
        to->len += LOG_SECTOR;
        bytes.at += len;
        bytes.len -= len;
    }
}

bool logfile_append(struct logfile *log, uint64_t number, uint64_t done, struct str bytes,
                    int64_t *ret_size, bool *ret_written)
{
    int64_t at;

    assert(number > done && !log->refused);
    fill(&log->out, log->run, number, bytes);
    *ret_size = (int64_t)log->out.len;
    at = place(log, done, *ret_size);
    *ret_written = write_at(log, buf_view(&log->out), at);
    if (!*ret_written || !sync_file(log))
        return false;
    note_record(log, at, *ret_size, number);
    /* No record begins after a long one: its first region may be reused before its last. */
    log->end = *ret_size > LOG_REGION ? 0 : at + *ret_size;
    return true;
}

bool logfile_probe(struct logfile *log, uint64_t done, int64_t size)
{
    buf_clear(&log->out);
    buf_reserve(&log->out, (size_t)size);
    memset(log->out.at, 0, (size_t)size);
    log->out.len = (size_t)size;
    return write_at(log, buf_view(&log->out), place(log, done, size)) && sync_file(log);
}

bool logfile_empty(struct logfile *log)
{
    int code = log->file->pMethods->xTruncate(log->file, 0);

    free(log->lasts);
    log->lasts = NULL;
    log->regions = 0;
    log->end = 0;
    buf_clear(&log->window);
    return code == SQLITE_OK ? sync_file(log) : fail(log, "empty the journal", code, errno);
}
