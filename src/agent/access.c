/* Token and certificate files. */
#include "agent/access.h"

#include <assert.h>
#include <string.h>

#include "base/file.h"

enum err access_read_token(const char *path, struct arena *arena, struct str *ret_token,
                           struct problem *why)
{
    struct str text, token;
    enum err err = file_read(path, ACCESS_TOKEN_MAX, arena, &text, why);

    if (err) {
        why->err = ERR_BAD_CONFIG;
        return ERR_BAD_CONFIG;
    }
    token = str_cut(&text, '\n');
    if (token.len && token.at[token.len - 1] == '\r')
        token.len--;
    if (!token.len)
        return problem_set(why, ERR_BAD_CONFIG, "token_file", "%s is empty.", path);
    if (!str_is_text(token))
        return problem_set(why, ERR_BAD_CONFIG, "token_file",
                           "%s: the token must be one line of text.", path);
    *ret_token = token;
    return ERR_OK;
}

void access_refresh(struct access *access)
{
    struct arena arena = {0};
    struct problem why;
    struct str token;

    if (access->token_file &&
        access_read_token(access->token_file, &arena, &token, &why) == ERR_OK) {
        memcpy(access->read, token.at, token.len);
        access->token = (struct str){.at = access->read, .len = token.len};
        explicit_bzero((char *)token.at, token.len);
    }
    arena_free(&arena);
}

enum err access_tls(const struct access *access, struct net_tls **ret_tls, struct problem *why)
{
    struct net_tls *tls;
    enum err err = net_tls_client(access->ca_file, &tls, why);

    assert(access->tls && !access->cert_file == !access->key_file);
    if (err)
        return err;
    if (access->cert_file)
        err = net_tls_identity(tls, access->cert_file, access->key_file, why);
    if (err) {
        net_tls_free(tls);
        return err;
    }
    *ret_tls = tls;
    return ERR_OK;
}
