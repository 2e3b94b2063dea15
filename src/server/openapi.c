/* OpenAPI: the document is made for each request; nothing is kept in step by hand. */
#include "server/openapi.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "server/api.h"

/* Query parameters by name: a row of the route table names those it reads. */
static const struct {
    const char *name;
    const char *type;
    const char *help;
} queries[] = {
    {"limit", "integer", "how many at most"},
    {"cursor", "string", "`next_cursor` of the page before"},
    {"wait", "string", "how long to wait for it: 500ms, 5s, 1m"},
    {"max", "integer", "how much at most"},
    {"offset", "integer", "from this byte on"},
    {"state", "string", "states, with commas"},
    {"type", "string", "only of this type"},
    {"session_id", "string", "only of this session"},
    {"node_id", "string", "only of this node"},
    {"health", "string", "only of this health"},
    {"selector", "string", "only with these labels: key=value,key=value"},
    {"dry_run", "string", "1: tell what would happen, and change nothing"},
    {"enabled", "boolean", "only those switched on, or off"},
    {"address", "string", "only of this node; empty: of none"},
    {"package_name", "string", "only of this package"},
    {"who", "string", "only of this token"},
    {"action", "string", "only this: nodes.drain"},
    {"target", "string", "only about this"},
    {"kind", "string", "only change, or only refused"},
    {"verify", "integer", "1: read the files now, and tell whether all changes fit together"},
    {"brief", "integer", "1: without what takes long to read"},
    {"thin", "integer", "1: of each job only the last event of every 200 ms"},
    {"since", "string", "stats: what came after this, milliseconds since 1970; report: 2h, 7d"},
};

static const char *const methods[] = {[HTTP_M_GET] = "get",
                                      [HTTP_M_POST] = "post",
                                      [HTTP_M_PUT] = "put",
                                      [HTTP_M_PATCH] = "patch",
                                      [HTTP_M_DELETE] = "delete"};

static const char *const scopes[SCOPE_COUNT] = {
    [SCOPE_NONE] = "none",  [SCOPE_READ] = "read",     [SCOPE_SUBMIT] = "submit",
    [SCOPE_NODE] = "node",  [SCOPE_DEPLOY] = "deploy", [SCOPE_OPERATE] = "operate",
    [SCOPE_ADMIN] = "admin"};

static int query_index(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(queries); i++)
        if (str_is(name, queries[i].name))
            return (int)i;
    return -1;
}

bool openapi_knows_query(struct str name)
{
    return query_index(name) >= 0;
}

static void write_type(struct jsonw *w, const char *type)
{
    jsonw_key(w, "schema");
    jsonw_obj(w);
    jsonw_kstr(w, "type", str_of(type));
    jsonw_end_obj(w);
}

static void write_path_params(struct jsonw *w, const char *path)
{
    while ((path = strchr(path, '{'))) {
        const char *end = strchr(path, '}');

        assert(end);
        jsonw_obj(w);
        jsonw_kstr(w, "name", (struct str){.at = path + 1, .len = (size_t)(end - path - 1)});
        jsonw_kstr(w, "in", STR("path"));
        jsonw_kbool(w, "required", true);
        write_type(w, "string");
        jsonw_end_obj(w);
        path = end;
    }
}

static void write_queries(struct jsonw *w, const char *names)
{
    struct str rest = str_of(names);

    while (rest.len) {
        int index = query_index(str_cut(&rest, ' '));

        assert(index >= 0);
        jsonw_obj(w);
        jsonw_kstr(w, "name", str_of(queries[index].name));
        jsonw_kstr(w, "in", STR("query"));
        jsonw_kstr(w, "description", str_of(queries[index].help));
        write_type(w, queries[index].type);
        jsonw_end_obj(w);
    }
}

static void write_ref(struct jsonw *w, const char *schema)
{
    struct buf text = {0};

    buf_fmt(&text, "#/components/schemas/%s", schema);
    jsonw_key(w, "schema");
    jsonw_obj(w);
    jsonw_kstr(w, "$ref", buf_view(&text));
    jsonw_end_obj(w);
    buf_free(&text);
}

/* What a body or an answer holds. */
static void write_content(struct jsonw *w, const char *media, const char *schema)
{
    jsonw_key(w, "content");
    jsonw_obj(w);
    jsonw_key(w, media);
    jsonw_obj(w);
    if (schema)
        write_ref(w, schema);
    else
        write_type(w, "string");
    jsonw_end_obj(w);
    jsonw_end_obj(w);
}

static void write_response(struct jsonw *w, int status, const char *what, const char *media,
                           const char *schema)
{
    char name[16] = "default";

    if (status)
        snprintf(name, sizeof name, "%d", status);
    jsonw_key(w, name);
    jsonw_obj(w);
    jsonw_kstr(w, "description", str_of(what));
    if (status != 101 && status != 304)
        write_content(w, media, schema);
    jsonw_end_obj(w);
}

static void write_responses(struct jsonw *w, const struct route *route)
{
    const char *media = route->media ? route->media : "application/json";
    int status = route->status ? route->status : 200;

    jsonw_key(w, "responses");
    jsonw_obj(w);
    write_response(w, status, route->help, media, route->out);
    if (route->also)
        write_response(w, route->also, route->help, media, route->out);
    write_response(w, 0, "what went wrong", "application/problem+json", "Problem");
    jsonw_end_obj(w);
}

