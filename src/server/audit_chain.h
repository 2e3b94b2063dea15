/* Makes tampering with the audit file evident: each entry of a change carries a MAC over itself and
 * the MAC of the entry before it (HMAC-SHA256, with a key in the data directory). A line that was
 * altered, inserted, moved or removed no longer matches the one before it. The state file
 * `audit.chain`, sealed with the same key, records where the kept entries begin, so that old ones
 * may be dropped, and which entry is the newest, so that none can be removed from the end. Anybody
 * who can read the key can forge all of it: `audit verify` prints the newest MAC, to be kept
 * elsewhere. */
#ifndef SERVER_AUDIT_CHAIN_H
#define SERVER_AUDIT_CHAIN_H

#include "base/digest.h"

enum { AUDIT_PATH_MAX = 4096 };

/* An entry as the next one refers to it. */
struct audit_link {
    int64_t id;
    char mac[DIGEST_HEX + 1];
};

struct audit_chain {
    char key[DIGEST_HEX + 1];  /* "": no key, and nothing is signed */
    int fd;                    /* of audit.chain; -1: not writable */
    struct audit_link oldest;  /* the entry before those that are checked */
    struct audit_link begun;   /* the entry before the first one in the current file */
    struct audit_link written; /* the newest entry in it */
    struct audit_link last;    /* the newest entry signed, to be written with its batch */
};

/* The result of a check of the files so far. */
struct audit_check {
    const struct audit_chain *chain;
    struct audit_link before; /* the last entry that matches */
    int64_t entries;          /* that match */
    bool saw_written;
    int64_t broken_id;  /* the first that does not match; 0: all do */
    const char *reason; /* why it does not; NULL: all match */
};

/* Call first. False: another server already writes its audit to this directory; two writers in one
 * file would look like a forgery. */
bool audit_chain_claim(struct audit_chain *chain, struct str data_dir);
/* Reads the key and the state, or creates them. `last_id` is that of the newest entry in the files;
 * `some_signed`: there are MACs in them, so there must have been a key. */
void audit_chain_open(struct audit_chain *chain, struct str data_dir, int64_t last_id,
                      bool some_signed);
void audit_chain_close(struct audit_chain *chain);
/* `lines` ends with the JSON object of an entry, starting at `from`: adds `mac` as its last member.
 */
void audit_chain_sign(struct audit_chain *chain, int64_t id, struct buf *lines, size_t from,
                      char ret_mac[DIGEST_HEX + 1]);
/* The first `wrote` bytes of these lines are in the file. The rest is not part of the chain, which
 * continues after the last whole line. */
void audit_chain_wrote(struct audit_chain *chain, struct str lines, size_t wrote);
/* The current file is about to replace the old one. Durable on return; returns the previous oldest
 * link, for audit_chain_not_rotated(). */
struct audit_link audit_chain_rotate(struct audit_chain *chain);
void audit_chain_not_rotated(struct audit_chain *chain, const struct audit_link *oldest);

struct audit_check audit_check_begin(const struct audit_chain *chain);
/* Checks a line of a file, oldest first. `entry_id`: the id if the line is an entry of a change; 0:
 * it is not, such as a line cut by a crash. */
void audit_check_line(struct audit_check *check, struct str line, int64_t entry_id);
void audit_check_end(struct audit_check *check);
/* After the check at startup: new entries continue after the last one. */
void audit_chain_resume(struct audit_chain *chain, const struct audit_check *check);
/* Does the line end with a MAC? */
bool audit_line_signed(struct str line);

#endif
