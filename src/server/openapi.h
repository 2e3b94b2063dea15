/* The routes as an OpenAPI 3.1 document (GET /v1/openapi.json). Paths, parameters and scopes come
 * from the route table, schemas from the rows of messages.c. */
#ifndef SERVER_OPENAPI_H
#define SERVER_OPENAPI_H

#include "base/str.h"

bool openapi_knows_query(struct str name); /* a parameter that a row may name */

#endif
