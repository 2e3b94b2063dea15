/* What makes a change of the audit's file visible: each entry of a change carries a MAC over itself
 * and the MAC of the one before (HMAC-SHA256, by a key in the data directory). A line that was
 * altered, put in, moved or taken out does not fit what is before it. Beside the file is
 * `audit.chain`, sealed with the same key: where what is kept begins, so that old entries may go,
 * and which entry is the newest, so that none can be taken from the end. Whoever can read the key
 * can make all of it anew: `audit verify` tells the newest MAC, for somebody to keep elsewhere. */
#ifndef SERVER_AUDIT_CHAIN_H
#define SERVER_AUDIT_CHAIN_H

#include "base/digest.h"

enum { AUDIT_PATH_MAX = 4096 };

/* An entry, as the one after it knows it. */
struct audit_link {
    int64_t id;
    char mac[DIGEST_HEX + 1];
};

struct audit_chain {
    char key[DIGEST_HEX + 1];  /* "": there is none, and nothing is signed */
    int fd;                    /* of audit.chain; -1: it cannot be written */
    struct audit_link oldest;  /* the entry before those that are checked */
    struct audit_link begun;   /* the entry before the first of the file that is written to */
    struct audit_link written; /* the newest that is in it */
    struct audit_link last;    /* the newest that was signed, to be written with its batch */
};

/* What a check of the files found so far. */
struct audit_check {
    const struct audit_chain *chain;
    struct audit_link before; /* the last that fits */
    int64_t entries;          /* that fit */
    bool saw_written;
    int64_t broken_id;  /* the first that does not; 0: all do */
    const char *reason; /* why; NULL: all do */
};

/* Comes first. False: another server on this directory writes its audit there; two of them in one
 * file would look like a forgery. */
bool audit_chain_claim(struct audit_chain *chain, struct str data_dir);
/* Reads the key and where the chain is, or makes them. `last_id` is of the newest entry in the
 * files; `some_signed`: they hold MACs, so that there must have been a key. */
void audit_chain_open(struct audit_chain *chain, struct str data_dir, int64_t last_id,
                      bool some_signed);
void audit_chain_close(struct audit_chain *chain);
/* `lines` ends with the JSON object of an entry, from `from` on: it gets a member `mac`, the last.
 */
void audit_chain_sign(struct audit_chain *chain, int64_t id, struct buf *lines, size_t from,
                      char ret_mac[DIGEST_HEX + 1]);
/* Of these lines the first `wrote` bytes have come into the file. What has not is not in the chain:
 * it goes on after the last whole line. */
void audit_chain_wrote(struct audit_chain *chain, struct str lines, size_t wrote);
/* The file is about to become the old one, and the old one to go. Durable when it returns: what the
 * oldest was, for audit_chain_not_rotated(). */
struct audit_link audit_chain_rotate(struct audit_chain *chain);
void audit_chain_not_rotated(struct audit_chain *chain, const struct audit_link *oldest);

struct audit_check audit_check_begin(const struct audit_chain *chain);
/* A line of a file, oldest first. `entry_id`: of what it holds if it is an entry of a change; 0: it
 * is none, as one that a crash cut off. */
void audit_check_line(struct audit_check *check, struct str line, int64_t entry_id);
void audit_check_end(struct audit_check *check);
/* After the check at the start: new entries go on after the last. */
void audit_chain_resume(struct audit_chain *chain, const struct audit_check *check);
/* Does the line end with a MAC? */
bool audit_line_signed(struct str line);

#endif
