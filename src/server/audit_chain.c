/* The key, the MACs, and the state file audit.chain that records where the chain begins and ends.
 */
#include "server/audit_chain.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

enum {
    FORMAT = 1,
    STATE_BYTES = 512, /* in one write, so that a crash leaves the old or the new one */
};

/* A line ends with this, 64 digits, and TAIL. */
#define MAC_HEAD ",\"mac\":\""
#define TAIL     "\"}"

static const size_t mac_bytes = sizeof MAC_HEAD - 1 + DIGEST_HEX + sizeof TAIL - 1;

/* The link before the very first entry. */
static const struct audit_link nothing = {
    .mac = "0000000000000000000000000000000000000000000000000000000000000000"};

/* Stands in for the newest link when the state file is lost: no entry has it, so that a check does
 * not find it, and the next entry, whose MAC is chained to it, does not match what is in the file.
 */
static const struct audit_link unknown = {
    .id = 1, .mac = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"};

/* The MAC at the end of a line; at == NULL: there is none. */
static struct str mac_of(struct str line)
{
    const char *at;
    struct str mac;

    if (line.len <= mac_bytes)
        return STR_NONE;
    at = line.at + line.len - mac_bytes;
    mac = (struct str){.at = at + sizeof MAC_HEAD - 1, .len = DIGEST_HEX};
    return memcmp(at, MAC_HEAD, sizeof MAC_HEAD - 1) == 0 &&
                   memcmp(mac.at + mac.len, TAIL, sizeof TAIL - 1) == 0
               ? mac
               : STR_NONE;
}

bool audit_line_signed(struct str line)
{
    return mac_of(line).at != NULL;
}

/* The id in a line that we wrote. */
static int64_t id_of(struct str line)
{
    struct str rest = line, number;
    int64_t id = 0;

    if (!str_starts(line, STR("{\"id\":")))
        return 0;
    str_cut(&rest, ':');
    number = str_cut(&rest, ',');
    return str_int(number, &id) ? id : 0;
}

static struct audit_link link_of(struct str line)
{
    struct audit_link link = {.id = id_of(line)};

    str_copy(mac_of(line), link.mac, sizeof link.mac);
    return link;
}

/* --- signing --- */

void audit_chain_sign(struct audit_chain *chain, int64_t id, struct buf *lines, size_t from,
                      char ret_mac[DIGEST_HEX + 1])
{
    struct str text = {.at = lines->at + from, .len = lines->len - from};

    assert(text.len > 2 && text.at[text.len - 1] == '}');
    ret_mac[0] = 0;
    if (!chain->key[0])
        return;
    digest_hmac_sha256_hex(str_of(chain->key), str_of(chain->last.mac), text, ret_mac);
    lines->len--; /* the brace */
    buf_fmt(lines, MAC_HEAD "%s" TAIL, ret_mac);
    chain->last.id = id;
    memcpy(chain->last.mac, ret_mac, DIGEST_HEX + 1);
}

/* --- the state file --- */

static void write_link(struct jsonw *w, const char *name, const struct audit_link *link)
{
    jsonw_kobj(w, name);
    jsonw_kint(w, "id", link->id);
    jsonw_kstr(w, "mac", str_of(link->mac));
    jsonw_end_obj(w);
}

static void write_links(const struct audit_chain *chain, struct buf *buf)
{
    struct jsonw w = jsonw_to(buf);

    jsonw_obj(&w);
    jsonw_kint(&w, "format", FORMAT);
    write_link(&w, "oldest", &chain->oldest);
    write_link(&w, "begun", &chain->begun);
    write_link(&w, "written", &chain->written);
    jsonw_end_obj(&w);
}

static void save(const struct audit_chain *chain)
{
    char seal[DIGEST_HEX + 1];
    struct buf buf = {0};

    if (!chain->key[0] || chain->fd < 0)
        return;
    write_links(chain, &buf);
    digest_hmac_sha256_hex(str_of(chain->key), STR(""), buf_view(&buf), seal);
    buf.len--;
    buf_fmt(&buf, ",\"seal\":\"%s\"}", seal);
    assert(buf.len < STATE_BYTES);
    while (buf.len < STATE_BYTES - 1)
        buf_char(&buf, ' ');
    buf_char(&buf, '\n');
    if (pwrite(chain->fd, buf.at, buf.len, 0) != (ssize_t)buf.len)
        log_event(LOG_ERROR, "audit.chain_not_written", KC("reason", strerror(errno)));
    buf_free(&buf);
}

static bool read_link(const struct json *json, const char *name, struct arena *arena,
                      struct audit_link *ret_link)
{
    const struct json *link = json_get(json, name);
    struct str mac = json_str(json_get(link, "mac"), arena);

    return json_int(json_get(link, "id"), &ret_link->id) && mac.len == DIGEST_HEX &&
           str_copy(mac, ret_link->mac, sizeof ret_link->mac);
}

/* False: there is no state, or it is not as we wrote it. */
static bool read_state(struct audit_chain *chain)
{
    char text[STATE_BYTES], seal[DIGEST_HEX + 1];
    struct arena arena = {0};
    const struct json *json;
    struct str stored;
    struct buf buf = {0};
    bool good = pread(chain->fd, text, sizeof text, 0) == (ssize_t)sizeof text &&
                !json_parse((struct str){.at = text, .len = sizeof text}, &arena, &json, NULL) &&
                read_link(json, "oldest", &arena, &chain->oldest) &&
                read_link(json, "begun", &arena, &chain->begun) &&
                read_link(json, "written", &arena, &chain->written);

    if (good) {
        write_links(chain, &buf);
        digest_hmac_sha256_hex(str_of(chain->key), STR(""), buf_view(&buf), seal);
        stored = json_str(json_get(json, "seal"), &arena);
        good = stored.len == DIGEST_HEX && digest_equal(stored.at, seal);
    }
    buf_free(&buf);
    arena_free(&arena);
    return good;
}

static bool is_hex(struct str text)
{
    for (size_t i = 0; i < text.len; i++)
        if (!strchr("0123456789abcdef", text.at[i]))
            return false;
    return text.len == DIGEST_HEX;
}

static void sync_state(const struct audit_chain *chain)
{
    if (chain->fd >= 0 && fdatasync(chain->fd) != 0)
        log_event(LOG_ERROR, "audit.chain_not_written", KC("reason", strerror(errno)));
}

/* True: the key is new, and so is the chain unless there are signed entries already. */
static bool read_or_make_key(struct audit_chain *chain, const char *path, int64_t last_id,
                             bool some_signed)
{
    struct arena arena = {0};
    struct problem why = {0};
    struct str text;
    bool made = false;
    enum err err = file_read(path, STATE_BYTES, &arena, &text, &why);

    if (err == ERR_NOT_FOUND && digest_secret(chain->key)) {
        /* The new state is on disk before its key: where there is a key there must be a state. */
        if (!some_signed) {
            chain->oldest.id = last_id; /* older entries were never signed */
            chain->begun = chain->written = chain->oldest;
            save(chain);
            sync_state(chain);
        }
        err = file_replace(path, str_of(chain->key), &why);
        made = !err;
    } else if (!err && is_hex(text)) {
        str_copy(text, chain->key, sizeof chain->key);
    } else if (!err) {
        err = problem_set(&why, ERR_IO, "", "%s holds no key of %d digits.", path, DIGEST_HEX);
    }
    if (err) {
        chain->key[0] = 0;
        log_event(LOG_WARN, "audit.not_signed", KC("reason", why.detail));
    } else if (file_is_public(path)) {
        log_event(LOG_WARN, "audit.key_is_public", KC("path", path));
    }
    arena_free(&arena);
    return made;
}

bool audit_chain_claim(struct audit_chain *chain, struct str data_dir)
{
    char path[AUDIT_PATH_MAX];

    *chain = (struct audit_chain){
        .fd = -1, .oldest = nothing, .begun = nothing, .written = nothing, .last = nothing};
    if (snprintf(path, sizeof path, STR_FMT "/audit.chain", STR_ARG(data_dir)) < (int)sizeof path)
        chain->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (chain->fd < 0 || flock(chain->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return true;
    close(chain->fd);
    chain->fd = -1;
    return false;
}

void audit_chain_open(struct audit_chain *chain, struct str data_dir, int64_t last_id,
                      bool some_signed)
{
    char path[AUDIT_PATH_MAX];
    bool made;

    if (snprintf(path, sizeof path, STR_FMT "/audit.key", STR_ARG(data_dir)) >= (int)sizeof path)
        return;
    made = read_or_make_key(chain, path, last_id, some_signed);
    if (!chain->key[0])
        return;
    if ((!made || some_signed) && !read_state(chain)) {
        /* Where the chain began and ended is unknown: only the very first entry matches this. */
        chain->oldest = chain->begun = nothing;
        chain->written = unknown;
        if (last_id > unknown.id)
            chain->written.id = last_id;
    }
    chain->last = chain->written;
}

void audit_chain_close(struct audit_chain *chain)
{
    if (chain->fd >= 0)
        close(chain->fd);
    explicit_bzero(chain->key, sizeof chain->key);
}

void audit_chain_wrote(struct audit_chain *chain, struct str lines, size_t wrote)
{
    int64_t before = chain->written.id;
    struct str rest = lines;

    while (rest.at) {
        struct str line = str_cut(&rest, '\n');

        /* A line that lacks only its line end is complete: that is written before the next one. */
        if (line.len && (size_t)(line.at + line.len - lines.at) <= wrote && mac_of(line).at)
            chain->written = link_of(line);
    }
    chain->last = chain->written;
    if (chain->written.id != before)
        save(chain);
}

struct audit_link audit_chain_rotate(struct audit_chain *chain)
{
    struct audit_link oldest = chain->oldest;

    if (chain->begun.id == chain->written.id)
        return oldest; /* the server crashed between this and renaming the files */
    chain->oldest = chain->begun;
    chain->begun = chain->written;
    save(chain);
    sync_state(chain);
    return oldest;
}

void audit_chain_not_rotated(struct audit_chain *chain, const struct audit_link *oldest)
{
    chain->begun = chain->oldest;
    chain->oldest = *oldest;
    save(chain);
}

/* --- checking --- */

struct audit_check audit_check_begin(const struct audit_chain *chain)
{
    return (struct audit_check){.chain = chain,
                                .before = chain->oldest,
                                .saw_written = digest_equal(chain->written.mac, chain->oldest.mac)};
}

static void broken(struct audit_check *check, int64_t id, const char *reason)
{
    check->broken_id = id;
    check->reason = reason;
}

void audit_check_line(struct audit_check *check, struct str line, int64_t entry_id)
{
    struct str mac = mac_of(line);
    int64_t id = mac.at ? id_of(line) : entry_id;
    char wanted[DIGEST_HEX + 1];
    struct buf bare = {0};

    /* Entries before the oldest link go with the next rotation, or were never signed. */
    if (check->reason || !id || (id <= check->chain->oldest.id && check->entries == 0))
        return;
    if (!mac.at) {
        broken(check, id, "it has no MAC");
        return;
    }
    buf_add(&bare, line.at, line.len - mac_bytes);
    buf_char(&bare, '}');
    digest_hmac_sha256_hex(str_of(check->chain->key), str_of(check->before.mac), buf_view(&bare),
                           wanted);
    buf_free(&bare);
    if (!digest_equal(wanted, mac.at)) {
        broken(check, id, "it was altered, or what stood before it was altered or taken out");
        return;
    }
    check->before = link_of(line);
    check->entries++;
    check->saw_written |= digest_equal(check->before.mac, check->chain->written.mac);
}

void audit_check_end(struct audit_check *check)
{
    if (!check->reason && !check->saw_written)
        broken(check, check->chain->written.id,
               digest_equal(check->chain->written.mac, unknown.mac)
                   ? "audit.chain is missing or was altered: newer ones may have been taken out"
                   : "it was the newest, and is missing");
}

void audit_chain_resume(struct audit_chain *chain, const struct audit_check *check)
{
    /* After a crash the file may be ahead of its state file. After a break the chain continues from
     * where it was, so that the break stays visible. */
    if (!check->reason && chain->key[0])
        chain->written = check->before;
    chain->last = chain->written;
}
