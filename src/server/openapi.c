/* The routes as an OpenAPI 3.1 document (GET /v1/openapi.json), generated for each request: paths,
 * parameters and scopes come from the route table, schemas from the rows of messages.c. */
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "server/api.h"
#include "server/messages.h"

/* Query parameters by name: a row of the route table names those its handler reads. */
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
    {"selector", "string", "only what it matches, like zone in (eu,us), !spot"},
    {"prefix", "string", "only keys that begin so"},
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
    {"by", "string", "what the rows are: key, type or node (default)"},
    {"day", "string", "instead of since: the 24 hours of this day by UTC, like 2026-11-18"},
    {"since", "string", "stats: what came after this, milliseconds since 1970; report: 2h, 7d"},
};

static const char *const methods[] = {[HTTP_M_GET] = "get",
                                      [HTTP_M_POST] = "post",
                                      [HTTP_M_PUT] = "put",
                                      [HTTP_M_PATCH] = "patch",
                                      [HTTP_M_DELETE] = "delete"};

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
    jsonw_kobj(w, "schema");
    jsonw_kstr(w, "type", str_of(type));
    jsonw_end_obj(w);
}

static void write_ref(struct jsonw *w, struct str schema)
{
    struct buf ref = {0};

    buf_fmt(&ref, "#/components/schemas/" STR_FMT, STR_ARG(schema));
    jsonw_kstr(w, "$ref", buf_view(&ref));
    buf_free(&ref);
}

/* The content of a request body or a response. */
static void write_content(struct jsonw *w, const char *media, const char *schema)
{
    jsonw_kobj(w, "content");
    jsonw_kobj(w, media);
    if (schema) {
        jsonw_kobj(w, "schema");
        write_ref(w, str_of(schema));
        jsonw_end_obj(w);
    } else {
        write_type(w, "string");
    }
    jsonw_end_obj(w);
    jsonw_end_obj(w);
}

static void write_response(struct jsonw *w, int status, const char *what, const char *media,
                           const char *schema)
{
    char name[16] = "default";

    if (status)
        snprintf(name, sizeof name, "%d", status);
    jsonw_kobj(w, name);
    jsonw_kstr(w, "description", str_of(what));
    if (status != 101 && status != 304)
        write_content(w, media, schema);
    jsonw_end_obj(w);
}

