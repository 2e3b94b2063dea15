/* The function library, made from lua/ at build time. Its first lines are missing: the loader adds
 * the name and the choice of clock. */
#ifndef STORE_REDIS_LUA_H
#define STORE_REDIS_LUA_H

extern const char redis_lua[];

#endif
