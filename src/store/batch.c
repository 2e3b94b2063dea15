/* Reads and writes rows of journal.db. */
#include "store/batch.h"

#include "base/digest.h"

void batch_bind(sqlite3_stmt *stmt, const struct batch *batch)
{
    sqlite3_bind_int64(stmt, 1, (int64_t)batch->seq);
    sqlite3_bind_int64(stmt, 2, crc32c(batch->changes));
    sqlite3_bind_blob64(stmt, 3, batch->changes.at, batch->changes.len, SQLITE_STATIC);
}

void batch_damaged(const struct batch *batch, struct fault *fault)
{
    *fault =
        (struct fault){.what = "read the journal", .code = FAULT_DAMAGED, .sys = (int)batch->seq};
}

bool batch_read(sqlite3_stmt *stmt, uint64_t after, struct batch *ret_batch, struct fault *fault)
{
    int64_t sum = sqlite3_column_int64(stmt, 1);

    ret_batch->seq = (uint64_t)sqlite3_column_int64(stmt, 0);
    ret_batch->changes = (struct str){.at = sqlite3_column_blob(stmt, 2),
                                      .len = (size_t)sqlite3_column_bytes(stmt, 2)};
    if (ret_batch->seq != after + 1) {
        *fault = (struct fault){
            .what = "read the journal", .code = FAULT_GAP, .sys = (int)ret_batch->seq};
        return false;
    }
    if (!ret_batch->changes.at || crc32c(ret_batch->changes) != sum) {
        batch_damaged(ret_batch, fault);
        return false;
    }
    return true;
}