static void write_operation(struct jsonw *w, const struct route *route)
{
    const char *media = route->media ? route->media : "application/json";
    bool open = route->scope == SCOPE_NONE;
    struct buf id = {0};

    assert(methods[route->method]);
    jsonw_kobj(w, methods[route->method]);
    /* "get_v1_jobs_id" */
    buf_str(&id, str_of(methods[route->method]));
    for (const char *at = route->path; *at; at++)
        if (isalnum((unsigned char)*at))
            buf_char(&id, *at);
        else if (id.at[id.len - 1] != '_' && at[1])
            buf_char(&id, '_');
    jsonw_kstr(w, "operationId", buf_view(&id));
    buf_free(&id);
    jsonw_kstr(w, "summary", str_of(route->help));
    jsonw_kstr(w, "x-scope", open ? STR("none") : str_of(token_scope_name(route->scope)));
    jsonw_kraw(w, "security", open ? STR("[]") : STR("[{\"bearer\":[]}]"));
    jsonw_karr(w, "parameters");
    for (const char *path = route->path; (path = strchr(path, '{'));) {
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
    for (struct str rest = str_of(route->query); rest.len;) {
        int index = query_index(str_cut(&rest, ' '));

        assert(index >= 0);
        jsonw_obj(w);
        jsonw_kstr(w, "name", str_of(queries[index].name));
        jsonw_kstr(w, "in", STR("query"));
        jsonw_kstr(w, "description", str_of(queries[index].help));
        write_type(w, queries[index].type);
        jsonw_end_obj(w);
    }
    jsonw_end_arr(w);
    if (route->in) {
        jsonw_kobj(w, "requestBody");
        jsonw_kbool(w, "required", !route->body_optional);
        write_content(w, "application/json", route->in);
        jsonw_end_obj(w);
    }
    jsonw_kobj(w, "responses");
    write_response(w, route->status ? route->status : 200, route->help, media, route->out);
    if (route->also)
        write_response(w, route->also, route->help, media, route->out);
    write_response(w, 0, "what went wrong", "application/problem+json", "Problem");
    jsonw_end_obj(w);
    jsonw_end_obj(w);
}

/* --- schemas: the rows of messages.c --- */

static void write_shape(struct jsonw *w, struct str shape, bool open);
static void write_rows(struct jsonw *w, const struct message_rows *rows, bool request,
                       bool required);

/* Strings with a format. */
static const struct {
    const char *name;
    const char *pattern;
} forms[] = {
    {"id", "^[A-Za-z0-9_:@-][A-Za-z0-9._:@-]*$"},
    {"sha256", "^[0-9a-f]{64}$"},
    {"quota", "^(rate=[0-9]+/[smh]|waiting=[0-9]+|bytes=[0-9]+([KMG]iB)?)"
              "(,(rate=[0-9]+/[smh]|waiting=[0-9]+|bytes=[0-9]+([KMG]iB)?))*$"},
};

/* Cuts a shape at the first `|` outside brackets. */
static struct str cut_shape(struct str *rest)
{
    struct str part = *rest;
    int depth = 0;

    for (part.len = 0; part.len < rest->len; part.len++) {
        char c = part.at[part.len];

        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        if (c == '|' && depth == 0)
            break;
    }
    assert(part.len > 0);
    size_t used = part.len + (part.len < rest->len);
    *rest = (struct str){.at = rest->at + used, .len = rest->len - used};
    return part;
}

static bool is_plain(struct str part)
{
    static const char *const names[] = {"string", "integer", "number", "boolean", "null"};

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (str_is(part, names[i]))
            return true;
    return false;
}

static bool is_word(struct str part)
{
    return part.at[0] == '=' || str_is(part, "null");
}

static bool all_are(struct str shape, bool (*is)(struct str))
{
    while (shape.len)
        if (!is(cut_shape(&shape)))
            return false;
    return true;
}

static bool takes_null(struct str shape)
{
    while (shape.len) {
        struct str part = cut_shape(&shape);

        if (str_is(part, "null") || str_is(part, "any"))
            return true;
    }
    return false;
}

static void write_word(struct jsonw *w, struct str part)
{
    struct str word = {.at = part.at + 1, .len = part.len - 1};

    if (str_is(part, "null"))
        jsonw_null(w);
    else if (str_is(word, "true"))
        jsonw_bool(w, true);
    else
        jsonw_str(w, word);
}

/* Writes one part of a shape, without choices. */
static void write_part(struct jsonw *w, struct str part)
{
    struct str inner = {.at = part.at + 1, .len = part.len - 2};

    if (part.at[0] == '[' || part.at[0] == '{') {
        jsonw_kstr(w, "type", part.at[0] == '[' ? STR("array") : STR("object"));
        jsonw_key(w, part.at[0] == '[' ? "items" : "additionalProperties");
        write_shape(w, inner, true);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (str_is(part, forms[i].name)) {
            jsonw_kstr(w, "type", STR("string"));
            jsonw_kstr(w, "pattern", str_of(forms[i].pattern));
            return;
        }
    if (str_is(part, "any"))
        return;
    if (is_plain(part)) {
        jsonw_kstr(w, "type", part);
    } else if (part.at[0] == '=') {
        jsonw_key(w, "const");
        write_word(w, part);
    } else {
        assert(message_type_find(part)); /* not a known type */
        write_ref(w, part);
    }
}

/* `open`: writes a whole object; otherwise only its members. */
static void write_shape(struct jsonw *w, struct str shape, bool open)
{
    struct str rest = shape, part = cut_shape(&rest);
    bool plain = all_are(shape, is_plain), words = all_are(shape, is_word);

    if (open)
        jsonw_obj(w);
    if (!rest.len) {
        write_part(w, part);
    } else {
        jsonw_karr(w, plain ? "type" : words ? "enum" : "anyOf");
        for (rest = shape; rest.len;) {
            part = cut_shape(&rest);
            if (plain)
                jsonw_str(w, part);
            else if (words)
                write_word(w, part);
            else
                write_shape(w, part, true);
        }
        jsonw_end_arr(w);
    }
    if (open)
        jsonw_end_obj(w);
}

/* The shape that follows from the type, for a row without one. A duration may be sent as text, but
 * is answered as a number. */
static void add_shape(const struct field *field, bool request, struct buf *shape)
{
    static const char *const shapes[] = {
        [FIELD_BOOL] = "boolean",  [FIELD_INT] = "integer", [FIELD_MS] = "integer",
        [FIELD_STR] = "string",    [FIELD_ID] = "id",       [FIELD_NAME] = "string",
        [FIELD_STRS] = "[string]", [FIELD_JSON] = "any",    [FIELD_REAL] = "number",
    };

    if (field->shape) {
        buf_str(shape, str_of(field->shape));
    } else if (field->type == FIELD_ID && !request) {
        buf_str(shape, STR("string"));
    } else if (field->type == FIELD_ENUM) {
        for (size_t i = 0; field_word(field, i); i++)
            buf_fmt(shape, "%s=%s", i ? "|" : "", field_word(field, i));
    } else {
        assert((size_t)field->type < COUNT_OF(shapes) && shapes[field->type]);
        buf_str(shape, str_of(shapes[field->type]));
        if (request && field->type == FIELD_MS)
            buf_str(shape, STR("|string"));
    }
}

/* The limits a request is checked against. For an answer, only those its row states. */
static void write_bounds(struct jsonw *w, const struct field *field, bool request, struct str shape)
{
    bool text = str_starts(shape, STR("string")) || str_starts(shape, STR("id"));

    if (field->type == FIELD_MS || (!request && field->type != FIELD_JSON) ||
        (field->min == 0 && field->max == 0))
        return;
    if (text && field->max > 0)
        jsonw_kint(w, "maxLength", field->max);
    if (str_starts(shape, STR("[")) && field->min > 0)
        jsonw_kint(w, "minItems", field->min);
    if (!str_starts(shape, STR("integer")))
        return;
    jsonw_kint(w, "minimum", field->min);
    if (field->max >= field->min)
        jsonw_kint(w, "maximum", field->max);
}

static void write_example(struct jsonw *w, const char *example)
{
    if (!example)
        return;
    jsonw_karr(w, "examples");
    jsonw_raw(w, str_of(example));
    jsonw_end_arr(w);
}

static void write_field(struct jsonw *w, const struct field *field, bool nullable, bool request)
{
    const char *help = field->help;
    struct buf shape = {0};

    jsonw_obj(w);
    if (field->type == FIELD_OBJ) {
        const struct schema schema = {.fields = field->fields, .count = field->field_count};
        const struct message_rows rows = {.schema = &schema};

        jsonw_kraw(w, "type", nullable ? STR("[\"object\",\"null\"]") : STR("[\"object\"]"));
        jsonw_kobj(w, "properties");
        write_rows(w, &rows, true, false);
        jsonw_end_obj(w);
        if (!request) /* answered as it was sent, with members we do not read */
            jsonw_kbool(w, "additionalProperties", true);
    } else {
        add_shape(field, request, &shape);
        if (nullable && !takes_null(buf_view(&shape)))
            buf_str(&shape, STR("|null"));
        write_shape(w, buf_view(&shape), false);
        write_bounds(w, field, request, buf_view(&shape));
        buf_free(&shape);
    }
    if (!help && request && field->type == FIELD_MS)
        help = "milliseconds, or a text like 5s";
    if (help && help[0])
        jsonw_kstr(w, "description", str_of(help));
    write_example(w, field->example);
    jsonw_end_obj(w);
}

/* Writes the rows as properties, or the names of the required ones. In a request null means absent.
 */
static void write_rows(struct jsonw *w, const struct message_rows *rows, bool request,
                       bool required)
{
    for (size_t i = 0; rows->schema && i < rows->schema->count; i++) {
        const struct field *field = &rows->schema->fields[i];
        const char *name = message_name(rows, field);
        bool is = field->flags & (rows->required ? rows->required : FIELD_REQUIRED | FIELD_SENDER);
        bool null = request ? !is
                            : (field->flags & FIELD_EMPTY) ||
                                  ((field->flags & rows->nullable) && field->type != FIELD_INT);

        if (!name)
            continue;
        if (required && is)
            jsonw_str(w, str_of(name));
        if (required)
            continue;
        jsonw_key(w, name);
        write_field(w, field, null, request);
    }
}

static void write_message(struct jsonw *w, const struct message_type *type)
{
    jsonw_kobj(w, type->name);
    if (type->word) {
        jsonw_kstr(w, "type", STR("string"));
        jsonw_karr(w, "enum");
        for (size_t i = 0; type->word(i); i++) {
            size_t first = 0; /* rows of a table may share a word: write it once */

            while (strcmp(type->word(first), type->word(i)) != 0)
                first++;
            if (first == i)
                jsonw_str(w, str_of(type->word(i)));
        }
        jsonw_end_arr(w);
    } else if (type->shape) {
        write_shape(w, str_of(type->shape), false);
    } else {
        jsonw_kstr(w, "type", STR("object"));
        jsonw_karr(w, "required");
        write_rows(w, &type->rows, type->request, true);
        write_rows(w, &type->more, type->request, true);
        jsonw_end_arr(w);
        jsonw_kobj(w, "properties");
        write_rows(w, &type->rows, type->request, false);
        write_rows(w, &type->more, type->request, false);
        jsonw_end_obj(w);
        if (type->open)
            jsonw_kbool(w, "additionalProperties", true);
    }
    if (type->help)
        jsonw_kstr(w, "description", str_of(type->help));
    write_example(w, type->example);
    jsonw_end_obj(w);
}

void api_openapi(struct call *call)
{
    const struct message_type *type;
    const struct route *route, *other;
    struct jsonw w = call_begin(call);

    jsonw_kstr(&w, "openapi", STR("3.1.0"));
    jsonw_kobj(&w, "info");
    jsonw_kstr(&w, "title", STR("berth"));
    jsonw_kstr(&w, "version", STR(BERTH_VERSION));
    jsonw_kstr(&w, "description",
               STR("Places work on a fleet of machines. PROTOCOL.md tells what the routes mean."));
    jsonw_end_obj(&w);
    jsonw_kobj(&w, "paths");
    for (size_t i = 0; (route = route_at(i)); i++) {
        size_t first = 0;

        while (strcmp(route_at(first)->path, route->path) != 0)
            first++;
        if (first < i)
            continue; /* written with the first route of its path */
        jsonw_kobj(&w, route->path);
        for (size_t j = i; (other = route_at(j)); j++)
            if (strcmp(other->path, route->path) == 0)
                write_operation(&w, other);
        jsonw_end_obj(&w);
    }
    jsonw_end_obj(&w);
    jsonw_kobj(&w, "components");
    jsonw_kraw(&w, "securitySchemes",
               STR("{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"}}"));
    jsonw_kobj(&w, "schemas");
    for (size_t i = 0; (type = message_type_at(i)); i++)
        write_message(&w, type);
    jsonw_end_obj(&w);
    jsonw_end_obj(&w);
    call_end(call, 200, &w);
}