static void write_security(struct jsonw *w, const struct route *route)
{
    jsonw_kstr(w, "x-scope", str_of(scopes[route->scope]));
    jsonw_key(w, "security");
    jsonw_arr(w);
    if (route->scope != SCOPE_NONE) {
        jsonw_obj(w);
        jsonw_key(w, "bearer");
        jsonw_arr(w);
        jsonw_end_arr(w);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
}

/* "get_v1_jobs_id" */
static void write_id(struct jsonw *w, const struct route *route)
{
    struct buf id = {0};

    buf_str(&id, str_of(methods[route->method]));
    for (const char *at = route->path; *at; at++)
        if (isalnum((unsigned char)*at))
            buf_char(&id, *at);
        else if (id.at[id.len - 1] != '_' && at[1])
            buf_char(&id, '_');
    jsonw_kstr(w, "operationId", buf_view(&id));
    buf_free(&id);
}

static void write_operation(struct jsonw *w, const struct route *route)
{
    assert(methods[route->method]);
    jsonw_key(w, methods[route->method]);
    jsonw_obj(w);
    write_id(w, route);
    jsonw_kstr(w, "summary", str_of(route->help));
    write_security(w, route);
    jsonw_key(w, "parameters");
    jsonw_arr(w);
    write_path_params(w, route->path);
    write_queries(w, route->query);
    jsonw_end_arr(w);
    if (route->in) {
        jsonw_key(w, "requestBody");
        jsonw_obj(w);
        jsonw_kbool(w, "required", !route->body_optional);
        write_content(w, "application/json", route->in);
        jsonw_end_obj(w);
    }
    write_responses(w, route);
    jsonw_end_obj(w);
}

static bool is_first(size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (strcmp(route_at(i)->path, route_at(index)->path) == 0)
            return false;
    return true;
}

static void write_paths(struct jsonw *w)
{
    const struct route *route, *other;

    jsonw_key(w, "paths");
    jsonw_obj(w);
    for (size_t i = 0; (route = route_at(i)); i++) {
        if (!is_first(i))
            continue;
        jsonw_key(w, route->path);
        jsonw_obj(w);
        for (size_t j = i; (other = route_at(j)); j++)
            if (strcmp(other->path, route->path) == 0)
                write_operation(w, other);
        jsonw_end_obj(w);
    }
    jsonw_end_obj(w);
}

/* The names of errors, out of their table; some stand for several causes. */
static void write_errors(struct jsonw *w)
{
    jsonw_key(w, "ErrorName");
    jsonw_obj(w);
    jsonw_kstr(w, "type", STR("string"));
    jsonw_key(w, "enum");
    jsonw_arr(w);
    for (int i = ERR_OK + 1; i < ERR_COUNT; i++)
        if (err_by_name(err_name((enum err)i), 0) == (enum err)i)
            jsonw_str(w, str_of(err_name((enum err)i)));
    jsonw_end_arr(w);
    jsonw_end_obj(w);
}

/* schemas.json's members, and the errors among them. */
static void write_schemas(struct jsonw *w)
{
    struct arena arena = {0};
    const struct json *root, *key;
    struct problem why;

    if (json_parse(str_of(openapi_schemas), &arena, &root, &why))
        assert(!"schemas.json is not JSON"); /* we wrote it, and a test reads it */
    jsonw_key(w, "schemas");
    jsonw_obj(w);
    write_errors(w);
    key = json_first(root);
    for (uint32_t i = 0; i < root->count; i++) {
        jsonw_key_str(w, json_str(key, &arena));
        jsonw_raw(w, json_raw(key + 1));
        key = json_next(key + 1);
    }
    jsonw_end_obj(w);
    arena_free(&arena);
}

static void write_components(struct jsonw *w)
{
    jsonw_key(w, "components");
    jsonw_obj(w);
    jsonw_key(w, "securitySchemes");
    jsonw_obj(w);
    jsonw_key(w, "bearer");
    jsonw_obj(w);
    jsonw_kstr(w, "type", STR("http"));
    jsonw_kstr(w, "scheme", STR("bearer"));
    jsonw_end_obj(w);
    jsonw_end_obj(w);
    write_schemas(w);
    jsonw_end_obj(w);
}

static void openapi_write(struct jsonw *w)
{
    jsonw_obj(w);
    jsonw_kstr(w, "openapi", STR("3.1.0"));
    jsonw_key(w, "info");
    jsonw_obj(w);
    jsonw_kstr(w, "title", STR("berth"));
    jsonw_kstr(w, "version", STR(BERTH_VERSION));
    jsonw_kstr(w, "description",
               STR("Places work on a fleet of machines. PROTOCOL.md tells what the routes mean."));
    jsonw_end_obj(w);
    write_paths(w);
    write_components(w);
    jsonw_end_obj(w);
}

void api_openapi(struct call *call)
{
    struct buf buf = {0};
    struct jsonw w = jsonw_to(&buf);

    openapi_write(&w);
    call_json(call, 200, &buf);
    buf_free(&buf);
}
