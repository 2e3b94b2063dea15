/* The routes as an OpenAPI 3.1 document (GET /v1/openapi.json). Paths, parameters and scopes come
 * from the route table, schemas from schemas.json, errors from the error table. */
#ifndef SERVER_OPENAPI_H
#define SERVER_OPENAPI_H

#include "base/str.h"

bool openapi_knows_query(struct str name); /* a parameter that a row may name */

/* schemas.json: an object of JSON Schemas by name. */
extern const char openapi_schemas[];

#endif
