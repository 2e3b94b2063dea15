/* The function library, made from lua/ at build time. It is without its first lines: whoever
 * loads it says the name and which clock counts. */
#ifndef STORE_REDIS_LUA_H
#define STORE_REDIS_LUA_H

extern const char redis_lua[];

#endif
